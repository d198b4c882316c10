"""The training step of a decoder whose layers lie along `pipe`, under any schedule; inside a stage a strategy's hooks
split it further (Ch. 16).

All axes are written out. Data parallelism left to the compiler, in a `shard_map` over `pipe` alone, gives one device's
gradients too (tests/lab/programs/pipelines/test_executor.py). But then no gradient is a rank's own: each is summed over
`data` in every tick that may go backward, and not once after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.meshes.axes import PIPE, Axes
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.programs.models import decoder
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DTYPES, DecoderShape
from lab.programs.pipelines import executor, halves
from lab.programs.pipelines.executor import Weights
from lab.programs.pipelines.orders import named
from lab.programs.pipelines.schedule import Schedule
from lab.programs.pipelines.stages import layers_of_chunks, predicts_further
from lab.programs.pipelines.table import Job, Row, Table, one_way, table_of
from lab.programs.strategies import program as strategies
from lab.programs.strategies.anchored import hooks_of_pairs
from lab.programs.strategies.loss_scale import NEEDS_SCALE
from lab.programs.strategies.program import (
    PlacedStrategy,
    Program,
    TrainState,
    arguments,
    each,
    explicit_step,
    of_own_tokens,
    paired,
    reduced,
    split,
    sum_over,
)
from lab.programs.strategies.strategy import RESIDUAL, Strategy
from lab.programs.strategies.update import is_weight

STACK = ("chunks", "stage", "layers")
"""Dims of the stack of all layers: layer l of chunk c on stage s is the model's layer (c P + s) L_c + l, for chunks of
L_c layers; where chunks differ, all have room for as many as the largest."""
LAYERS = "layers"
"""Name of the stack that chunks share. Another has a stage of its own, the first (`dense`) or the last (`mtp`): each
stage has room for it, [stage, layers], and all but that one hold zeros, which they compute nothing with."""


@dataclass(frozen=True)
class PipelineShape(DecoderShape):
    """A decoder in a pipeline; micro-batches are what `accumulation` counts.

    Attributes:
      schedule: of a pipeline: "gpipe", "1f1b", "eager_1f1b", "interleaved", "zb_h1" or "zb_h2"; "dual_pipe" does not
        run (`lab.programs.pipelines.orders`).
      chunks: of layers, on each stage; more than one with "interleaved" alone.
      stage_layers: layers of each chunk, such as `Et*7|(t*8|)*14t*7L` (`stages.layers_of_chunks`); empty: equally many.
        Dense layers are the first of the first chunk.
    """

    schedule: str = "1f1b"
    chunks: int = 1
    stage_layers: str = ""

    CHOICES: ClassVar[tuple[str, ...]] = (*DecoderShape.CHOICES, "schedule", "chunks", "stage_layers")

    def choosing(self, **choices: Any) -> Self:
        """As many layers, and predictions, as `stage_layers` has, where it says."""
        if text := choices.get("stage_layers", self.stage_layers):
            choices |= {"layers": sum(layers_of_chunks(text)), "mtp": int(predicts_further(text))}
        return super().choosing(**choices)

    def order(self, stages: int) -> Schedule:
        """Raises UsageError where there is no such schedule, or none that runs."""
        order = one_way(named(self.schedule, stages, self.accumulation, self.chunks))
        if order.chunks != self.chunks:
            raise UsageError(
                f"chunks={self.chunks} needs schedule=interleaved ({self.schedule} has {order.chunks} per stage)"
            )
        return order

    def chunk_layers(self, stages: int) -> int:
        """For which each chunk has room; raises as `layers_by_chunk`."""
        return int(self.layers_by_chunk(stages).max())

    def is_uneven(self, stages: int) -> bool:
        layers_vP = self.layers_by_chunk(stages)
        return bool((layers_vP != layers_vP.max()).any())

    def layers_by_chunk(self, stages: int) -> np.ndarray:
        """[chunks, stages]: layers of each chunk, without the dense ones that the first begins with.

        Raises:
          UsageError: the layers do not split evenly, or not as `stage_layers` says; or the first chunk has fewer than
            there are dense ones.
        """
        layers_vP = self._all_by_chunk(stages)
        if (first := layers_vP[0, 0]) < self.dense_layers:
            raise UsageError(
                f"dense_layers={self.dense_layers} and {first} layers in the first chunk: expected all dense layers "
                "there; say with stage_layers that it has as many"
            )
        layers_vP[0, 0] -= self.dense_layers
        return layers_vP

    def _all_by_chunk(self, stages: int) -> np.ndarray:
        parts = stages * self.chunks
        if not self.stage_layers:
            if self.layers % parts:
                raise UsageError(
                    f"layers={self.layers} is not divisible by {stages} stages x {self.chunks} chunks; make it a "
                    f"multiple of {parts}, or say with stage_layers which chunk has how many"
                )
            return np.full((self.chunks, stages), self.layers // parts)
        if predicts_further(self.stage_layers) != bool(self.mtp):
            raise UsageError(
                f"stage_layers={self.stage_layers} with mtp={self.mtp}: expected an m before L with mtp=1, and none "
                "with mtp=0"
            )
        found = layers_of_chunks(self.stage_layers)
        if (len(found), sum(found)) != (parts, self.layers):
            raise UsageError(
                f"stage_layers={self.stage_layers}: {sum(found)} layers in {len(found)} chunks; expected {self.layers} "
                f"in {parts}, of {stages} stages x {self.chunks} chunks"
            )
        return np.reshape(found, (self.chunks, stages))

    def rooms(self, stages: int) -> np.ndarray:
        """[layers]: where each of the model's layers, after the dense ones, lies in the flattened stack."""
        layers_vP, room = self.layers_by_chunk(stages), self.chunk_layers(stages)
        return np.concatenate([at * room + np.arange(count) for at, count in enumerate(layers_vP.ravel())])


def copies(dims: Dims) -> frozenset[str]:
    """Every stage has a copy of what is no layer's, and uses it on one end of the pipeline or not at all."""
    return frozenset() if "stage" in dims else frozenset({PIPE})


PIPELINE = Strategy(terms=(), weights=Layout.of(stage=PIPE), copies=copies)


@dataclass(frozen=True)
class Pipeline(PlacedStrategy):
    """A pipelined strategy on a mesh: its state has the layers stacked by chunk and stage."""

    shape: PipelineShape

    @property
    def stages(self) -> int:
        return self.axes[PIPE]

    @property
    def table(self) -> Table:
        return table_for(self.strategy, self.shape, self.axes)

    @property
    def state(self) -> TrainState:
        return jax.eval_shape(lambda: initial_state(self.strategy, self.shape, self.stages))


def table_for(strategy: Strategy, shape: PipelineShape, axes: Axes) -> Table:
    """In lockstep where a job sends keys round a ring: a permute has all devices for one group, so that none may take
    another branch."""
    return table_of(shape.order(axes[PIPE]), is_in_lockstep=bool(strategy.core.axes_of("keys", axes.names)))


def initial_state(strategy: Strategy, shape: PipelineShape, stages: int, seed: int = 0) -> TrainState:
    return state_of(strategy, shape, stages, decoder.initial(shape, seed))


def state_of(strategy: Strategy, shape: PipelineShape, stages: int, weights: Parameters) -> TrainState:
    """What a first step takes, with these weights of the model."""
    return strategies.state_of(strategy, shape, stacked(shape, stages, weights))


def stacked(shape: PipelineShape, stages: int, state: Parameters) -> Parameters:
    """The model's weights, with layers [L, ...] as [chunks, stages, layers of a chunk, ...], zeros where a chunk has
    fewer; and the stack of one stage [L, ...] as [stages, L, ...], zeros on the others."""
    sizes = (shape.chunks, stages, shape.chunk_layers(stages))

    def stack(w: Parameter, name: str) -> Parameter:
        x = w.get_value()
        if name != LAYERS:
            whole = jnp.zeros((stages, *x.shape), x.dtype).at[stage_of(name, stages)].set(x)
            return w.replace(whole, dims=("stage", *w.dims))
        if shape.is_uneven(stages):
            x = jnp.zeros((prod(sizes), *x.shape[1:]), x.dtype).at[shape.rooms(stages)].set(x)
        return w.replace(x.reshape(*sizes, *w.shape[1:]), dims=(*STACK, *w.dims[1:]))

    return _of_layers(state, stack)


def stage_of(stack: str, stages: int) -> int:
    """That has a stack of its own: dense layers are the first, what predicts the token after the next is behind the
    last."""
    return stages - 1 if stack == "mtp" else 0


def in_sequence(shape: PipelineShape, stages: int, state: Parameters) -> Parameters:
    """The inverse of `stacked`."""

    def unstack(w: Parameter, name: str) -> Parameter:
        if name != LAYERS:
            return w.replace(w.get_value()[stage_of(name, stages)], dims=w.dims[1:])
        x = w.get_value().reshape(-1, *w.shape[3:])
        return w.replace(x[shape.rooms(stages)] if shape.is_uneven(stages) else x, dims=w.dims[2:])

    return _of_layers(state, unstack)


def _of_layers(state: Parameters, change: Callable[[Parameter, str], Parameter]) -> Parameters:
    """Args: change: of a weight of a stack, and the name of that."""

    def changed(path: tuple[Any, ...], w: Parameter) -> Parameter:
        return change(w, path[0].key) if "layers" in w.dims else w

    return jax.tree.map_with_path(changed, state, is_leaf=is_weight)


def step(strategy: Strategy, shape: PipelineShape, mesh: Mesh) -> Program:
    """One training step, jitted, and its arguments as shapes with shardings. The state is donated.

    Args:
      strategy: how a stage's work is split further.
    Raises:
      UsageError: a dim does not split over its axes, the mesh lacks an axis, or there is no such schedule.
    """
    placed = pipeline(strategy, shape, mesh)
    specs = placed.state_specs, PartitionSpec()
    on_ranks = explicit_step(placed, lambda state, *batch: find(placed)(state, *batch)[:2])
    return jax.jit(on_ranks, donate_argnums=0, out_shardings=placed.shardings(specs)), arguments(placed)


def gradients(strategy: Strategy, shape: PipelineShape, mesh: Mesh) -> Program:
    """(weights, tokens_BS, targets_BS) to the mean loss, the gradients and how often each stage did each `Job`
    ([stages, jobs]), jitted.

    Weights and gradients are whole and as the model has them, for float32 comparisons.
    """
    placed = pipeline(strategy, shape, mesh)
    everywhere, stored = PartitionSpec(), placed.state_specs
    on_ranks = jax.shard_map(
        find(placed),
        mesh=mesh,
        in_specs=(stored, placed.batch, placed.batch),
        out_specs=(everywhere, stored.master, PartitionSpec(PIPE)),
    )

    def run(
        weights: Parameters, tokens_BS: jax.Array, targets_BS: jax.Array
    ) -> tuple[jax.Array, Parameters, jax.Array]:
        state = state_of(placed.strategy, shape, placed.stages, weights)
        loss, found, done = on_ranks(state, tokens_BS, targets_BS)
        return loss, in_sequence(shape, placed.stages, found), done

    whole = jax.tree.map(
        lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=NamedSharding(mesh, everywhere)),
        decoder.weights(shape),
    )
    return jax.jit(run, out_shardings=NamedSharding(mesh, everywhere)), (whole, *arguments(placed)[1:])


def one_job(shape: PipelineShape, mesh: Mesh, job: Job) -> Program:
    """One job of the only stage of a mesh of one device, ends included, on the first micro-batch; jitted, for what its
    compiled text says.

    It takes weights, tokens, targets, an input, the gradient of an output and what a half of a backward kept.
    """
    placed = pipeline(Strategy(terms=()), shape, mesh)
    row = Row(*(jnp.int32(0) for _ in Row._fields))

    def run(
        weights: Parameters, tokens_BS: jax.Array, targets_BS: jax.Array, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any
    ) -> tuple[Any, Any]:
        own, batches = _parted(weights), split(shape, tokens_BS, targets_BS)
        jobs = executor.jobs(_chunk(placed, own, *batches), own, _nothing(placed), _halves(placed, own, *batches))
        return jobs[job](row, x_BSD, dy_BSD, kept)

    def shapes() -> tuple[jax.Array, jax.Array, Any]:
        return _nothing(placed)[0], _nothing(placed)[0], _nothing_kept(placed)

    state, *batches = arguments(placed)
    everywhere = PartitionSpec()
    found = jax.eval_shape(jax.shard_map(shapes, mesh=mesh, in_specs=(), out_specs=everywhere, check_vma=False))
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)), (
        state.master,
        *batches,
        *found,
    )


def pipeline(strategy: Strategy, shape: PipelineShape, mesh: Mesh) -> Pipeline:
    """Raises UsageError as `step`."""
    refuse(strategy, shape, tuple(mesh.shape))
    placed = Pipeline(strategy | PIPELINE, shape, mesh)
    placed.strategy.check(shape, placed.axes)
    shape.order(placed.stages)
    return placed


def refuse(strategy: Strategy, shape: PipelineShape, names: tuple[str, ...]) -> None:
    """Raises UsageError where a pipeline does not run, however its dims split: an exchange of gradients, losses that
    are scaled, and ZeRO-2 of gradients that are put off."""
    if strategy.exchange:
        raise UsageError(
            "an exchange of gradients with the axis pipe: a pipeline sums gradients in full; drop one of them"
        )
    if shape.dtype == NEEDS_SCALE:
        raise UsageError(f"dtype={shape.dtype} in a pipeline, which scales no losses; use bf16")
    if strategy.is_anchored and shape.schedule.startswith("zb"):
        raise UsageError(
            f"ZeRO-2 with schedule={shape.schedule}: a gradient that is put off is found whole, and would be scattered "
            "late as under ZeRO-1; use ZeRO-1, or schedule=1f1b"
        )


def find(placed: Pipeline) -> Callable[..., tuple[jax.Array, Parameters, jax.Array]]:
    """(state, tokens_BS, targets_BS) of one rank to the mean loss, this rank's part of the gradients, and how often its
    stage did each `Job`."""
    strategy, shape = placed.strategy, placed.shape
    table = placed.table

    def on_rank(
        state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array
    ) -> tuple[jax.Array, Parameters, jax.Array]:
        # Before the loop over ticks, so that gradients are summed over ranks once, after it.
        own, variables = map(_parted, of_own_tokens(strategy, state))
        batches = split(shape, tokens_BS, targets_BS)
        split_backward = _halves(placed, own, *batches) if Job.WEIGHT_GRADIENT in table.jobs else None
        found = executor.run(table, _chunk(placed, own, *batches), variables, _nothing(placed), split_backward)
        summed = each(_joined(found.gradients), lambda g: reduced(strategy, g.get_value(), g.dims))
        with jax.named_scope("loss"):
            return sum_over(_data_axes(placed))(found.loss), summed, found.done[None]

    return on_rank


def _parted(state: Parameters) -> Weights:
    """This stage's layers, as chunks to take one of, and what every stage has a copy of, or room for."""
    layers = jax.tree.map(lambda w: w.replace(w.get_value()[:, 0], dims=w.dims[2:]), state[LAYERS], is_leaf=is_weight)
    others = nnx.State({name: weight for name, weight in state.items() if name != LAYERS})
    return Weights(layers, _of_layers(others, lambda w, _: w.replace(w.get_value()[0], dims=w.dims[1:])))


def _joined(weights: Weights) -> Parameters:
    layers = jax.tree.map(
        lambda w: w.replace(w.get_value()[:, None], dims=(*STACK[:2], *w.dims)), weights.chunks, is_leaf=is_weight
    )
    others = _of_layers(weights.shared, lambda w, _: w.replace(w.get_value()[None], dims=("stage", *w.dims)))
    stacks = {**others, LAYERS: layers}
    return nnx.State({name: x if is_weight(x) else dict(x) for name, x in stacks.items()})


def _chunk(placed: Pipeline, own: Weights, tokens_mBS: jax.Array, targets_mBS: jax.Array) -> executor.Chunk:
    """What one chunk does: the first one begins with the embedding and dense layers, the last one ends with the loss,
    as a share of the whole batch's mean.

    Args:
      own: this rank's copies of weights; what the chunk is given are those that gradients belong to.
    """
    shape, hooks, last = placed.shape, hooks_of_pairs(placed.strategy), placed.stages - 1
    stage, nothing = jax.lax.axis_index(PIPE), _nothing(placed)

    def stack(name: str, weights: Parameters, x_BSD: jax.Array, count: jax.Array | None) -> jax.Array:
        return decoder.layers(weights, x_BSD, shape.stacks[name], hooks, count, placed.table.is_in_lockstep, name)

    def run(weights: Weights, x_BSD: jax.Array, row: executor.Turn) -> tuple[jax.Array, jax.Array]:
        if placed.strategy.is_anchored:
            weights = paired(placed.strategy, executor.of_chunk(own, row), weights)

        def begin(x_BSD: jax.Array) -> jax.Array:
            return decoder.embedded(decoder.table(weights.shared, shape, hooks), tokens_mBS[row.micro_batch], hooks)

        def end(x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
            shared, targets_BS = weights.shared, targets_mBS[row.micro_batch]
            if shape.mtp:
                table_VD = decoder.table(shared, shape, hooks)
                next_BSD, head_VD = decoder.embedded(table_VD, targets_BS, hooks), table_VD if shape.tied else None
                loss = decoder.loss_of_both(shared, head_VD, x_BSD, next_BSD, targets_BS, shape, hooks)
            else:
                head_VD = decoder.table(shared, shape, hooks) if shape.tied else None
                loss = decoder.head_loss(shared, head_VD, x_BSD, targets_BS, shape, hooks)
            return nothing[0], loss / float(shape.batch * shape.length)

        is_first = (stage == 0) & (row.chunk == 0)
        x_BSD = jax.lax.cond(is_first, begin, lambda x_BSD: x_BSD, x_BSD)
        if shape.dense_layers:
            # Not in the branch of the embedding: what a conditional leaves to its transpose is whole, all weights too.
            dense = jnp.where(is_first, shape.dense_layers, 0)
            x_BSD = stack("dense", weights.shared["dense"], x_BSD, dense)
        count = None
        if shape.is_uneven(placed.stages):
            count = jnp.asarray(shape.layers_by_chunk(placed.stages))[row.chunk, stage]
        x_BSD = stack(LAYERS, weights.chunks, x_BSD, count)
        return jax.lax.cond(
            (stage == last) & (row.chunk == shape.chunks - 1), end, lambda x_BSD: (x_BSD, nothing[1]), x_BSD
        )

    return run


def _halves(placed: Pipeline, own: Weights, tokens_mBS: jax.Array, targets_mBS: jax.Array) -> executor.Halves:
    strategy, shape, nothing = placed.strategy, placed.shape, _nothing_kept(placed)
    tapped = replace(placed, strategy=replace(strategy, hooks=halves.tapped_hooks(strategy.hooks)))
    chunk = _chunk(tapped, own, tokens_mBS, targets_mBS)

    def to_input(
        weights: Weights, x_BSD: jax.Array, dy_BSD: jax.Array, row: executor.Turn
    ) -> tuple[Weights, jax.Array, Any]:
        at = Weights(halves.tapped(weights.chunks, nothing), weights.shared)
        gradients, dx_BSD = executor.pulled(lambda weights, x_BSD: chunk(weights, x_BSD, row), dy_BSD, at, x_BSD)
        return Weights(halves.not_put_off(gradients.chunks), gradients.shared), dx_BSD, halves.of_taps(gradients.chunks)

    def to_weights(weights: Weights, kept: Any) -> Weights:
        return Weights(halves.put_off(weights.chunks, kept, shape, strategy.hooks), None)

    return executor.Halves(to_input, to_weights, nothing)


def _nothing_kept(placed: Pipeline) -> Any:
    """Zeros in the shapes and types of what a half of a backward keeps."""
    shape = placed.shape
    return halves.nothing(
        decoder.weights(shape)["layers"], shape.chunk_layers(placed.stages), placed.strategy, shape, placed.axes
    )


def _nothing(placed: Pipeline) -> tuple[jax.Array, jax.Array]:
    """Zeros in the shapes and types of a message and of a loss."""
    shape, residual = placed.shape, placed.strategy.residual
    sizes = residual.local_shape(RESIDUAL, (shape.micro_batch, shape.length, shape.embed), placed.axes)
    axes = placed.axes.ordered({PIPE, *(axis for dim in RESIDUAL for axis in residual.axes_of(dim, placed.axes.names))})
    message_BSD = jax.lax.pcast(jnp.zeros(sizes, DTYPES[shape.dtype]), axes, to="varying")
    return message_BSD, jax.lax.pcast(jnp.zeros(()), _data_axes(placed), to="varying")


def _data_axes(placed: Pipeline) -> tuple[str, ...]:
    """Axes along which ranks have losses of their own."""
    return placed.axes.ordered({PIPE, *placed.strategy.token_axes(placed.axes)})
