"""Ways to write a collective so that products can run beside it (Ch. 31), for use inside `jax.shard_map`."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gathered_in_turn(x_TE: jax.Array, w_LEE: jax.Array, axis: str) -> jax.Array:
    """[T, E] through layers whose weights [E / n, E] each rank has a part of: each is gathered when it is its turn."""

    def layer(x_TE: jax.Array, part_EE: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.relu(x_TE @ jax.lax.all_gather(part_EE, axis, tiled=True)), None

    return jax.lax.scan(layer, x_TE, w_LEE)[0]


def gathered_ahead(x_TE: jax.Array, w_LEE: jax.Array, axis: str) -> jax.Array:
    """The same, each weight gathered while the layer before it multiplies: one more whole weight is held.

    Source: Ch. 31, `ch31.prefetch`.
    """

    def gathered(part_EE: jax.Array) -> jax.Array:
        return jax.lax.all_gather(part_EE, axis, tiled=True)

    def layer(carried: tuple[jax.Array, jax.Array], next_EE: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        x_TE, whole_EE = carried
        return (jax.nn.relu(x_TE @ whole_EE), gathered(next_EE)), None

    (x_TE, last_EE), _ = jax.lax.scan(layer, (x_TE, gathered(w_LEE[0])), w_LEE[1:])
    return jax.nn.relu(x_TE @ last_EE)


def gathered_product(x_TE: jax.Array, w_EF: jax.Array, axis: str) -> jax.Array:
    """[T / n, E] of each rank, gathered, times [E, F / n]: [T, F / n]."""
    return jax.lax.all_gather(x_TE, axis, tiled=True) @ w_EF


def ring_product(x_TE: jax.Array, w_EF: jax.Array, axis: str) -> jax.Array:
    """The same as a collective matmul: n products of a part each, while the next part comes from the neighbour. In a
    loop, since XLA makes one product of several with the same factor, which then waits for all parts.

    Source: Wang et al. 2023 (doi:10.1145/3567955.3567959); `ch31.collective_matmul`.
    """

    def hop(x_TE: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return jax.lax.ppermute(x_TE, axis, _to_next(axis)), x_TE @ w_EF

    last_TE, parts_NTF = jax.lax.scan(hop, x_TE, length=jax.lax.axis_size(axis) - 1)
    return _in_order([*parts_NTF, last_TE @ w_EF], axis)


def unrolled_ring_product(x_TE: jax.Array, w_EF: jax.Array, axis: str) -> jax.Array:
    """The same, hop by hop."""
    parts = [x_TE @ w_EF]
    for _ in range(jax.lax.axis_size(axis) - 1):
        x_TE = jax.lax.ppermute(x_TE, axis, _to_next(axis))
        parts.append(x_TE @ w_EF)
    return _in_order(parts, axis)


def _to_next(axis: str) -> list[tuple[int, int]]:
    ranks = jax.lax.axis_size(axis)
    return [(source, (source + 1) % ranks) for source in range(ranks)]


def _in_order(parts: list[jax.Array], axis: str) -> jax.Array:
    """Rows of all ranks, of parts that came from ever further back."""
    order_N = (jax.lax.axis_index(axis) - jnp.arange(len(parts))) % len(parts)
    return jnp.stack(parts)[order_N].reshape(-1, parts[0].shape[-1])


def passed_after(x_TE: jax.Array, w_HEE: jax.Array, axis: str) -> jax.Array:
    """[T, E] that go round a ring, multiplied at each hop, each sent on when its product is there."""
    return _passed(x_TE, w_HEE, axis, is_early=False)


def passed_before(x_TE: jax.Array, w_HEE: jax.Array, axis: str) -> jax.Array:
    """The same, each sent on before it is multiplied: the permute and the product do not wait for one another."""
    return _passed(x_TE, w_HEE, axis, is_early=True)


def _passed(x_TE: jax.Array, w_HEE: jax.Array, axis: str, is_early: bool) -> jax.Array:
    def hop(carried: tuple[jax.Array, jax.Array], w_EE: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        x_TE, total_TE = carried
        product_TE = x_TE @ w_EE
        if not is_early:
            x_TE, product_TE = jax.lax.optimization_barrier((x_TE, product_TE))
        return (jax.lax.ppermute(x_TE, axis, _to_next(axis)), total_TE + product_TE), None

    return jax.lax.scan(hop, (x_TE, jnp.zeros_like(x_TE)), w_HEE)[0][1]
