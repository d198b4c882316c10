"""A chain as one compiled program, held against what its algorithms state: had XLA merged or dropped a call, it would
be of something else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab import hlo
from lab.collectives import AlphaBeta, Cost
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.hlo.kernels import Collective, Kernel, Step, steps
from lab.measure.bench.chains import BYTES, Chain
from lab.measure.fit import Point
from lab.meshes.axes import Axes

LONG = 64 << 20
"""From so many bytes on a call stands out in a short chain [B]."""
MIN_CALLS = 4
"""Of a long chain; a short one has so many times fewer."""


@dataclass(frozen=True)
class Work:
    """What one call does beside the wire, as compiled.

    Attributes:
      kernels: launches.
      kernel_bytes: that they read and write.
      messages_alone: between whose start and end there is no kernel.
    """

    kernels: float
    kernel_bytes: float
    messages_alone: float

    @classmethod
    def of(cls, text: str, calls: int) -> Work:
        """Of a scheduled text without loops."""
        found = steps(text)
        kernels = [step for step in found if isinstance(step, Kernel)]
        return cls(len(kernels) / calls, sum(kernel.bytes for kernel in kernels) / calls, _alone(found) / calls)


@dataclass(frozen=True)
class Measurement:
    """One call of a chain.

    Attributes:
      calls: how many the longer program makes.
      messages, messages_stated: collectives a call, as compiled and as stated: fewer where XLA put several into one.
      point: what the algorithm states, and the seconds of a call: what a run takes more than one of a shorter chain
        just before, in the median, over the calls that it has more; or what is estimated.
      best_s: the same of the fastest runs.
      work: None but on GPUs, whose texts tell.
    """

    chain: Chain
    calls: int
    messages: float
    messages_stated: int
    point: Point
    best_s: float
    work: Work | None = None


@dataclass(frozen=True)
class LeftOut:
    """A size without a time, and why."""

    chain: Chain
    payload_bytes: int
    why: str


@dataclass(frozen=True)
class Program:
    """`calls` of a chain on [elements] of every device, compiled.

    Attributes:
      over: the axes that each call spans; groups along the others work side by side.
    """

    chain: Chain
    over: Axes
    elements: int
    calls: int
    compiled: jax.stages.Compiled
    ledger: Ledger
    work: Work | None

    @property
    def payload_bytes(self) -> int:
        return self.elements * BYTES

    @property
    def cost(self) -> Cost:
        """That a call states."""
        return self.chain.cost(self.over, self.elements)

    def measurement(self, seconds: float, best_s: float) -> Measurement:
        """Of one call that takes so long."""
        path_bytes = self.cost.time_s(AlphaBeta(alpha_s=0.0, bytes_per_s=1.0))
        point = Point(self.payload_bytes, self.cost.steps, path_bytes, seconds)
        found = self.ledger.totals().executions / self.calls
        return Measurement(self.chain, self.calls, found, self.cost.messages, point, best_s, self.work)

    def left_out(self, why: str) -> LeftOut:
        return LeftOut(self.chain, self.payload_bytes, why)


def programs(chain: Chain, mesh: Mesh, over: Axes, sizes: Iterable[int], fewer: bool = False) -> list[Program]:
    """One for each of about these payloads [B].

    Args:
      fewer: with a `MIN_CALLS`th of the calls.
    """
    counts = dict.fromkeys(chain.elements(size, over.size) for size in sizes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda elements: program(chain, mesh, over, elements, fewer), counts))


def program(chain: Chain, mesh: Mesh, over: Axes, elements: int, fewer: bool = False) -> Program:
    calls = _calls(chain.cost(over, elements).messages, elements * BYTES) // (MIN_CALLS if fewer else 1)

    def run(x_N: jax.Array) -> jax.Array:
        for _ in range(calls):
            x_N = chain.call(x_N, over.names)
        return x_N

    ready = compiled(run, mesh, elements)
    text = known(ready.as_text())
    ledger = hlo.read_text(text, axes=Axes(mesh.axis_names, mesh.devices.shape))
    work = Work.of(text, calls) if mesh.devices.flat[0].platform == "gpu" else None
    return Program(chain, over, elements, calls, ready, ledger, work)


def compiled(kernel: Callable[[jax.Array], jax.Array], mesh: Mesh, elements: int) -> jax.stages.Compiled:
    spec = PartitionSpec(mesh.axis_names)
    x = jax.ShapeDtypeStruct((mesh.size * elements,), jnp.uint32, sharding=NamedSharding(mesh, spec))
    return jax.jit(jax.shard_map(kernel, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0).lower(x).compile()


def difference(program: Program) -> str | None:
    """How the bytes of the compiled collectives differ from what the algorithms state, None where they do not."""
    stated = _bytes(program.cost.ledger(Axes.of(known(program.ledger.mesh)), "u32"), program.calls)
    found = _bytes(program.ledger)
    return (
        None if found == stated else f"XLA compiled {_told(found)}, expected {_told(stated)} for {program.calls} calls"
    )


def _alone(found: Iterable[Step]) -> int:
    """Messages that no kernel runs beside."""
    alone = 0
    under_way: dict[str, bool] = {}
    for step in found:
        if isinstance(step, Kernel):
            under_way = dict.fromkeys(under_way, True)
        elif isinstance(step, Collective):
            under_way |= {step.name: False} if step.starts else {}
            alone += step.awaits and not under_way.pop(step.name)
    return alone


def _calls(messages: int, payload_bytes: int) -> int:
    """Many where a call is short, so that they stand out; fewer where one call has many messages."""
    most = 32 if payload_bytes < LONG else 8
    return max(MIN_CALLS, most // messages)


def _bytes(ledger: Ledger, times: int = 1) -> dict[str, int]:
    """Payload by kind: XLA may put several messages between the same devices into one."""
    return {
        kind: times * totals.payload_bytes
        for kind, totals in ledger.totals_by(lambda transfer: str(transfer.kind)).items()
    }


def _told(found: dict[str, int]) -> str:
    return ", ".join(f"{payload:,} B of {kind}" for kind, payload in sorted(found.items())) or "no collective"
