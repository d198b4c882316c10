"""Ledgers as tables: aligned text for a terminal or a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter

from lab.core.ledger import Ledger, Memory, Totals, Transfer
from lab.core.note import NoteKind, note_kinds
from lab.core.units import bytes_text, count, executions_text, scaled
from lab.meshes.platforms import Platform
from lab.report.axis_lines import axis_lines
from lab.report.fitted import Column, table, terminal_width
from lab.report.origins import common_folder, folder_lines, short_ledger


def ledger_text(ledger: Ledger) -> str:
    """What a ledger holds: transfers alike in one row, the largest first, then totals by axes, in numbers and in words,
    FLOPs, memory and notes."""
    folder = common_folder(ledger)
    return tables_text(short_ledger(ledger, folder), folder)


def tables_text(ledger: Ledger, folder: str) -> str:
    """The same of a ledger whose lines are relative to `folder` already."""
    parts = ["\n".join([headline(ledger), *folder_lines(folder)])]
    if ledger.transfers:
        parts += [columns_text(transfer_columns(ledger)), columns_text(total_columns(ledger))]
        parts += ["\n".join(lines)] if (lines := axis_lines(ledger)) else []
    return "\n\n".join([*parts, "\n".join(facts(ledger))]).rstrip()


def headline(ledger: Ledger) -> str:
    mesh = ledger.mesh and "mesh " + ",".join(f"{name}={size}" for name, size in ledger.mesh.items())
    is_alone = NoteKind.ONE_DEVICE in note_kinds(ledger.notes)
    devices = count(1, "device") if is_alone else ledger.devices and count(ledger.devices, "device")
    told = [part for part in (devices, mesh, ledger.target) if part]
    return f"{ledger.source or 'ledger'}: {', '.join(told) or 'devices unknown'}"


def transfer_columns(ledger: Ledger) -> list[Column]:
    """A row for each of `alike_transfers`."""
    rows, totals = alike_transfers(ledger)
    firsts = [group[0] for group in rows]
    columns = [
        Column("kind", tuple(kind_text(t.kind, [t]) for t in firsts)),
        Column("axes", tuple(axes_text(t) for t in firsts)),
        Column("sites", tuple(f"{total.sites:,}" for total in totals), is_number=True),
        *_counts(totals),
        Column("payload each", tuple(at_most(t, bytes_text(t.payload_bytes)) for t in firsts), is_number=True),
        Column(
            f"wire a {ledger.unit}",
            tuple(bounded(total, bytes_text(total.wire_bytes)) for total in totals),
            is_number=True,
        ),
        Column("dtype", tuple(t.dtype for t in firsts)),
        Column("overlap", tuple(t.overlap or "" for t in firsts)),
        Column("link", tuple(t.link or "" for t in firsts)),
        Column("phase", tuple(t.phase or "" for t in firsts)),
        Column("scope", tuple(map(common_scope, rows))),
        Column("origin", tuple(map(_origin_text, firsts))),
    ]
    return [column for column in columns if any(column.cells)]


def _origin_text(transfer: Transfer) -> str:
    """Of several arrays that XLA's combiner moves together under no name, the first line, and how many there are."""
    lines = {part.origin for part in transfer.parts if part.origin}
    if transfer.stack or not transfer.instruction or len(transfer.parts) < 2:
        return transfer.origin or ""
    return (
        f"{transfer.origin} and {count(len(lines) - 1, 'more line')}"
        if len(lines) > 1
        else transfer.origin or "XLA's combiner"
    )


def alike_transfers(ledger: Ledger) -> tuple[list[list[Transfer]], list[Totals]]:
    """Transfers that differ in instruction, executions and numbers in their scope only, the most wire bytes first; and
    the totals of each such group."""
    alike: dict[tuple[object, ...], list[Transfer]] = {}
    for transfer in ledger.transfers:
        alike.setdefault(_likeness(transfer), []).append(transfer)
    found = [(group, Totals.of(group)) for group in alike.values()]
    found.sort(key=lambda one: one[1].by_wire_bytes, reverse=True)
    return [group for group, _ in found], [totals for _, totals in found]


def total_columns(ledger: Ledger) -> list[Column]:
    """Totals of a step of one device, by axes and kind, the largest first, and of everything."""
    found = ledger.totals_by(lambda t: f"{t.span}\n{t.kind}")
    by = dict(sorted(found.items(), key=lambda each: -each[1].wire_bytes)) | {"all\n": ledger.totals()}
    names, totals = [name.split("\n") for name in by], list(by.values())
    return [
        Column("total", tuple(axes for axes, _ in names)),
        Column("kind", tuple(kind for _, kind in names)),
        *_counts(totals),
        Column(
            f"payload a {ledger.unit}",
            tuple(bounded(total, bytes_text(total.payload_bytes)) for total in totals),
            is_number=True,
        ),
        Column(
            f"wire a {ledger.unit}",
            tuple(bounded(total, bytes_text(total.wire_bytes)) for total in totals),
            is_number=True,
        ),
    ]


def facts(ledger: Ledger) -> list[str]:
    """FLOPs, memory and notes, a line each."""
    lines = []
    if ledger.flops is not None:
        lines.append(f"matrix products: {scaled(ledger.flops, 'FLOP')} a {ledger.unit} on each device")
    if memory := ledger.memory:
        peak = peak_text(memory, is_tpu=(ledger.target or "").startswith(Platform.TPU))
        lines.append(
            f"memory of one device: arguments {bytes_text(memory.arguments)}, outputs {bytes_text(memory.outputs)}, "
            f"of which {bytes_text(memory.aliased)} alias donated arguments, temporaries "
            f"{bytes_text(memory.temporaries)}{peak}"
        )
        if memory.is_on_host:
            lines.append(
                f"memory of its host: arguments {bytes_text(memory.host_arguments)}, outputs "
                f"{bytes_text(memory.host_outputs)}, temporaries {bytes_text(memory.host_temporaries)}"
            )
        lines += fit_lines(ledger)
    lines += copy_lines(ledger)
    return lines + [f"note: {note}" for note in ledger.notes]


def peak_text(memory: Memory, is_tpu: bool) -> str:
    """`, peak 80.2 MB`, and what it has otherwise than arguments, outputs and temporaries have together."""
    if memory.peak is None:
        return ""
    beside = memory.at_peak - memory.temporaries
    if memory.on_chip:
        what = f", which counts {bytes_text(memory.on_chip)} of temporaries in on-chip memory (VMEM) in place of these"
    elif abs(beside) < memory.peak * _ROUNDED:
        what = ""
    elif beside < 0:
        what = f", with {bytes_text(memory.at_peak)} of temporaries at once"
    else:
        what = f", with {bytes_text(beside)} of constants{' or of temporaries in on-chip memory (VMEM)' * is_tpu}"
    return f", peak {bytes_text(memory.peak)}{what}"


def fit_lines(ledger: Ledger) -> list[str]:
    """Whether the peak has room on one device, where both are known."""
    peak = ledger.memory.peak if ledger.memory else None
    return [] if ledger.room is None or peak is None else [ledger.room.sentence(peak)]


def copy_lines(ledger: Ledger) -> list[str]:
    """What a step copies between the device's memory and its host's, if anything."""
    if (copies := ledger.host_copies) is None:
        return []
    least = "at least " * copies.lower_bound
    return [
        f"copied in a step: {least}{bytes_text(copies.to_host)} to the host, {least}{bytes_text(copies.to_device)} "
        "to the device"
    ]


def columns_text(columns: Sequence[Column]) -> str:
    """Aligned columns, fitted to a terminal; in a pipe as long as they are."""
    return table(columns, terminal_width()) if columns else ""


def rows_text(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same from rows of words."""
    return columns_text(
        [Column(heading, cells) for heading, cells in zip(headings, zip(*rows, strict=True), strict=False)]
    )


_ROUNDED = 1e-3
"""A difference that printed bytes do not show."""
_PLACES = frozenset("scope executions instruction op_name parts groups pairs is_over_products repeats stack".split())
"""What tells transfers of one row apart: where each stands in the program."""
_common = attrgetter(*(each.name for each in fields(Transfer) if each.name not in _PLACES))


def _likeness(transfer: Transfer) -> tuple[object, ...]:
    """What transfers of one row have in common."""
    return unnumbered(transfer.scope_or_function), transfer.executions is None, _common(transfer)


def common_scope(group: Iterable[Transfer]) -> str:
    scopes = {t.scope_or_function for t in group}
    return scopes.pop() if len(scopes) == 1 else unnumbered(scopes.pop())


def unnumbered(scope: str) -> str:
    """`layers_*/mlp` for `layers_12/mlp`: one name for all layers of an unrolled loop."""
    return re.sub(r"\d+", "*", scope)


def kind_text(kind: str, transfers: Iterable[Transfer]) -> str:
    """A kind, and whether any transfer of it stands in a branch."""
    return kind + " if taken" * any(t.conditional for t in transfers)


def axes_text(transfer: Transfer) -> str:
    is_unknown = transfer.axes is None and transfer.sub_axes is None
    label = f"{transfer.span} ({transfer.group_size})" if is_unknown else transfer.span
    return label if transfer.shift is None else f"{label} shift {transfer.shift}"


def _counts(totals: Sequence[Totals]) -> list[Column]:
    """Executions, and how many arrays they move where the compiler combined some."""
    columns = [
        Column(name, tuple(at_least(total, f"{getattr(total, name):,}") for total in totals), is_number=True)
        for name in ("executions", "arrays")
    ]
    return columns if any(is_combined(total) for total in totals) else columns[:1]


def is_combined(total: Totals) -> bool:
    return total.arrays != total.executions


def sent_text(total: Totals) -> str:
    """`121.6 MB in 5 executions of 6 arrays`, the last where the compiler combined some."""
    executions = executions_text(total.executions, total.arrays)
    return f"{bytes_bound(total)}{bytes_text(total.wire_bytes)} in {bound(total)}{executions}"


def bound(total: Totals) -> str:
    return "at least " if total.lower_bound else ""


def bytes_bound(total: Totals) -> str:
    """Where some of the bytes are a lower bound and some an upper one, the sum is neither."""
    if total.upper_bound:
        return "about " if total.lower_bound else "at most "
    return bound(total)


def at_least(total: Totals | Transfer, text: str) -> str:
    if total.lower_bound:
        return f">= {text}" if total.executions else "?"
    return text


def at_most(total: Totals | Transfer, text: str) -> str:
    return f"<= {text}" if total.upper_bound else text


def bounded(total: Totals, text: str) -> str:
    """Bytes, of which some may be a lower bound and some an upper one."""
    if total.upper_bound and total.lower_bound:
        return f"~ {text}" if total.executions else "?"
    return at_most(total, at_least(total, text))
