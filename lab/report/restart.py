"""What remains after a loss, as text."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.units import bytes_text, count, seconds_text, share_text
from lab.report.fitted import Column
from lab.report.tables import columns_text
from lab.resilience.restart import LossJson, MeshJson, RestartJson


def restart_text(found: RestartJson) -> str:
    """A table for the mesh as it is and for each loss, with what was refused and which lever makes a step fit."""
    parts = [f"{found.source} on {found.target}, before a failure\n\n{columns_text(columns((found.before,)))}"]
    for loss in found.losses:
        kept = tuple(one for one in loss.meshes if not one.refused)
        head = lost(loss) if kept else f"{loss.loss} lost: no mesh remains"
        table = ["", columns_text(columns(kept)), ""] if kept else []
        parts.append("\n".join([head, *table, *notes(loss)]).rstrip())
    return "\n\n".join([*parts, *(f"note: {line}" for line in unplaced(found))])


def unplaced(found: RestartJson) -> list[str]:
    """State that no number counts."""
    names = ", ".join(found.unplaced)
    return [f"not counted, since their placement is not known: {names}"] if names else []


def lost(loss: LossJson) -> str:
    """`host lost: 8 devices`, or `8 devices lost`."""
    size = count(loss.lost, "device")
    return f"{loss.loss} lost" + f": {size}" * (loss.loss != size)


def notes(loss: LossJson) -> list[str]:
    """What was refused, and which levers make a step fit."""
    refused = [f"{mesh_text(one)} is refused: {one.refused}" for one in loss.meshes if one.refused]
    return refused + [line for one in loss.meshes if one.fits is False for line in tried(one)]


def tried(one: MeshJson) -> list[str]:
    """What makes a step fit, and what was compiled."""
    peaks = [f"the peak is {bytes_text(each.peak)}" if each.peak is not None else "refused" for each in one.levers]
    lines = [f"{mesh_text(one)} does not fit: {one.lever}"]
    for lever, peak in zip(one.levers, peaks, strict=True):
        lines.append(f"  compiled with {lever.change}: {peak}" + (", which fits" if lever.fits else ""))
    return lines


def mesh_text(one: MeshJson) -> str:
    return ",".join(f"{name}={size}" for name, size in one.mesh.items())


def columns(rows: Sequence[MeshJson]) -> list[Column]:
    """Of meshes on which the step compiles; those with nothing in them are left out."""
    plans = [one.plan for one in rows]
    moved = [one.restore for one in rows]
    found = [
        Column("mesh", tuple(map(mesh_text, rows))),
        Column("idle", tuple(f"{one.idle:,}" if one.idle else "" for one in rows), True),
        Column("peak", tuple(bytes_text(one.peak) if one.peak is not None else "" for one in rows), True),
        Column("fits", tuple({True: "yes", False: "no", None: ""}[one.fits] for one in rows)),
        Column("step", tuple(seconds_text(one.step_s) if one.step_s else "" for one in rows), True),
        Column("rate", tuple(share_text(one.rate) if one.rate else "" for one in rows), True),
        Column("batch", tuple(share_text(one.batch) if one.batch else "" for one in rows), True),
        Column("from peers", tuple(bytes_text(one.from_peers) if one else "" for one in moved), True),
        Column("from store", tuple(bytes_text(one.gone) if one else "" for one in moved), True),
        Column("save every", tuple(_every(one) for one in rows)),
        Column("goodput", tuple(share_text(plan.goodput) if plan else "" for plan in plans), True),
    ]
    return [column for column in found if any(column.cells)]


def _every(one: MeshJson) -> str:
    return ", ".join(f"{tier.name} {tier.interval_s:,.0f} s" for tier in one.plan.tiers) if one.plan else ""
