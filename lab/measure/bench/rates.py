"""What one device does alone: products, passes over memory, transposes by threads; and what its kernels lose to
communication beside them.

Each is a chain of dependent calls in one compiled program. The time of a call is the difference of a long chain and a
short one, so that launching the program does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.core.clock import timed
from lab.core.known import known
from lab.hlo.kernels import Does, Kernel, steps
from lab.measure import fit
from lab.measure.bench.wires import Watch, wires
from lab.measure.rates.curves import Curve, Rate
from lab.measure.step_time import MeasuredRates
from lab.meshes.errors import UsageError

SHORT, LONG, LONGER = 2, 22, 402
RUNS = 5
MIN_RESOLVABLE_CALL_S = 1e-4
"""A call that takes longer than this needs no longer chain to stand out [s]."""
PRODUCTS = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 1024, 1024),
    (8192, 4096, 4096),
    (8192, 1024, 4096),
    (16384, 5632, 2048),
)
"""(m, n, k), k the dim that is summed over; each chain alternates with (m, k, n)."""
PASSES = tuple(2**power for power in range(16, 31, 2))
"""Elements of float32."""
CACHE_FLUSH_BYTES, MOST_ARRAYS = 256 << 20, 200
"""Bytes of what passes go through, several times a card's cache, in so many arrays at most."""
TRANSPOSE_SHAPE = (4, 8, 4, 2048, 2048)
UNTUNED: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}
"""What a program is compiled with so that XLA tries no kernels on the card, as it cannot ahead of time."""
OVERLAP_SHAPE = (8192, 4096, 256 << 20)
"""Rows and columns of what kernels work on, and bytes of the sum beside them."""


def rates(mesh: Mesh, watch: Watch = iter) -> MeasuredRates:
    """Measured now on the first device of a mesh, and on all of them for their links and for what communication costs
    kernels; a mesh of one device has no links.

    Raises:
      UsageError: XLA wrote the transpose in another way, so that there is nothing to measure, or times that no rate
        explains.
    """
    slowed_products, slowed_memory = slowed(mesh) if mesh.size > 1 else (0.0, 0.0)
    return MeasuredRates(
        _product_rate(),
        Curve(tuple(_passes())),
        _scattered(),
        wires(mesh, watch) if mesh.size > 1 else {},
        slowed_products,
        slowed_memory,
    )


def slowed(mesh: Mesh) -> tuple[float, float]:
    """(both - kernels alone) / sum alone, of a sum over all devices and of products, then passes over memory, that do
    not wait for it."""
    rows, columns, size = OVERLAP_SHAPE
    taken = partial(round_s, mesh, size, (rows, columns))
    wire = taken(_pass, 0, sums=True)
    products, passes = (
        (taken(kernel, count, sums=True) - taken(kernel, count, sums=False)) / wire
        for kernel, count in KERNELS_BESIDE.items()
    )
    return products, passes


def round_s(
    mesh: Mesh, size: int, shape: tuple[int, int], kernel: Callable[..., jax.Array], count: int, *, sums: bool
) -> float:
    """Seconds of `count` kernels on [rows, columns] of each device, and, where wanted, of a sum of `size` bytes beside
    them."""
    (rows, columns), split, whole = shape, PartitionSpec(mesh.axis_names), PartitionSpec()
    a, b, x = (
        _normal((mesh.size * rows, columns)),
        _normal((columns, columns)),
        jnp.ones(mesh.size * size // 2, jnp.bfloat16),
    )
    args = [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in ((a, split), (b, whole), (x, split))]

    def chain(repeats: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
        def rounds(a_MN: jax.Array, b_NN: jax.Array, x_K: jax.Array) -> tuple[jax.Array, jax.Array]:
            for _ in range(repeats):
                total_K = (
                    jax.lax.pcast(jax.lax.psum(x_K, mesh.axis_names), mesh.axis_names, to="varying") if sums else x_K
                )
                for _ in range(count):
                    a_MN = jax.lax.optimization_barrier(kernel(a_MN, b_NN))
                a_MN, x_K = jax.lax.optimization_barrier((a_MN, total_K))
            return a_MN, x_K

        return jax.shard_map(rounds, mesh=mesh, in_specs=(split, whole, split), out_specs=(split, split))

    return _a_call(chain, *args)


def _product(a_MN: jax.Array, b_NN: jax.Array) -> jax.Array:
    return a_MN @ b_NN


def _pass(a_MN: jax.Array, b_NN: jax.Array) -> jax.Array:
    return a_MN + 1


KERNELS_BESIDE = {_product: 8, _pass: 64}
"""So many of each take longer than the sum."""


def _product_rate() -> Rate:
    points = [fit.Point(0, 1, 2.0 * m * n * k, _product_s(m, n, k)) for m, n, k in PRODUCTS]
    line = fit.line(points)
    if line is None:
        raise UsageError(
            f"products took {', '.join(f'{point.seconds:.3g} s' for point in points)}: no launch time and rate above "
            "zero fit these; measure again"
        )
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
    for elements in PASSES:
        yield (
            2.0 * 4 * elements,
            _a_call(chain_of_passes, *(jnp.full(elements, i, jnp.float32) for i in range(_arrays(elements)))),
        )


def chain_of_passes(repeats: int) -> Callable[..., list[jax.Array]]:
    """Over several arrays in turn, together larger than a cache, as the next kernel of a step seldom finds what it
    reads in one.

    Each adds a number of the one before, without which GPUs may run several at once. Arrays that a short chain does not
    reach are no results: to be one an argument is copied, and the copies would be taken for passes that the short chain
    made.
    """

    def passes(*xs_N: jax.Array) -> list[jax.Array]:
        new_N = list(xs_N)
        last_N = new_N[-1]
        for i in range(repeats):
            new_N[i % len(new_N)] = last_N = jax.lax.optimization_barrier(new_N[i % len(new_N)] + last_N[0])
        return new_N[:repeats]

    return passes


def _arrays(elements: int) -> int:
    return max(2, min(MOST_ARRAYS, CACHE_FLUSH_BYTES // (4 * elements)))


def _scattered() -> float:
    """A transpose between layouts of whole programs, since inside one XLA would rather change the layout; untuned, so
    that no other kernel is tried."""
    x = jnp.ones(TRANSPOSE_SHAPE, jnp.bfloat16)
    turn = (
        jax.jit(lambda x_BKGST: x_BKGST.astype(jnp.float32).transpose(0, 1, 4, 3, 2))
        .lower(x)
        .compile(compiler_options=UNTUNED)
    )
    (kernel,) = [step for step in steps(known(turn.as_text())) if isinstance(step, Kernel)]
    if kernel.does is not Does.TRANSPOSE:
        raise UsageError(
            f"XLA transposes {x.shape} in {kernel.name}, not element by element; the rate of such kernels cannot be "
            "measured"
        )
    launch_s = _median_s(jax.jit(lambda x: x + 1), (jnp.ones(1),))
    seconds = _median_s(turn, (x,)) - launch_s
    if seconds <= 0:
        raise UsageError("a transpose takes no longer than an empty program; the device may be busy: measure again")
    return kernel.bytes / seconds


def _a_call(chain: Callable[[int], Callable[..., Any]], *args: jax.Array) -> float:
    """Seconds of one of the chain's calls; where they are few, of a longer chain."""
    short = _median_s(jax.jit(chain(SHORT)), args)
    for repeats in (LONG, LONGER):
        seconds = (_median_s(jax.jit(chain(repeats)), args) - short) / (repeats - SHORT)
        if seconds > MIN_RESOLVABLE_CALL_S:
            break
    if seconds <= 0:
        raise UsageError(
            f"a chain of {repeats} calls takes no longer than one of {SHORT}; the device may be busy: measure again"
        )
    return seconds


def _median_s(function: Callable[..., Any], args: tuple[jax.Array, ...]) -> float:
    jax.block_until_ready(function(*args))
    return median(timed(lambda: jax.block_until_ready(function(*args)))[1] for _ in range(RUNS))


def _normal(shape: tuple[int, int]) -> jax.Array:
    """Random, since zeros draw less power; divided by the root of the columns, so that a product keeps its scale."""
    return (jax.random.normal(jax.random.key(0), shape) * shape[-1] ** -0.5).astype(jnp.bfloat16)
