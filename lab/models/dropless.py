"""Experts on several ranks without slots: each rank sends every copy of its tokens, as many as there are, and nothing is dropped.

Inside `jax.shard_map`. Dims: T tokens of one rank, k experts of each, N = T k copies, P ranks, E experts of which a rank has e = E / P, D embed.
Source: Ch. 18, `A39`; Gale et al. 2022 (MegaBlocks).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lab.models import experts


class Parts(NamedTuple):
    """One part of a buffer for each rank, [P] int32 each.

    Attributes:
      start: its first row here.
      size: its rows.
      there: its first row on the other rank.
    """

    start: jax.Array
    size: jax.Array
    there: jax.Array


Move = Callable[[jax.Array, Parts, Parts, int, str], jax.Array]


def ragged(x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """The parts that ranks have for this one, each where `back` says, among `rows` rows; zeros elsewhere. Not on CPUs."""
    nothing = jax.lax.pcast(jnp.zeros((rows, x_ND.shape[1]), x_ND.dtype), axis, to="varying")
    return jax.lax.ragged_all_to_all(x_ND, nothing, out.start, out.size, out.there, back.size, axis_name=axis)


def padded(x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """The same by an all-to-all of parts as large as the smaller buffer: no part can be larger."""
    most = min(x_ND.shape[0], rows)
    row_M = jnp.arange(most)
    x_PMD = x_ND.at[jnp.where(row_M < out.size[:, None], out.start[:, None] + row_M, x_ND.shape[0])].get(mode="fill", fill_value=0)
    y_PMD = jax.lax.all_to_all(x_PMD, axis, 0, 0, tiled=True)
    place_PM = jnp.where(row_M < back.size[:, None], back.start[:, None] + row_M, rows)
    nothing = jax.lax.pcast(jnp.zeros((rows, x_ND.shape[1]), x_ND.dtype), axis, to="varying")
    return nothing.at[place_PM].set(y_PMD, mode="drop")


@partial(jax.custom_vjp, nondiff_argnums=(0, 4, 5))
def sent(move: Move, x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """A move is a permutation of rows: its transpose is the way back."""
    return move(x_ND, out, back, rows, axis)


def _sent(move: Move, x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> tuple[jax.Array, tuple]:
    return move(x_ND, out, back, rows, axis), (out, back, x_ND.shape[0])


def _pulled(move: Move, rows: int, axis: str, kept: tuple, g_RD: jax.Array) -> tuple:
    out, back, own_rows = kept
    return move(g_RD, back, out, own_rows, axis), None, None


sent.defvjp(_sent, _pulled)


def mixture(x_TD: jax.Array, gates_TE: jax.Array, w_eDD: jax.Array, k: int, axis: str, move: Move) -> jax.Array:
    """[T, D]: the weighted results of each token's k experts, an expert one matrix.

    Cost: an all-to-all of E + P counts, and two moves: of N rows, and of the N P for which an expert's rank must have room.
    """
    T, N, P, e = x_TD.shape[0], x_TD.shape[0] * k, jax.lax.axis_size(axis), w_eDD.shape[0]
    expert_Tk = experts.chosen(gates_TE, k)
    weight_Tk = experts.weights(jnp.take_along_axis(gates_TE, expert_Tk, -1))
    order_N = jnp.argsort(expert_Tk.reshape(-1), stable=True)
    count_Pe = jnp.bincount(expert_Tk.reshape(-1), length=P * e).astype(jnp.int32).reshape(P, e)
    out, back, arrived_Pe = agreed(count_Pe, N, axis)
    y_RD = sent(move, x_TD[order_N // k], out, back, P * N, axis)
    z_RD = by_own_experts(y_RD, arrived_Pe, w_eDD)
    z_ND = sent(move, z_RD, back, out, N, axis)
    return jnp.einsum("tk,tkd->td", weight_Tk, jnp.zeros_like(z_ND).at[order_N].set(z_ND).reshape(T, k, -1))


def agreed(count_Pe: jax.Array, room: int, axis: str) -> tuple[Parts, Parts, jax.Array]:
    """What goes out, what comes back, and how many rows of each rank arrive for each own expert: `room` rows apart, [P, e]."""
    P, e = count_Pe.shape
    size_P = count_Pe.sum(1)
    start_P = jnp.cumsum(size_P) - size_P
    told_PE = jax.lax.all_to_all(jnp.concatenate([count_Pe, start_P[:, None]], 1), axis, 0, 0, tiled=True)
    arrived_Pe, origin_P = told_PE[:, :e], told_PE[:, e]
    place = jnp.broadcast_to(jax.lax.axis_index(axis) * room, (P,)).astype(jnp.int32)
    block_P = jnp.arange(P, dtype=jnp.int32) * room
    return Parts(start_P, size_P, place), Parts(jax.lax.pcast(block_P, axis, to="varying"), arrived_Pe.sum(1), origin_P), arrived_Pe


def by_own_experts(y_RD: jax.Array, arrived_Pe: jax.Array, w_eDD: jax.Array) -> jax.Array:
    """Each arrived row through its expert; blocks of rows are one of each rank, sorted by expert."""
    P, e = arrived_Pe.shape
    row_M = jnp.arange(y_RD.shape[0] // P)
    # Rows after those that arrived belong to no expert, e, and come last.
    expert_R = (row_M >= jnp.cumsum(arrived_Pe, 1)[..., None]).sum(1).reshape(-1)
    order_R = jnp.argsort(expert_R, stable=True)
    z_RD = jax.lax.ragged_dot(y_RD[order_R], w_eDD, arrived_Pe.sum(0))
    return jnp.zeros_like(z_RD).at[order_R].set(z_RD)
