"""What theory says that a pipelined step sends: two messages a tick, what a stage's jobs send along other axes, and
sums once a step (Ch. 16).

A job's transfers stand in a branch: their executions are the ticks of the loop around it, on which it may run. That is
what a compiled text can tell; how many of these ticks a stage gives to the job is the schedule's, and is counted where
the program runs. JAX differentiates the jobs that go backwards alone: messages, and what a forward job sends, lie in
neither of its passes, and their scopes say which way they go.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from math import prod

from lab.book.parallelism import activation_bytes, gradient_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Provenance, Transfer
from lab.meshes.axes import PIPE, Axes
from lab.meshes.errors import UsageError
from lab.programs.pipelines.halves import matrices
from lab.programs.pipelines.program import LAYERS, PipelineShape, refuse, table_for
from lab.programs.pipelines.table import Job, Table
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import (
    FORWARD,
    UPDATE,
    elements,
    local_dims,
    sharding_axes,
    transfer,
    weights,
)

FLOAT32_BYTES = 4
AGAIN = (Job.BACKWARD, Job.INPUT_GRADIENT)
"""Jobs that compute their chunk again, to go backwards through it."""


def predict(strategy: Strategy, shape: PipelineShape, axes: Axes) -> Ledger:
    """The ledger of one step of the strategy in a pipeline.

    Raises:
      UsageError: as `program.step`.
    """
    refuse(strategy, shape, axes.names)
    table = table_for(strategy, shape, axes)
    rows = (
        *_messages(strategy, shape, axes, table),
        *_in_jobs(strategy, shape, axes, table),
        *_once(strategy, shape, axes),
    )
    return Ledger(rows, devices=axes.size, mesh=axes.shape)


def message_bytes(strategy: Strategy, shape: PipelineShape, axes: Axes) -> int:
    """Of one rank: its part of a micro-batch between two blocks. Source: Ch. 16, `ch16.p2p_size`."""
    tokens = prod(strategy.residual.local_shape(("batch", "length"), (shape.micro_batch, shape.length), axes))
    return activation_bytes(tokens, shape.embed, shape.bytes_per_element)


def _messages(strategy: Strategy, shape: PipelineShape, axes: Axes, table: Table) -> Iterator[Transfer]:
    """One forth and one back at the end of each tick, needed or not."""
    n = message_bytes(strategy, shape, axes)
    for scope, shift in (("forth", 1), ("back", axes[PIPE] - 1)):
        yield replace(
            transfer(Kind.COLLECTIVE_PERMUTE, scope, (PIPE,), n, None, shape.dtype, table.ticks, axes), shift=shift
        )


def _in_jobs(strategy: Strategy, shape: PipelineShape, axes: Axes, table: Table) -> Iterator[Transfer]:
    """What the strategy sends for one micro-batch and the layers of one chunk, in every job that does."""
    # Of two micro-batches: what happens as often as these does for each of them, all else once a step.
    layers = shape.dense_layers + looped_layers(shape, axes)
    two = replace(shape, layers=layers, batch=2 * shape.micro_batch, accumulation=2)
    for each in strategy.predict(two, axes).transfers:
        if known(each.executions) % 2 == 0:
            each = _at_both_ends(each, strategy, shape, axes)
            executions = table.ticks * known(each.executions) // 2
            for job in table.jobs:
                if _is_done(job, each, strategy, shape, axes):
                    provenance = replace(each.provenance, repeats=1)
                    yield replace(
                        each,
                        phase=None if job is Job.FORWARD else each.phase,
                        scope=f"{job.scope}/{each.scope}",
                        executions=executions,
                        conditional=True,
                        provenance=provenance,
                    )


def looped_layers(shape: PipelineShape, axes: Axes) -> int:
    """Of a chunk; raises UsageError where there is one, since it makes no loop."""
    layers = shape.chunk_layers(axes[PIPE])
    if layers < 2:
        raise UsageError(
            f"layers={shape.layers}: one layer per chunk, whose loop XLA removes; expected {2 * shape.layers} or more"
        )
    return layers


def _is_done(job: Job, each: Transfer, strategy: Strategy, shape: PipelineShape, axes: Axes) -> bool:
    if each.phase == FORWARD:
        # No gradient needs the loss, and of its sums that of the target's logit.
        return job is Job.FORWARD or (job in AGAIN and each.scope != "loss/target")
    half = Job.WEIGHT_GRADIENT if _is_put_off(each, strategy, shape, axes) else Job.INPUT_GRADIENT
    return job in (Job.BACKWARD, half)


def _at_both_ends(each: Transfer, strategy: Strategy, shape: PipelineShape, axes: Axes) -> Transfer:
    """What is of the embedding, as often as two stages do it: a table that the last one uses as well is moved there,
    too, and what is looked up for a second prediction is no longer moved together with the first."""
    is_moved_twice = shape.mtp or (shape.tied and _moves_weights(each, strategy, axes))
    if each.scope != "embedding" or not is_moved_twice:
        return each
    parts = 1 if _moves_weights(each, strategy, axes) else shape.predictions
    return replace(each, executions=2 * known(each.executions), payload_bytes=each.payload_bytes // parts)


def _is_put_off(each: Transfer, strategy: Strategy, shape: PipelineShape, axes: Axes) -> bool:
    """It sums the gradient of a layer's matrix that a split backward finds later."""
    of_matrix = each.scope.startswith(f"{LAYERS}/") and each.scope.rpartition("/")[2] in matrices(shape)
    return each.kind is Kind.REDUCE_SCATTER and of_matrix and _moves_weights(each, strategy, axes)


def _moves_weights(each: Transfer, strategy: Strategy, axes: Axes) -> bool:
    """Ranks with tokens of their own have nothing else to tell each other inside a job, but for keys and values."""
    return set(known(each.axes)) <= set(strategy.token_axes(axes)) and "/core/" not in each.scope


def _once(strategy: Strategy, shape: PipelineShape, axes: Axes) -> Iterator[Transfer]:
    """After the last tick: sums of the loss, of gradients of what ranks have copies of, and of the squares of all.
    Under ZeRO-1 and 2 gradients are scattered before, and new weights gathered after."""

    def moved(kind: Kind, scope: str, over: Set[str], payload_bytes: int, dtype: str = "f32") -> Transfer:
        return transfer(kind, scope, over, payload_bytes, UPDATE, dtype, 1, axes)

    yield moved(Kind.ALL_REDUCE, "loss", {PIPE, *strategy.token_axes(axes)}, FLOAT32_BYTES)
    for weight in weights(shape):
        # Layers are a stage's own; all else has a copy on each.
        uses = shape.chunks * shape.chunk_layers(axes[PIPE]) if weight.stack == LAYERS else weight.per_pass
        used, kept = (uses * elements(weight, layout, shape, axes) for layout in (strategy.weights, strategy.master))
        scattered = strategy.scattered_over(weight.dims)
        if scattered and not strategy.is_anchored:
            yield moved(Kind.REDUCE_SCATTER, weight.scope, scattered, gradient_bytes(used, FLOAT32_BYTES))
        if over := strategy.summed_apart(weight.dims) | (set() if weight.stack in shape.stacks else {PIPE}):
            summed = moved(Kind.ALL_REDUCE, weight.scope, over, gradient_bytes(kept, FLOAT32_BYTES))
            # Of vectors it shows between slices that they are a stack.
            is_stack = weight.stack == LAYERS and len(weight.dims) == 1
            dims = (uses, *local_dims(weight, strategy.master, shape, axes)) if is_stack else ()
            yield replace(summed, provenance=Provenance(dims=dims))
        if scattered:
            new = gradient_bytes(used, shape.bytes_per_element)
            yield moved(Kind.ALL_GATHER, f"renew/{weight.scope}", scattered, new, shape.dtype)
    yield moved(Kind.ALL_REDUCE, "clip", {PIPE, *sharding_axes(strategy, shape, axes)}, FLOAT32_BYTES)
