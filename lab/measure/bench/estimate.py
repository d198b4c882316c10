"""How long the calls of a chain take on GPUs that are not there, by theory: the compiled text, run through at the rates
of its chip.

Collectives and kernels of a text go side by side where the compiler put them so (`lab.measure.step_time`). A message
takes `MESSAGE_S` and its bytes over the link (alpha-beta, Ch. 13), a kernel its bytes over the memory, but `KERNEL_S`
at least, and longer beside a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from jax.sharding import Mesh

from lab.core.known import known
from lab.core.ledger import Kind
from lab.measure.bench.chains import Chain
from lab.measure.bench.programs import (
    LeftOut,
    Measurement,
    Program,
    difference,
    programs,
)
from lab.measure.bench.wires import KINDS
from lab.measure.rates.curves import Curve, Rate
from lab.measure.step_time import TourRates, step_time
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.hardware import Chip, measured_points
from lab.meshes.targets import Target

MESSAGE_S = 10e-6
"""At the least: a permute of 1 KiB to 1 MiB takes 20 to 23 us in a chain on two H200s
(`results/tour_2xh200_jax0.11.2.json`, as all below)."""
KERNEL_S = 4e-6
"""An all_reduce by doubling of 1 KiB to 1 MiB, which is a permute and an addition, less the permute: 3.2 to 4.1 us."""
REACHED = 0.88
"""Of the peak rate of memory: passes over 8.6 GB at 4.25 of 4.8 TB/s."""
SLOWED = 0.15
"""Seconds that a pass over memory loses for a second of communication beside it."""
ASSUMED = (
    f"estimated, not timed: a chain's compiled text at {KERNEL_S * 1e6:.0f} us a kernel or {REACHED:.0%} of the "
    "memory's peak rate; collectives "
)


def assumed(links: Path | None) -> str:
    """In words, what an estimate rests on."""
    return ASSUMED + (f"as timed in {links}" if links else f"at {MESSAGE_S * 1e6:.0f} us and the rate of the link")


def rates(target: Target, links: Path | None) -> TourRates:
    """Of one GPU of a target.

    Args:
      links: a record of `lab bench`, of which the times of JAX's own collectives are taken; by default the link's data
        sheet.
    Raises:
      UsageError: the target is not GPUs of one host, or `links` no record of its chip.
    """
    if target.platform != "gpu" or target.hosts > 1:
        raise UsageError(
            f"target {target}: expected GPUs of one host to estimate for, such as gpu:h200:1x8; bench others on "
            "attached devices"
        )
    gpu = target.hardware
    memory = REACHED * gpu.memory_bytes_per_s.value
    product = Rate(0.0, gpu.flops_per_s["bf16"].value)
    return TourRates(
        product,
        Curve(((KERNEL_S * memory, KERNEL_S),)),
        memory,
        _timed(links, gpu) if links else _stated(gpu),
        0.0,
        SLOWED,
    )


def estimated(chain: Chain, mesh: Mesh, over: Axes, sizes: Iterable[int], at: TourRates) -> list[Measurement | LeftOut]:
    """One chain at about these payloads [B]."""
    return [_estimated(program, at) for program in programs(chain, mesh, over, sizes)]


def _estimated(program: Program, at: TourRates) -> Measurement | LeftOut:
    if why := difference(program):
        return program.left_out(why)
    seconds = step_time(known(program.compiled.as_text()), program.ledger, at).total / program.calls
    return program.measurement(seconds, seconds)


def _stated(gpu: Chip) -> Mapping[Kind, Rate]:
    return dict.fromkeys(Kind, Rate(MESSAGE_S, gpu.fast.value))


def _timed(links: Path, gpu: Chip) -> Mapping[Kind, Curve]:
    """Of a chain of two primitives each has half the bytes and half the time."""
    points = {
        kind: (measured_points(links, "+".join(primitives), "lax", gpu), len(primitives))
        for primitives, kinds in KINDS.items()
        for kind in kinds
    }
    return {
        kind: Curve(tuple((count / share, seconds / share) for count, seconds in found))
        for kind, (found, share) in points.items()
    }
