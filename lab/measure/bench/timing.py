"""How long the calls of a chain take on devices that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from statistics import median

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.core.clock import timed
from lab.core.known import known
from lab.measure.bench.chains import EVEN, Chain
from lab.measure.bench.programs import (
    LeftOut,
    Measurement,
    Program,
    compiled,
    difference,
    programs,
)
from lab.meshes.axes import Axes
from lab.meshes.errors import one_line

WARM_UPS, RUNS = 3, 15


def measured(chain: Chain, mesh: Mesh, over: Axes, sizes: Iterable[int]) -> list[Measurement | LeftOut]:
    """Times of one chain at about these payloads [B]: what a long one takes more than a short one. A program with
    collectives takes longer to start than an empty one, since its devices meet first."""
    short, long = (programs(chain, mesh, over, sizes, fewer) for fewer in (True, False))
    return [_measured(*pair, mesh) for pair in zip(short, long, strict=True)]


def launch_seconds(mesh: Mesh) -> float:
    """What a program without a collective takes: it adds one to a few numbers."""
    return median(_runs(compiled(lambda x_N: x_N + 1, mesh, EVEN), _numbers(mesh, EVEN)))


def _measured(short: Program, long: Program, mesh: Mesh) -> Measurement | LeftOut:
    if why := difference(short) or difference(long) or _too_large(long.compiled, mesh):
        return long.left_out(why)
    try:
        if why := _wrong(long, mesh):
            return long.left_out(why)
        few, many = (_runs(one.compiled, _numbers(mesh, one.elements)) for one in (short, long))
    except (
        jax.errors.JaxRuntimeError
    ) as refusal:  # Libraries take memory of their own: one size too many must not cost all others.
        return long.left_out(one_line(refusal))
    middle, best = ((chosen(many) - chosen(few)) / (long.calls - short.calls) for chosen in (median, min))
    if min(middle, best) <= 0:
        return long.left_out(f"{long.calls} calls take no longer than {short.calls}; the devices may be busy")
    return long.measurement(middle, best)


def _runs(compiled: Callable[[jax.Array], jax.Array], x: jax.Array) -> list[float]:
    """Seconds of each run on the result of the one before, whose memory it takes over."""
    seconds = []
    for _ in range(WARM_UPS + RUNS):
        x, took = timed(partial(_finished, compiled, x))
        seconds.append(took)
    return seconds[WARM_UPS:]


def _finished(compiled: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    return jax.block_until_ready(compiled(x))


def _too_large(compiled: jax.stages.Compiled, mesh: Mesh) -> str | None:
    memory, limit = known(compiled.memory_analysis()), _memory_limit(mesh)
    needed = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    return f"needs {needed:,} B of the device's {limit:,} B" if limit and needed > limit else None


def _wrong(program: Program, mesh: Mesh) -> str | None:
    """What no text vouches for has to give what JAX's own collective gives."""
    if not program.chain.is_in_kernels:
        return None
    own = Chain(program.chain.primitives, ("lax",))
    numbers = jax.jit(lambda: jnp.arange(mesh.size * program.elements, dtype=jnp.uint32), out_shardings=_sharding(mesh))

    def results(chain: Chain) -> jax.Array:
        return compiled(lambda x_N: chain.call(x_N, program.over.names), mesh, program.elements)(numbers())

    return None if jnp.array_equal(results(program.chain), results(own)) else "its results differ from those of jax.lax"


def _memory_limit(mesh: Mesh) -> int | None:
    """Bytes that a device of this process gives to programs, None where it does not tell."""
    return (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")


def _numbers(mesh: Mesh, elements: int) -> jax.Array:
    """[devices * elements], new each time, since programs take over its memory."""
    return _maker(mesh, elements)()


@cache
def _maker(mesh: Mesh, elements: int) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.ones(mesh.size * elements, jnp.uint32), out_shardings=_sharding(mesh))


def _sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))
