"""Sums and times of thousands of all_reduces in one kernel beside `lax.psum`, on the GPUs at hand; run
`CUDA_MODULE_LOADING=EAGER python -m tests.benchmarks.bench_one_kernel`.

A time is the difference of a long and a short chain over the calls that the long one has more: a program begins with
what is no call's.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lab import collectives
from lab.core.clock import timed

NAMES = ("two_shot", "lax")
SIZES = [4**k for k in (1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15)]
"""Bytes of a device's array."""
LARGE = 64 << 20
FACTOR, SEED = 1664525, 2654435761
"""So that no sum is told by another's; of linear congruences."""

Run = Callable[[jax.Array], jax.Array]


def compiled(kernel: Run, mesh: Mesh, elements: int) -> Run:
    spec = PartitionSpec(mesh.axis_names)
    x = jax.ShapeDtypeStruct((mesh.size * elements,), jnp.uint32, sharding=NamedSharding(mesh, spec))
    return jax.jit(jax.shard_map(kernel, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0).lower(x).compile()


def summed(x_N: jax.Array, name: str) -> jax.Array:
    return collectives.all_reduce(x_N, "devices", algorithm=name)


def chain(name: str, calls: int, x_N: jax.Array) -> jax.Array:
    for _ in range(calls):
        x_N = summed(x_N, name)
    return x_N


def mixed(name: str, _: object, x_N: jax.Array) -> jax.Array:
    return summed(x_N, name) * jnp.uint32(FACTOR) + jax.lax.axis_index("devices").astype(jnp.uint32)


def mixed_chain(name: str, x_N: jax.Array) -> jax.Array:
    for call in range(8):
        x_N = mixed(name, call, x_N)
    return x_N


def mixed_loop(name: str, x_N: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 100, partial(mixed, name), x_N)


def equal(mesh: Mesh, elements: int, kernel: Callable[[str, jax.Array], jax.Array], rounds: int, fresh: Run) -> bool:
    runs = {name: compiled(partial(kernel, name), mesh, elements) for name in NAMES}
    found = {name: fresh() for name in NAMES}
    for _ in range(rounds):
        found = {name: runs[name](found[name]) for name in NAMES}
        if not jnp.array_equal(*found.values()):
            return False
    return True


def median_us(run: Run, x_N: jax.Array, reps: int) -> float:
    seconds = []
    for _ in range(reps + 3):
        x_N, took = timed(partial(lambda x: jax.block_until_ready(run(x)), x_N))
        seconds.append(took)
    return statistics.median(seconds[3:]) * 1e6


def lines(mesh: Mesh) -> Iterator[str]:
    yield f"{'bytes':>10} {'algorithm':>9} {'us a call':>9} {'start us':>8} {'chain/calls':>11} {'calls':>6} sums"
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    for size in SIZES:
        elements = size // 4
        few, many = (2, 8) if size >= LARGE else (8, 32)
        reps = 10 if size >= 256 << 20 else 20
        chains, loops = 100, 20

        fresh = jax.jit(
            lambda: jnp.arange(mesh.size * elements, dtype=jnp.uint32) * jnp.uint32(SEED),
            out_shardings=sharding,
        )
        right = equal(mesh, elements, mixed_chain, chains, fresh) and equal(mesh, elements, mixed_loop, loops, fresh)
        calls = 8 * chains + 100 * loops + (few + many) * (reps + 3)
        for name in NAMES:
            short, long = (
                median_us(compiled(partial(chain, name, count), mesh, elements), fresh(), reps) for count in (few, many)
            )
            call = (long - short) / (many - few)
            yield (
                f"{size:>10} {name:>9} {call:9.1f} {short - few * call:8.0f} {long / many:11.1f} {calls:>6} "
                f"{'right' if right else 'WRONG'}"
            )


if __name__ == "__main__":
    for line in lines(jax.make_mesh((len(jax.devices()),), ("devices",), axis_types=(AxisType.Auto,))):
        print(line, flush=True)
