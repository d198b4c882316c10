"""Experts on several ranks without slots: each rank sends every copy of its tokens, as many as there are, and nothing
is dropped.

Inside `jax.shard_map`. Dims: T tokens of one rank, k experts of each, N = T k copies, P ranks, E experts of which a
rank has e = E / P, D embed. Source: Ch. 18, `A39`; Gale et al. 2022 (MegaBlocks).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


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
Own = Callable[[jax.Array, jax.Array], jax.Array]


def ragged(x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """The parts that ranks have for this one, each where `back` says, among `rows` rows; zeros elsewhere. Not on
    CPUs."""
    # As the rows are, different on all ranks: the counts, which are sorted numbers, do not say so.
    nothing = jnp.zeros_like(x_ND, shape=(rows, x_ND.shape[1]))
    return jax.lax.ragged_all_to_all(x_ND, nothing, out.start, out.size, out.there, back.size, axis_name=axis)


def padded(x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """The same by an all-to-all of parts as large as the smaller buffer: no part can be larger."""
    most = min(x_ND.shape[0], rows)
    row_M = jnp.arange(most)
    x_PMD = x_ND.at[jnp.where(row_M < out.size[:, None], out.start[:, None] + row_M, x_ND.shape[0])].get(
        mode="fill", fill_value=0
    )
    y_PMD = jax.lax.all_to_all(x_PMD, axis, 0, 0, tiled=True)
    place_PM = jnp.where(row_M < back.size[:, None], back.start[:, None] + row_M, rows)
    return jnp.zeros_like(x_ND, shape=(rows, x_ND.shape[1])).at[place_PM].set(y_PMD, mode="drop")


@partial(jax.custom_vjp, nondiff_argnums=(0, 4, 5))
def sent(move: Move, x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> jax.Array:
    """A move is a permutation of rows: its transpose is the way back."""
    return move(x_ND, out, back, rows, axis)


Kept = tuple[Parts, Parts, int]
"""What went out and came back, and this rank's rows."""


def _sent(move: Move, x_ND: jax.Array, out: Parts, back: Parts, rows: int, axis: str) -> tuple[jax.Array, Kept]:
    return move(x_ND, out, back, rows, axis), (out, back, x_ND.shape[0])


def _pulled(move: Move, rows: int, axis: str, kept: Kept, g_RD: jax.Array) -> tuple[jax.Array, None, None]:
    out, back, own_rows = kept
    return move(g_RD, back, out, own_rows, axis), None, None


sent.defvjp(_sent, _pulled)


def mixture(
    x_TD: jax.Array,
    expert_Tk: jax.Array,
    weight_Tk: jax.Array,
    experts: int,
    visit: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """[T, D]: the weighted results of each token's k experts.

    Args:
      visit: (x_ND, count_E) to z_ND, copies of tokens sorted by expert to what their experts make of them.
    """
    T, k = expert_Tk.shape
    order_N = jnp.argsort(expert_Tk.reshape(-1), stable=True)
    count_E = jnp.sum(expert_Tk.reshape(-1, 1) == jnp.arange(experts), 0, dtype=jnp.int32)
    z_ND = visit(x_TD[order_N // k], count_E)
    return jnp.einsum(
        "tk,tkd->td", weight_Tk.astype(z_ND.dtype), jnp.zeros_like(z_ND).at[order_N].set(z_ND).reshape(T, k, -1)
    )


def over_ranks(x_ND: jax.Array, count_E: jax.Array, own: Own, axis: str, move: Move) -> jax.Array:
    """Copies of tokens, sorted by expert, to the ranks of their experts and back.

    Args:
      own: (y_RD, count_e) to z_RD, rows sorted by expert to what this rank's experts make of them.

    Cost: an all-to-all of E + P counts, and two moves: of N rows, and of the N P for which an expert's rank must have
    room.
    """
    N, P = x_ND.shape[0], jax.lax.axis_size(axis)
    out, back, arrived_Pe = agreed(count_E.reshape(P, -1), N, axis)
    z_RD = by_own_experts(sent(move, x_ND, out, back, P * N, axis), arrived_Pe, own)
    return sent(move, z_RD, back, out, N, axis)


def agreed(count_Pe: jax.Array, room: int, axis: str) -> tuple[Parts, Parts, jax.Array]:
    """What goes out, what comes back, and how many rows of each rank arrive for each own expert: `room` rows apart, [P,
    e]."""
    P, e = count_Pe.shape
    size_P = count_Pe.sum(1)
    start_P = jnp.cumsum(size_P) - size_P
    told_PE = jax.lax.all_to_all(jnp.concatenate([count_Pe, start_P[:, None]], 1), axis, 0, 0, tiled=True)
    arrived_Pe, origin_P = told_PE[:, :e], told_PE[:, e]
    here_P = jnp.full(P, jax.lax.axis_index(axis) * room, jnp.int32)
    block_P = jnp.arange(P, dtype=jnp.int32) * room
    return Parts(start_P, size_P, here_P), Parts(block_P, arrived_Pe.sum(1), origin_P), arrived_Pe


def by_own_experts(y_RD: jax.Array, arrived_Pe: jax.Array, own: Own) -> jax.Array:
    """Each arrived row through its expert; blocks of rows are one of each rank, sorted by expert."""
    row_M = jnp.arange(y_RD.shape[0] // arrived_Pe.shape[0])
    # Rows after those that arrived belong to no expert, e, and come last.
    expert_R = (row_M >= jnp.cumsum(arrived_Pe, 1)[..., None]).sum(1).reshape(-1)
    order_R = jnp.argsort(expert_R, stable=True)
    z_RD = own(y_RD[order_R], arrived_Pe.sum(0))
    return jnp.zeros_like(z_RD).at[order_R].set(z_RD)
