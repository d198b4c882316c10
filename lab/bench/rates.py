"""What one device does alone: products, passes over memory, transposes by threads; and what its kernels lose to communication beside them.

Each is a chain of dependent calls in one compiled program. The time of a call is the difference of a long chain and a short one, so that
launching the program does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab import fit
from lab.bench.record import Bench
from lab.clock import timed
from lab.ledger import Kind
from lab.step_time import Rate, Rates

SHORT, LONG = 2, 22
RUNS = 5
PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 1024, 1024), (8192, 4096, 4096), (8192, 1024, 4096), (16384, 5632, 2048))
"""(m, n, k), k the dim that is summed over; each chain alternates with (m, k, n)."""
PASSES = tuple(2**power for power in range(16, 31, 2))
"""Elements of float32."""
TURNED = (16, 4, 1024, 1024)
BESIDE = (8192, 4096, 256 << 20)
"""Rows and columns of the products, and bytes of the sum beside them."""
CHAINS = {
    Kind.ALL_REDUCE: ("all_reduce",),
    Kind.ALL_GATHER: ("reduce_scatter", "all_gather"),
    Kind.REDUCE_SCATTER: ("reduce_scatter", "all_gather"),
    Kind.ALL_TO_ALL: ("all_to_all",),
    Kind.COLLECTIVE_PERMUTE: ("permute",),
}
"""Which chain of `lab bench` tells the rate of a kind."""


def rates(mesh: Mesh, bench: Bench) -> Rates:
    """Measured now on the first device of a mesh, and on all of them for the contention; links as `bench` found them."""
    return Rates(product=_product_rate(), memory=tuple(_passes()), scattered_bytes_per_s=_scattered(), links=links(bench), contention=contention(mesh))


def links(bench: Bench) -> dict[Kind, Rate]:
    """Alpha and beta of JAX's own collectives, as far as they were timed."""
    fits = {chain.primitives: bench.fit(chain) for chain in bench.by_chain if set(chain.algorithms) == {"lax"}}
    lines = {kind: fits[chain].line for kind, chain in CHAINS.items() if fits.get(chain)}
    return {kind: Rate(line.alpha_s, line.bytes_per_s) for kind, line in lines.items()}


def contention(mesh: Mesh) -> float:
    """(both - products alone) / sum alone, of products and a sum over all devices that do not wait for each other."""
    rows, columns, size = BESIDE
    split, whole = PartitionSpec(mesh.axis_names), PartitionSpec()
    a, b, x = _normal((mesh.size * rows, columns)), _normal((columns, columns)), jnp.ones(mesh.size * size // 2, jnp.bfloat16)
    args = [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in ((a, split), (b, whole), (x, split))]

    def chain(multiplies: bool, sums: bool, repeats: int) -> Callable[..., Any]:
        def both(a_MN: jax.Array, b_NN: jax.Array, x_K: jax.Array) -> tuple[jax.Array, jax.Array]:
            for _ in range(repeats):
                total_K = jax.lax.pcast(jax.lax.psum(x_K, mesh.axis_names), mesh.axis_names, to="varying") if sums else x_K
                for _ in range(8 if multiplies else 0):
                    a_MN = jax.lax.optimization_barrier(a_MN @ b_NN)
                a_MN, x_K = jax.lax.optimization_barrier((a_MN, total_K))
            return a_MN, x_K

        return jax.shard_map(both, mesh=mesh, in_specs=(split, whole, split), out_specs=(split, split))

    products, sums, together = (_a_call(partial(chain, *which), *args) for which in ((True, False), (False, True), (True, True)))
    return (together - products) / sums


def _product_rate() -> Rate:
    points = [fit.Point(0, 1, 2.0 * m * n * k, _product_s(m, n, k)) for m, n, k in PRODUCTS]
    line = fit.line(points)
    return Rate(line.alpha_s, line.bytes_per_s)


def _product_s(m: int, n: int, k: int) -> float:
    def chain(repeats: int) -> Callable[..., jax.Array]:
        def products(a_MK: jax.Array, b_KN: jax.Array, c_NK: jax.Array) -> jax.Array:
            for _ in range(repeats):
                a_MK = jax.lax.optimization_barrier(jax.lax.optimization_barrier(a_MK @ b_KN) @ c_NK)
            return a_MK

        return products

    return _a_call(chain, _normal((m, k)), _normal((k, n)), _normal((n, k))) / 2


def _passes() -> Iterator[tuple[float, float]]:
    def chain(repeats: int) -> Callable[..., jax.Array]:
        def passes(x_N: jax.Array) -> jax.Array:
            for _ in range(repeats):
                x_N = jax.lax.optimization_barrier(x_N + 1)
            return x_N

        return passes

    for elements in PASSES:
        yield 2.0 * 4 * elements, _a_call(chain, jnp.ones(elements, jnp.float32))


def _scattered() -> float:
    """There and back again, to another width each time, so that XLA writes a loop and no tiles."""

    def chain(repeats: int) -> Callable[..., jax.Array]:
        def turns(x_BGST: jax.Array) -> jax.Array:
            for _ in range(repeats):
                y_BTSG = jax.lax.optimization_barrier(x_BGST.astype(jnp.float32).transpose(0, 3, 2, 1))
                x_BGST = jax.lax.optimization_barrier(y_BTSG.astype(jnp.bfloat16).transpose(0, 3, 2, 1))
            return x_BGST

        return turns

    x = jnp.ones(TURNED, jnp.bfloat16)
    return 2 * (2 + 4) * x.size / _a_call(chain, x)


def _a_call(chain: Callable[[int], Callable[..., Any]], *args: jax.Array) -> float:
    """Seconds of one of the chain's calls."""
    short, long = (_median_s(jax.jit(chain(repeats)), args) for repeats in (SHORT, LONG))
    return max(long - short, 1e-9) / (LONG - SHORT)


def _median_s(function: Callable[..., Any], args: tuple[jax.Array, ...]) -> float:
    jax.block_until_ready(function(*args))
    return median(timed(lambda: jax.block_until_ready(function(*args)))[1] for _ in range(RUNS))


def _normal(shape: tuple[int, int]) -> jax.Array:
    """Random, since zeros draw less power; divided by the root of the rows, so that a product keeps its scale."""
    return (jax.random.normal(jax.random.key(0), shape) * shape[0] ** -0.5).astype(jnp.bfloat16)
