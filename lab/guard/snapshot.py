"""A program's communication as a file that people read and review: TOML, one entry for transfers alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from lab.core.changes import Difference
from lab.core.codec import Count, Size, from_json, to_json
from lab.core.files import write_whole
from lab.core.ledger import Kind, Ledger, Phase, SubAxis, Transfer
from lab.meshes.axes import Axes
from lab.meshes.documents import read_toml
from lab.meshes.errors import UsageError

UPDATE = "--update-communication"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Transfers alike, with the executions of all of them; `axes` are joined by `+`, `sub_axes` are parts of axes where
    no whole ones give the groups."""

    kind: Kind
    axes: str | None = None
    sub_axes: tuple[SubAxis, ...] | None = None
    group_size: Count | None = None
    shift: int | None = None
    executions: Count | None = None
    dtype: str
    payload_bytes: Count
    phase: Phase | None = None
    scope: str = ""

    @classmethod
    def of(cls, t: Transfer) -> Entry:
        return cls(
            kind=t.kind,
            axes="+".join(t.axes) if t.axes else None,
            sub_axes=t.sub_axes,
            group_size=t.group_size,
            shift=t.shift,
            executions=t.executions,
            dtype=t.dtype,
            payload_bytes=t.payload_bytes,
            phase=t.phase,
            scope=t.scope,
        )

    def transfer(self) -> Transfer:
        axes = tuple(self.axes.split("+")) if self.axes else None
        # Where a default was left as it is, `vars` of what msgspec has read lacks it.
        return Transfer(**{each.name: getattr(self, each.name) for each in fields(self)} | {"axes": axes})


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    devices: Size | None = None
    target: str | None = None
    mesh: Mapping[str, Size] | None = None
    written_with: Mapping[str, str]
    wire_bytes_a_step: Mapping[str, Fraction] = field(default_factory=dict)
    transfers: tuple[Entry, ...]


def write(ledger: Ledger, path: Path) -> str:
    """Operands of combined transfers stand each for themselves: how many a compiler combines differs from version to
    version.

    Returns:
      What became of the file: "new", "changed" or "unchanged".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    snapshot = Snapshot(
        devices=ledger.devices,
        target=ledger.target,
        mesh=ledger.mesh,
        written_with=_versions(),
        wire_bytes_a_step={axes: totals.wire_bytes for axes, totals in ledger.totals_by(lambda t: t.span).items()},
        transfers=tuple(map(Entry.of, _alike(ledger))),
    )
    found = _known(to_json(snapshot))
    text = tomli_w.dumps(found | {"transfers": [_known(entry) for entry in found["transfers"]]})
    old = path.read_text() if path.exists() else None
    write_whole(path, text)
    return "new" if old is None else "unchanged" if old == text else "changed"


def read(path: Path) -> tuple[Ledger, dict[str, str]]:
    """The ledger, and the versions that it was written with.

    Raises:
      UsageError: it is no snapshot.
    """
    again = f"write it again with {UPDATE}"
    table = read_toml(path, again)
    try:
        found = from_json(Snapshot, table)
        Axes.of(found.mesh or {})
    except UsageError as error:
        raise UsageError(f"{path}: not a snapshot of communication ({error}); {again}") from None
    transfers = tuple(entry.transfer() for entry in found.transfers)
    return Ledger(transfers, str(path), found.target, found.devices, found.mesh), dict(found.written_with)


def unreadable(ledger: Ledger) -> str | None:
    """Why nothing can be said of a program, if nothing can."""
    if ledger.is_complete:
        return None
    return f"the compiled program could not be read completely, so nothing is compared: {'; '.join(ledger.notes)}"


def compared(ledger: Ledger, path: Path) -> str | None:
    """What a program communicates otherwise than its snapshot says, or that there is none.

    Raises:
      UsageError: the file is no snapshot.
    """
    if not path.exists():
        return f"no snapshot {path}; review what the program communicates, then write it with {UPDATE}\n\n{ledger}"
    before, written_with = read(path)
    for what in ("devices", "target", "mesh"):
        was, has = getattr(before, what), getattr(ledger, what)
        if was != has:
            return f"{path} was written for {what} {was}; this program has {has}. If intended, run with {UPDATE}"
    difference = Difference(before, ledger)
    if not difference.changes:
        return None
    versions = _versions()
    others = "" if written_with == versions else f" (written with {_told(written_with)}; this is {_told(versions)})"
    return (
        f"the program's communication differs from {path}{others}; if that is intended, run with "
        f"{UPDATE}\n\n{difference}"
    )


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("jax", "jaxlib")}


def _told(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {number}" for name, number in versions.items())


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    return {name: value for name, value in row.items() if value not in (None, "")}


def _alike(ledger: Ledger) -> list[Transfer]:
    """One transfer for those that differ in place of text only, executions added where they are known; sorted, so that
    files differ where programs do."""
    executions: Counter[Transfer] = Counter()
    rows: list[Transfer] = []
    for t in ledger.split().transfers:
        key = Transfer(
            t.kind,
            t.axes,
            t.group_size,
            None if t.executions is None else 0,
            t.dtype,
            t.payload_bytes,
            shift=t.shift,
            phase=t.phase,
            scope=t.scope,
            sub_axes=t.sub_axes,
        )
        if t.executions is None:
            rows.append(key)
        else:
            executions[key] += t.executions
    rows += [replace(t, executions=count) for t, count in executions.items()]
    return sorted(
        [t for t in rows if t.group_size != 1],
        key=lambda t: (
            t.span,
            t.kind,
            t.phase or "",
            t.scope,
            t.payload_bytes,
            t.dtype,
            t.group_size or 0,
            t.shift or 0,
        ),
    )
