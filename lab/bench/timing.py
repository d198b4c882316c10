"""A chain as one compiled program, and how long it takes.

Every program is first held against what its algorithms state: had XLA merged or dropped a call, the time would be of something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from statistics import median

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab import hlo
from lab.bench.chains import BYTES, EVEN, Chain
from lab.clock import timed
from lab.collectives import AlphaBeta
from lab.fit import Point
from lab.ledger import Ledger
from meshes.axes import Axes

WARM_UPS, RUNS = 2, 7
LONG = 4 << 20
"""From so many bytes on the launch of a program no longer counts, and a chain may be short [B]."""


@dataclass(frozen=True)
class Measurement:
    """One call of a chain.

    Attributes:
      calls: how many the program makes.
      messages, messages_stated: collectives a call, as compiled and as stated: fewer where XLA put several into one.
      point: what the algorithm states, and the median of the runs, less the launch, over `calls`.
      best_s: the same of the fastest run.
    """

    chain: Chain
    calls: int
    messages: float
    messages_stated: int
    point: Point
    best_s: float


@dataclass(frozen=True)
class LeftOut:
    """A size without a time, and why."""

    chain: Chain
    payload_bytes: int
    why: str


@dataclass(frozen=True)
class Program:
    """`calls` of a chain on [elements] of every device, compiled."""

    chain: Chain
    elements: int
    calls: int
    compiled: jax.stages.Compiled
    ledger: Ledger


def measured(chain: Chain, mesh: Mesh, sizes: Iterable[int], launch_s: float) -> list[Measurement | LeftOut]:
    """Times of one chain at about these payloads [B]."""
    axes = _axes(mesh)
    counts = dict.fromkeys(chain.elements(size, axes.size) for size in sizes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(lambda elements: program(chain, mesh, elements), counts))
    return [_measured(program, mesh, launch_s) for program in programs]


def program(chain: Chain, mesh: Mesh, elements: int) -> Program:
    calls = _calls(chain.cost(_axes(mesh), elements).messages, elements * BYTES)

    def run(x_N: jax.Array) -> jax.Array:
        for _ in range(calls):
            x_N = chain.call(x_N, mesh.axis_names)
        return x_N

    compiled = _compiled(run, mesh, elements)
    return Program(chain, elements, calls, compiled, hlo.read_text(compiled.as_text(), axes=_axes(mesh)))


def launch_seconds(mesh: Mesh) -> float:
    """What a program without a collective takes: it adds one to a few numbers."""
    return median(_runs(_compiled(lambda x_N: x_N + 1, mesh, EVEN), _numbers(mesh, EVEN)))


def difference(program: Program, axes: Axes) -> str | None:
    """How the bytes of the compiled collectives differ from what the algorithms state, None where they do not."""
    stated = _bytes(program.chain.cost(axes, program.elements).ledger(axes, "u32"), program.calls)
    found = _bytes(program.ledger)
    return None if found == stated else f"XLA compiled {_told(found)}, and {program.calls} calls state {_told(stated)}"


def _measured(program: Program, mesh: Mesh, launch_s: float) -> Measurement | LeftOut:
    axes, payload = _axes(mesh), program.elements * BYTES
    if why := difference(program, axes) or _too_large(program.compiled, mesh):
        return LeftOut(program.chain, payload, why)
    try:
        seconds = _runs(program.compiled, _numbers(mesh, program.elements))
    except jax.errors.JaxRuntimeError as refusal:  # Libraries take memory of their own: one size too many must not cost all others.
        return LeftOut(program.chain, payload, str(refusal).strip().partition("\n")[0][:200])
    if min(seconds) <= launch_s:
        return LeftOut(program.chain, payload, f"{program.calls} calls take no longer than the launch of an empty program")
    middle, best = ((chosen(seconds) - launch_s) / program.calls for chosen in (median, min))
    cost = program.chain.cost(axes, program.elements)
    path_bytes = cost.time_s(AlphaBeta(alpha_s=0.0, bytes_per_s=1.0))
    messages = program.ledger.totals().executions / program.calls
    return Measurement(program.chain, program.calls, messages, cost.messages, Point(payload, cost.steps, path_bytes, middle), best)


def _runs(compiled: Callable[[jax.Array], jax.Array], x: jax.Array) -> list[float]:
    """Seconds of each run on the result of the one before, whose memory it takes over."""
    seconds = []
    for _ in range(WARM_UPS + RUNS):
        x, took = timed(lambda x=x: jax.block_until_ready(compiled(x)))
        seconds.append(took)
    return seconds[WARM_UPS:]


def _too_large(compiled: jax.stages.Compiled, mesh: Mesh) -> str | None:
    memory, limit = compiled.memory_analysis(), _memory_limit(mesh)
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    return f"needs {needed:,} B of the device's {limit:,} B" if limit and needed > limit else None


def _memory_limit(mesh: Mesh) -> int | None:
    """Bytes that a device gives to programs, None where it does not tell."""
    return (mesh.devices.flat[0].memory_stats() or {}).get("bytes_limit")


def _calls(messages: int, payload_bytes: int) -> int:
    """Many where a call is short, so that the launch of the program does not drown it; fewer where one call has many messages."""
    most = 32 if payload_bytes < LONG else 8
    return max(2, most // messages)


def _compiled(kernel: Callable[[jax.Array], jax.Array], mesh: Mesh, elements: int) -> jax.stages.Compiled:
    spec = PartitionSpec(mesh.axis_names)
    x = jax.ShapeDtypeStruct((mesh.size * elements,), jnp.uint32, sharding=NamedSharding(mesh, spec))
    return jax.jit(jax.shard_map(kernel, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0).lower(x).compile()


def _numbers(mesh: Mesh, elements: int) -> jax.Array:
    """[devices * elements], new each time, since programs take over its memory."""
    return _maker(mesh, elements)()


@cache
def _maker(mesh: Mesh, elements: int) -> Callable[[], jax.Array]:
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.jit(lambda: jnp.ones(mesh.size * elements, jnp.uint32), out_shardings=sharding)


def _axes(mesh: Mesh) -> Axes:
    return Axes(mesh.axis_names, mesh.devices.shape)


def _bytes(ledger: Ledger, times: int = 1) -> dict[str, int]:
    """Payload by kind: XLA may put several messages between the same devices into one."""
    return {kind: times * totals.payload_bytes for kind, totals in ledger.totals_by(lambda transfer: str(transfer.kind)).items()}


def _told(found: dict[str, int]) -> str:
    return ", ".join(f"{payload:,} B of {kind}" for kind, payload in sorted(found.items())) or "no collective"
