"""Runs a pipeline's table inside `shard_map`: one loop over ticks, in which each stage does its own job and hands
messages on (Ch. 16).

What a forward leaves behind is its input alone: going backwards, a stage computes its chunk again (Huang et al. 2019).
So the stashes hold what the schedule has in flight. All that a tick sends along `pipe` are one message forward and one
backward.

A job is a branch of a conditional, so that a stage computes nothing in the bubble. Stages take different branches, but
all ranks of one stage the same one: a branch may communicate along every axis but `pipe`, as groups of one stage. A
permute has all ranks for one group, so that where a job sends keys round a ring, stages go in lockstep: at a tick all
take one branch, and those that have no work do it in vain. For gpipe and eager_1f1b that takes no longer, with (m + P
- 1) / m times the products and the bytes inside jobs; for 1f1b, where a stage goes forward while the next goes
backward, 32 ticks for 22 of 8 micro-batches on 4 stages. Doing all jobs in all ticks and keeping one result would need
no conditional either, and T / m times the products: 22 / 8 there.

What is run is what a schedule sends and holds, not always its speed. Neighbours end a tick together, so it lasts as
long as its longest job: with backwards of 3 forwards, 1F1B of 8 micro-batches on 4 stages takes 58 forwards and not 44
as GPipe and `simulate` have it. All stages forward in one tick and backward in the next would take 44 as well, but
stage 0 would hold 2 P - 1 micro-batches: where every stage works in every tick, P - 1 further ones enter while a
gradient comes back. 1F1B is there for its P, so its order stays.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lab.meshes.axes import PIPE
from lab.programs.pipelines.table import NOWHERE, Job, Row, Table


class Weights(NamedTuple):
    """Of one rank: of its chunks, stacked along the first dim of each array; and those that every stage has a copy
    of."""

    chunks: Any
    shared: Any


class Found(NamedTuple):
    """Sums over micro-batches, float32: of the loss (on the last stage) and of the weights' gradients; and how often
    each `Job` was done, int32."""

    loss: jax.Array
    gradients: Weights
    done: jax.Array


class Messages(NamedTuple):
    """To the next stage what a chunk gives, to the one before the gradient of what it was given."""

    output_BSD: jax.Array
    cotangent_BSD: jax.Array


class Done(NamedTuple):
    """What a job leaves: what it adds to the sums, of gradients one chunk's in the dtype of its weights; and what
    the half of a backward keeps for the other."""

    added: Found
    kept: Any


class State(NamedTuple):
    """What a stage carries from tick to tick: messages that wait and halves of backwards (n of each), messages that
    just arrived, and sums."""

    inputs_nBSD: jax.Array
    cotangents_nBSD: jax.Array
    kept_n: Any
    arrived: Messages
    found: Found


Turn = Row[jax.Array]
"""What this stage does at a tick."""
Chunk = Callable[[Weights, jax.Array, Turn], tuple[jax.Array, jax.Array]]
"""(weights of one chunk, x_BSD, row) to its output and its loss: the first chunk takes tokens for its input, the last
has a loss for an output."""


class Halves(NamedTuple):
    """A chunk's backward in two. Gradients have the weights that a half does not find left out, and None for all of
    `shared`.

    Attributes:
      to_input: (weights, x_BSD, dy_BSD, row) to gradients that are not put off, dx_BSD, and what is kept.
      to_weights: (weights, what was kept) to the gradients that were.
      nothing: zeros in the shapes and types of what is kept.
    """

    to_input: Callable[[Weights, jax.Array, jax.Array, Turn], tuple[Weights, jax.Array, Any]]
    to_weights: Callable[[Weights, Any], Weights]
    nothing: Any


def run(
    table: Table, chunk: Chunk, weights: Weights, nothing: tuple[jax.Array, jax.Array], halves: Halves | None = None
) -> Found:
    """Loss and gradients of all micro-batches, of this rank's weights and data; nothing is summed over ranks.

    Args:
      weights: varying over every axis over which micro-batches do, so that no job sums their gradients.
      nothing: zeros in the shapes and types of what a chunk gives.
      halves: of a backward, for a table that splits it.
    """
    stage, P = jax.lax.axis_index(PIPE), jax.lax.axis_size(PIPE)
    forth, back = _neighbours(P, has_ring=bool(table.rows.chunk.any()))
    run_of = jobs(chunk, weights, nothing, halves)
    branches = [_counted(job, run_of[job]) for job in table.jobs]
    to_weights = branches[-1] if halves else None
    if halves:
        # Its gradients have a conditional of their own: zeros in their place would stand beside all of the other half.
        branches[-1] = run_of[Job.IDLE]

    def tick(state: State, turn: tuple[Turn, jax.Array]) -> tuple[State, None]:
        row, branch = turn
        inputs_nBSD = _stored(state.inputs_nBSD, row.new_input, state.arrived.output_BSD)
        cotangents_nBSD = _stored(state.cotangents_nBSD, row.new_cotangent, state.arrived.cotangent_BSD)
        x_BSD, dy_BSD = inputs_nBSD[row.input], cotangents_nBSD[row.cotangent]
        before = jax.tree.map(lambda kept_n: kept_n[row.kept], state.kept_n)
        # What a branch may write to, XLA has twice, and copies forth and back in every tick. So of a stash one slot
        # goes in and out, and of the sums what is added to them comes out: zeros, where a job finds no gradients.
        sent, (added, kept) = jax.lax.switch(branch, branches, row, x_BSD, dy_BSD, before)
        # In lockstep a job may be done in vain.
        is_own = row.job == jnp.asarray(table.jobs)[branch] if table.is_in_lockstep else None
        found = _sums(state.found, added, row, is_own)
        if to_weights:
            added = jax.lax.cond(
                branch == len(branches) - 1,
                lambda row, kept: to_weights(row, x_BSD, dy_BSD, kept)[1].added,
                lambda row, kept: _found(_zeros(weights, row, set(kept))._replace(shared=None), nothing[1]),
                row,
                kept,
            )
            found = _sums(found, added, row, is_own)
        if is_own is not None:
            kept = jax.tree.map(partial(jnp.where, is_own), kept, before)
        kept_n = jax.tree.map(lambda kept_n, new: kept_n.at[row.kept].set(new), state.kept_n, kept)
        with jax.named_scope("forth"):
            output_BSD = jax.lax.ppermute(sent.output_BSD, PIPE, forth)
        with jax.named_scope("back"):
            cotangent_BSD = jax.lax.ppermute(sent.cotangent_BSD, PIPE, back)
        return State(inputs_nBSD, cotangents_nBSD, kept_n, Messages(output_BSD, cotangent_BSD), found), None

    rows = jax.tree.map(lambda column_TP: jnp.asarray(column_TP)[:, stage], table.rows)
    # In lockstep the same on all devices: so it has to look to them.
    branches_T = jnp.asarray(table.branches)[:, 0 if table.is_in_lockstep else stage]
    return jax.lax.scan(tick, _start(table, weights, *nothing, halves), (rows, branches_T))[0].found


def _neighbours(P: int, has_ring: bool) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of sender and receiver, forth and back: with several chunks a stage the last stage is followed by the
    first."""
    forth = [(s, (s + 1) % P) for s in range(P if has_ring else P - 1)]
    return forth, [(receiver, sender) for sender, receiver in forth]


def _start(table: Table, weights: Weights, nothing_BSD: jax.Array, loss: jax.Array, halves: Halves | None) -> State:
    inputs, cotangents = (jnp.stack([nothing_BSD] * slots) for slots in (table.inputs, table.cotangents))
    kept = jax.tree.map(lambda x: jnp.stack([x] * table.kept), halves.nothing) if halves else None
    return State(inputs, cotangents, kept, Messages(nothing_BSD, nothing_BSD), no_sums(weights, loss))


def no_sums(weights: Weights, loss: jax.Array) -> Found:
    """To begin with; `loss` is a zero of its type."""
    return _found(jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights), loss)


def _found(gradients: Weights, loss: jax.Array) -> Found:
    return Found(loss, gradients, jax.lax.pcast(jnp.zeros(len(Job), jnp.int32), PIPE, to="varying"))


def _zeros(weights: Weights, row: Turn, names: Set[str]) -> Weights:
    """For gradients of these weights of a chunk's layers, and of those that every stage has a copy of."""
    own = of_chunk(weights, row)
    chunks = type(own.chunks)({name: w for name, w in own.chunks.items() if name in names})
    return jax.tree.map(jnp.zeros_like, Weights(chunks, own.shared))


def _sums(found: Found, added: Found, row: Turn, is_own: jax.Array | None) -> Found:
    """With what a job adds, unless it was done in vain."""

    def of(new: jax.Array, total: jax.Array) -> jax.Array:
        return (new if is_own is None else jnp.where(is_own, new, 0)).astype(total.dtype)

    chunks, shared = found.gradients
    changed = {
        name: jax.tree.map(lambda total, new: total.at[row.chunk].add(of(new, total)), chunks[name], g)
        for name, g in added.gradients.chunks.items()
    }
    if added.gradients.shared is not None:
        shared = jax.tree.map(lambda total, new: total + of(new, total), shared, added.gradients.shared)
    return Found(
        found.loss + of(added.loss, found.loss),
        Weights(type(chunks)({**chunks, **changed}), shared),
        found.done + of(added.done, found.done),
    )


def _stored(stash_nBSD: jax.Array, slot: jax.Array, message_BSD: jax.Array) -> jax.Array:
    kept_BSD = jnp.where(slot == NOWHERE, stash_nBSD[slot], message_BSD)
    return stash_nBSD.at[slot].set(kept_BSD)


Run = Callable[[Turn, jax.Array, jax.Array, Any], tuple[Messages, Done]]


def _counted(job: Job, run: Run) -> Run:
    def run_and_count(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        with jax.named_scope(job.scope):
            sent, new = run(row, x_BSD, dy_BSD, kept)
        return sent, new._replace(added=new.added._replace(done=new.added.done.at[job].add(1)))

    return run_and_count


def jobs(chunk: Chunk, weights: Weights, nothing: tuple[jax.Array, jax.Array], halves: Halves | None) -> dict[Job, Run]:
    """(row, x_BSD, dy_BSD, what a half of a backward kept) to the messages that a job sends, and what it leaves;
    without `halves`, those of a schedule that splits no backward."""
    nothing_BSD, no_loss = nothing

    def own(row: Turn) -> Weights:
        return of_chunk(weights, row)

    def none(row: Turn) -> Weights:
        return _zeros(weights, row, set(weights.chunks) - set(halves.nothing if halves else ()))

    def idle(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        return Messages(nothing_BSD, nothing_BSD), Done(_found(none(row), no_loss), kept)

    def forward(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        y_BSD, loss = chunk(own(row), x_BSD, row)
        return Messages(y_BSD, nothing_BSD), Done(_found(none(row), loss), kept)

    def backward(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        gradients, dx_BSD = pulled(lambda weights, x_BSD: chunk(weights, x_BSD, row), dy_BSD, own(row), x_BSD)
        return Messages(nothing_BSD, dx_BSD), Done(_found(gradients, no_loss), kept)

    whole: dict[Job, Run] = {Job.IDLE: idle, Job.FORWARD: forward, Job.BACKWARD: backward}
    if halves is None:
        return whole

    def input_gradient(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        gradients, dx_BSD, kept = halves.to_input(own(row), x_BSD, dy_BSD, row)
        return Messages(nothing_BSD, dx_BSD), Done(_found(gradients, no_loss), kept)

    def weight_gradient(row: Turn, x_BSD: jax.Array, dy_BSD: jax.Array, kept: Any) -> tuple[Messages, Done]:
        return Messages(nothing_BSD, nothing_BSD), Done(_found(halves.to_weights(own(row), kept), no_loss), kept)

    return whole | {Job.INPUT_GRADIENT: input_gradient, Job.WEIGHT_GRADIENT: weight_gradient}


def of_chunk(weights: Weights, row: Turn) -> Weights:
    """Those of the chunk that this stage works on at a tick."""
    return Weights(jax.tree.map(lambda w: w[row.chunk], weights.chunks), weights.shared)


def pulled(function: Callable[..., tuple[jax.Array, jax.Array]], dy_BSD: jax.Array, *at: Any) -> tuple[Any, ...]:
    """Gradients of a chunk's inputs, of which each is one of `function`."""
    (_, loss), pull = jax.vjp(function, *at)
    return pull((dy_BSD, jnp.ones_like(loss)))
