"""How long the calls of a chain take on devices that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

Run = Callable[[jax.Array], jax.Array]


def measured(chain: Chain, mesh: Mesh, over: Axes, sizes: Iterable[int]) -> list[Measurement | LeftOut]:
    """Times of one chain at about these payloads [B]: what a long one takes more than a short one. A program with
    collectives takes longer to start than an empty one, since its devices meet first."""
    short, long = (programs(chain, mesh, over, sizes, fewer) for fewer in (True, False))
    return [_measured(*pair, mesh) for pair in zip(short, long, strict=True)]


def launch_seconds(mesh: Mesh) -> float:
    """What a program without a collective takes: it adds one to a few numbers."""
    (seconds,) = _in_turn([compiled(lambda x_N: x_N + 1, mesh, EVEN)], _numbers(mesh, EVEN))
    return median(seconds)


def _measured(short: Program, long: Program, mesh: Mesh) -> Measurement | LeftOut:
    if why := difference(short) or difference(long) or _too_large(long.compiled, mesh):
        return long.left_out(why)
    try:
        few, many = _in_turn((short.compiled, long.compiled), _numbers(mesh, long.elements))
    except (
        jax.errors.JaxRuntimeError
    ) as refusal:  # Libraries take memory of their own: one size too many must not cost all others.
        return long.left_out(one_line(refusal))
    more = long.calls - short.calls
    middle, best = median(map(float.__sub__, many, few)) / more, (min(many) - min(few)) / more
    if min(middle, best) <= 0:
        return long.left_out(f"{long.calls} calls take no longer than {short.calls}; the devices may be busy")
    return long.measurement(middle, best)


def _in_turn(runs: Sequence[Run], x: jax.Array) -> list[list[float]]:
    """Seconds of each, one after the other and again, on the result of the one before, whose memory it takes over."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(WARM_UPS + RUNS):
        for run, taken in zip(runs, seconds, strict=True):
            x, took = timed(partial(_finished, run, x))
            taken.append(took)
    return [taken[WARM_UPS:] for taken in seconds]


def run_again(program: Program, mesh: Mesh, times: int) -> None:
    """Each time on the result of the time before."""
    x = _numbers(mesh, program.elements)
    for _ in range(times):
        x = _finished(program.compiled, x)


def _finished(compiled: Run, x: jax.Array) -> jax.Array:
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


def _memory_limit(mesh: Mesh) -> int | None:
    """Bytes that a device of this process gives to programs, None where it does not tell."""
    return (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")


def _numbers(mesh: Mesh, elements: int) -> jax.Array:
    """[devices * elements], new each time, since programs take over its memory."""
    return _maker(mesh, elements)()


@cache
def _maker(mesh: Mesh, elements: int) -> Callable[[], jax.Array]:
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.jit(lambda: jnp.ones(mesh.size * elements, jnp.uint32), out_shardings=sharding)
