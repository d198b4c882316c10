"""Runs a pipeline's table inside `shard_map`: one loop over ticks, in which each stage does its own job and hands messages on (Ch. 16).

What a forward leaves behind is its input alone: going backwards, a stage computes its chunk again (Huang et al. 2019). So the
stashes hold what the schedule has in flight. All that a tick sends along `pipe` are one message forward and one backward.

A job is a branch of a conditional, so that a stage computes nothing in the bubble. Stages take different branches, but all ranks
of one stage the same one: a branch may communicate along every axis but `pipe`. Doing all jobs in all T ticks and keeping one result
would need no conditional, and T / m times the products: 22 / 8 for 1F1B of 8 micro-batches on 4 stages.

What is run is what a schedule sends and holds, not always its speed. Neighbours end a tick together, so it lasts as long as its longest
job: with backwards of 3 forwards, 1F1B of 8 micro-batches on 4 stages takes 58 forwards and not 44 as GPipe and `simulate` have it. All stages
forward in one tick and backward in the next would take 44 as well, but stage 0 would hold 2 P - 1 micro-batches: where every stage works in
every tick, P - 1 further ones enter while a gradient comes back. 1F1B is there for its P, so its order stays. And each half of a split backward computes its chunk again, the second with all products of a whole one: some 6 forwards a micro-batch instead of 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lab.pipelines.table import NOWHERE, Job, Row, Table
from meshes.axes import PIPE


class Weights(NamedTuple):
    """Of one rank: of its chunks, stacked along the first dim of each array; and those that every stage has a copy of."""

    chunks: Any
    shared: Any


class Found(NamedTuple):
    """Sums over micro-batches, float32: of the loss (on the last stage) and of the weights' gradients; and how often each `Job` was done, int32."""

    loss: jax.Array
    gradients: Weights
    done: jax.Array


class Messages(NamedTuple):
    """To the next stage what a chunk gives, to the one before the gradient of what it was given."""

    output_BSD: jax.Array
    cotangent_BSD: jax.Array


class State(NamedTuple):
    """What a stage carries from tick to tick: messages that wait (n of each), those that just arrived, and sums."""

    inputs_nBSD: jax.Array
    cotangents_nBSD: jax.Array
    arrived: Messages
    found: Found


Chunk = Callable[[Weights, jax.Array, Row], tuple[jax.Array, jax.Array]]
"""(weights of one chunk, x_BSD, row) to its output and its loss: the first chunk takes tokens for its input, the last has a loss for an output."""


def run(table: Table, chunk: Chunk, weights: Weights, nothing: tuple[jax.Array, jax.Array]) -> Found:
    """Loss and gradients of all micro-batches, of this rank's weights and data; nothing is summed over ranks.

    Args:
      weights: varying over every axis over which micro-batches do, so that no job sums their gradients.
      nothing: zeros in the shapes and types of what a chunk gives.
    """
    stage, P = jax.lax.axis_index(PIPE), jax.lax.axis_size(PIPE)
    forth, back = _neighbours(P, has_ring=bool(table.rows.chunk.any()))
    branches = [_counted(job, run) for job, run in _jobs(chunk, weights, nothing[0]).items() if job in table.jobs]

    def tick(state: State, row: Row) -> tuple[State, None]:
        inputs_nBSD = _stored(state.inputs_nBSD, row.new_input, state.arrived.output_BSD)
        cotangents_nBSD = _stored(state.cotangents_nBSD, row.new_cotangent, state.arrived.cotangent_BSD)
        branch = jnp.searchsorted(np.array(table.jobs), row.job)
        sent, found = jax.lax.switch(branch, branches, row, inputs_nBSD[row.input], cotangents_nBSD[row.cotangent], state.found)
        with jax.named_scope("forth"):
            output_BSD = jax.lax.ppermute(sent.output_BSD, PIPE, forth)
        with jax.named_scope("back"):
            cotangent_BSD = jax.lax.ppermute(sent.cotangent_BSD, PIPE, back)
        return State(inputs_nBSD, cotangents_nBSD, Messages(output_BSD, cotangent_BSD), found), None

    rows = jax.tree.map(lambda column_TP: jnp.asarray(column_TP)[:, stage], table.rows)
    return jax.lax.scan(tick, _start(table, weights, *nothing), rows)[0].found


def _neighbours(P: int, has_ring: bool) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Pairs of sender and receiver, forth and back: with several chunks a stage the last stage is followed by the first."""
    forth = [(s, (s + 1) % P) for s in range(P if has_ring else P - 1)]
    return forth, [(receiver, sender) for sender, receiver in forth]


def _start(table: Table, weights: Weights, nothing_BSD: jax.Array, loss: jax.Array) -> State:
    inputs, cotangents = (jnp.stack([nothing_BSD] * slots) for slots in (table.inputs, table.cotangents))
    gradients = jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights)
    done = jax.lax.pcast(jnp.zeros(len(Job), jnp.int32), PIPE, to="varying")
    return State(inputs, cotangents, Messages(nothing_BSD, nothing_BSD), Found(loss, gradients, done))


def _stored(stash_nBSD: jax.Array, slot: jax.Array, message_BSD: jax.Array) -> jax.Array:
    kept_BSD = jnp.where(slot == NOWHERE, stash_nBSD[slot], message_BSD)
    return stash_nBSD.at[slot].set(kept_BSD)


Run = Callable[[Row, jax.Array, jax.Array, Found], tuple[Messages, Found]]


def _counted(job: Job, run: Run) -> Run:
    def run_and_count(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        with jax.named_scope(job.scope):
            sent, found = run(row, x_BSD, dy_BSD, found)
        return sent, found._replace(done=found.done.at[job].add(1))

    return run_and_count


def _jobs(chunk: Chunk, weights: Weights, nothing_BSD: jax.Array) -> dict[Job, Run]:
    """(row, x_BSD, dy_BSD, found) to the messages that a job sends, and the sums with what it adds."""

    def own(row: Row) -> Weights:
        return Weights(jax.tree.map(lambda w: w[row.chunk], weights.chunks), weights.shared)

    def pulled(function: Callable, dy_BSD: jax.Array, *at: Any) -> tuple[Any, ...]:
        (_, loss), pull = jax.vjp(function, *at)
        return pull((dy_BSD, jnp.ones_like(loss)))

    def idle(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        return Messages(nothing_BSD, nothing_BSD), found

    def forward(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        y_BSD, loss = chunk(own(row), x_BSD, row)
        return Messages(y_BSD, nothing_BSD), found._replace(loss=found.loss + loss)

    def backward(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        gradients, dx_BSD = pulled(partial(chunk, row=row), dy_BSD, own(row), x_BSD)
        return Messages(nothing_BSD, dx_BSD), _added(found, gradients, row)

    def input_gradient(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        (dx_BSD,) = pulled(lambda x_BSD: chunk(own(row), x_BSD, row), dy_BSD, x_BSD)
        return Messages(nothing_BSD, dx_BSD), found

    def weight_gradient(row: Row, x_BSD: jax.Array, dy_BSD: jax.Array, found: Found) -> tuple[Messages, Found]:
        (gradients,) = pulled(lambda weights: chunk(weights, x_BSD, row), dy_BSD, own(row))
        return Messages(nothing_BSD, nothing_BSD), _added(found, gradients, row)

    return dict(zip(Job, (idle, forward, backward, input_gradient, weight_gradient), strict=True))


def _added(found: Found, gradients: Weights, row: Row) -> Found:
    chunks = jax.tree.map(lambda total, g: total.at[row.chunk].add(g.astype(total.dtype)), found.gradients.chunks, gradients.chunks)
    shared = jax.tree.map(lambda total, g: total + g.astype(total.dtype), found.gradients.shared, gradients.shared)
    return found._replace(gradients=Weights(chunks, shared))
