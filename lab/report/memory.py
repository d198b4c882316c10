"""What one device holds, by theory's terms and by XLA's plan, and whether its chip has room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.core.room import Room
from lab.core.units import bytes_text, share_text
from lab.meshes.targets import parse_target
from lab.programs.memory.parts import LABELS, PartOff
from lab.programs.memory.terms import label
from lab.report.fitted import Column
from lab.report.tables import columns_text

if TYPE_CHECKING:
    from lab.harness.result import Result

OF_GPUS = "terms for copies are those of XLA's GPU compiler; its TPU compiler makes others"


def memory_text(result: Result) -> str:
    """A table of the terms with their sum beside XLA's peak, and a line on the chip; nothing where theory says nothing.

    Where XLA gives no plan, as for a program that it refuses, the terms stand alone.
    """
    if result.held is None:
        return ""
    memory, total = result.measured.memory if result.measured else None, sum(result.held.values())
    planned = {} if memory is None else {"arguments": memory.arguments - memory.padding, "peak": memory.peak}
    terms = {label(term): size for term, size in result.held.items() if size} | {"peak": total}
    rows = [(name, size, planned.get(name)) for name, size in terms.items()]
    padding = memory.padding if memory else 0
    notes = (
        *_padding(padding),
        *_no_peak(result),
        *_room(result.target, planned.get("peak") or total),
        *_away(result.target, total + padding, planned.get("peak")),
        *map(_off, result.off),
    )
    return "\n".join([columns_text(_columns(rows)), *notes])


def _off(found: PartOff) -> str:
    """`off: one layer's attention and MLP: 3.1 GB predicted, 4.2 GB planned, most in layers/attention/core (2 GB)`."""
    largest = ", ".join(f"{scope or 'no scope'} ({bytes_text(size)})" for scope, size in found.largest)
    most = f", most in {largest}" if largest else ""
    terms = "; ".join(label(term) for term in found.terms) or "no term"
    return (
        f"off: {LABELS[found.part]}: {bytes_text(found.predicted)} predicted ({terms}), "
        f"{bytes_text(found.measured)} planned{most}"
    )


def _columns(rows: list[tuple[str, int, int | None]]) -> list[Column]:
    names, held, planned = zip(*rows, strict=True)
    return [
        Column("memory of one device", names),
        Column("bytes\npredicted", tuple(f"{size:,}" for size in held), is_number=True),
        Column("\nmeasured", tuple("-" if size is None else f"{size:,}" for size in planned), is_number=True),
    ]


def _no_peak(result: Result) -> list[str]:
    is_cpu = result.measured is not None and parse_target(result.target).platform == "cpu"
    memory = result.measured.memory if result.measured else None
    return ["XLA reports no peak on CPUs"] * (is_cpu and (memory is None or memory.peak is None))


def _padding(size: int) -> list[str]:
    return [f"arguments take another {size:,} B of padding, to fill the tiles of TPU layouts (T8)"] if size else []


def _room(target: str, peak: int) -> list[str]:
    """On the chip of a target that names one."""
    room = Room.of(parse_target(target))
    if room is None:
        return []
    advice = "" if room.fits(peak) else "; take fewer sequences at once (batch, accumulation) or another layout"
    return [room.sentence(peak) + advice]


def _away(target: str, total: int, planned: int | None) -> list[str]:
    """How far XLA's plan is from the terms, which on a TPU are not its own."""
    whose = [OF_GPUS] if parse_target(target).platform == "tpu" else []
    if planned is None:
        return whose
    return [
        *whose,
        f"the peak that XLA plans is {share_text(abs(planned / total - 1))} {'above' if planned > total else 'below'} "
        "the sum of the terms and the padding",
    ]
