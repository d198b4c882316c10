"""What remains after a loss, as text."""

from __future__ import annotations

from lab.core.units import bytes_text, seconds_text, share_text
from lab.report.fitted import Column
from lab.report.tables import columns_text
from lab.resilience.restart import MeshJson, RestartJson


def restart_text(found: RestartJson) -> str:
    """A table for the mesh as it is and for each loss, with what was refused and which lever makes a step fit."""
    parts = [f"{found.source} on {found.target}, before a failure\n\n{_table((found.before,))}"]
    for loss in found.losses:
        lines = [f"{_mesh(one)} is refused: {one.refused}" for one in loss.meshes if one.refused]
        lines += [f"{_mesh(one)} does not fit: {one.lever}" for one in loss.meshes if one.fits is False]
        kept = tuple(one for one in loss.meshes if not one.refused)
        head = f"{loss.loss} lost: {loss.lost:,} devices" if kept else f"{loss.loss} lost: no mesh remains"
        parts.append("\n".join([head, *(["", _table(kept), ""] if kept else []), *lines]).rstrip())
    if found.unplaced:
        parts.append(f"note: not counted, since their placement is not known: {', '.join(found.unplaced)}")
    return "\n\n".join(parts)


def _mesh(one: MeshJson) -> str:
    return ",".join(f"{name}={size}" for name, size in one.mesh.items())


def _table(rows: tuple[MeshJson, ...]) -> str:
    plans = [one.plan for one in rows]
    moved = [one.restore for one in rows]
    columns = [
        Column("mesh", tuple(map(_mesh, rows))),
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
    return columns_text([column for column in columns if any(column.cells)])


def _every(one: MeshJson) -> str:
    return ", ".join(f"{tier.name} {tier.interval_s:,.0f} s" for tier in one.plan.tiers) if one.plan else ""
