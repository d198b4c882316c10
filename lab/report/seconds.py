"""The predicted time of a step as text: what it goes into, what of it rests on measurements, which transfers are waited
for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lab.core.units import count, seconds_text, share_text
from lab.measure.accuracy import APART_S, Accuracy, Row, order
from lab.measure.prediction import DTYPE, FULL_COVERAGE, Part, Prediction
from lab.measure.rates.table import Basis
from lab.report.fitted import Column
from lab.report.origins import common_folder, folder_lines, shortened
from lab.report.tables import axes_text, columns_text

LARGEST = 10
"""Transfers that are listed."""


def prediction_text(found: Prediction) -> str:
    shown = [columns_text(columns) for _, columns in tables(found)]
    return "\n\n".join(["\n".join(headlines(found)), *shown, "\n".join(notes(found))]).rstrip()


def tables(found: Prediction) -> list[tuple[str, list[Column]]]:
    """Each with its caption."""
    of_wires = [
        ("Communication by axes", _axes(found)),
        ("Transfers, those that are waited for longest first", _transfers(found)),
    ]
    of_kernels = [("What the time goes into", _parts(found)), ("Kernels by phase", _phases(found))]
    return [of_kernels[0], *of_wires * bool(found.transfers), of_kernels[1]]


def headlines(found: Prediction) -> list[str]:
    """The time, what it goes into, how well the chip is used, and what it rests on."""
    time = found.time
    sure = "" if found.is_known else "at least "
    return [
        f"{found.source or 'program'} on {found.target} ({found.chip}): {sure}{seconds_text(time.total)} a step, "
        f"{seconds_text(found.low)} to {seconds_text(found.high)} as far as measurements lie from their rates",
        f"of which {told(found)}",
        *use_lines(found),
        coverage_line(found),
        *folder_lines(common_folder(found.ledger)),
    ]


def time_lines(found: Prediction | None) -> list[str]:
    """In one, for who looks at something else."""
    if found is None:
        return []
    sure = "" if found.is_known else "at least "
    return [
        f"time of a step: {sure}{seconds_text(found.time.total)}, of which {told(found)}; {coverage_line(found)} "
        "(lab time tells more)"
    ]


def told(found: Prediction) -> str:
    """What the time goes into."""
    time, whole = found.time, found.time.total or 1.0
    shares = [
        ("products", time.products),
        ("other kernels", time.memory),
        ("waiting for communication", time.exposed),
        ("kernels slowed by communication beside them", time.slowed),
        ("waiting for copies", time.copying),
    ]
    return ", ".join(f"{name} {seconds_text(spent)} ({share_text(spent / whole)})" for name, spent in shares if spent)


def use_lines(found: Prediction) -> list[str]:
    uses = [
        ("MFU", found.mfu, "FLOPs of products that the step needs, recomputation left out"),
        ("HFU", found.hfu, "all that its kernels multiply"),
    ]
    shares = [f"{name} {share_text(share)} ({what})" for name, share, what in uses if share is not None]
    return [f"{', '.join(shares)}, over the {DTYPE} peak of the data sheet"] if shares else []


def coverage_line(found: Prediction) -> str:
    shares = [f"{share_text(share)} on {_basis(basis)}" for basis, share in found.coverage.items() if share]
    line = f"the time rests {', '.join(shares) or 'on nothing'}"
    return line if found.is_known else f"{line}; {missing_text(found)}"


def missing_text(found: Prediction) -> str:
    lacking = ", ".join(f"{part.by} ({count(part.sites, 'site')})" for part in found.missing)
    return f"no rate covers {lacking}: below {share_text(FULL_COVERAGE)}, so the time is a lower bound"


def _basis(basis: Basis) -> str:
    return {
        Basis.MEASURED: "measured rates",
        Basis.ESTIMATED: "XLA's own estimates",
        Basis.DATA_SHEET: "data sheets",
        Basis.NOTHING: "nothing",
    }[basis]


def notes(found: Prediction) -> list[str]:
    lines = [f"note: {note}" for note in found.notes]
    if found.is_known and found.missing:
        lines.append(
            f"note: no rate covers {', '.join(part.by for part in found.missing)}: its traffic counts, at least"
        )
    if others := found.transfers[LARGEST:]:
        waited = seconds_text(sum(row.exposed for row in others))
        lines.append(f"note: {count(len(others), 'more transfer')}, waited for {waited} in all; --json has them")
    return lines


def _parts(found: Prediction) -> list[Column]:
    rows: list[Part] = sorted(found.parts, key=lambda part: -part.seconds)
    return [
        Column("time goes into", tuple(part.by for part in rows)),
        Column("sites", tuple(f"{part.sites:,}" if part.sites else "" for part in rows), is_number=True),
        Column("seconds a step", tuple(seconds_text(part.seconds) for part in rows), is_number=True),
        Column("rests on", tuple(part.basis for part in rows)),
        Column("within", tuple(f"{part.spread:.0%}" if part.spread else "" for part in rows), is_number=True),
    ]


def _axes(found: Prediction) -> list[Column]:
    return [
        Column("axes", tuple("not known" if row.axes == "?" else row.axes for row in found.axes)),
        Column("on the wire", tuple(seconds_text(row.wire) for row in found.axes), is_number=True),
        Column("waited for", tuple(seconds_text(row.exposed) for row in found.axes), is_number=True),
        Column("step without it", tuple(seconds_text(row.step_without) for row in found.axes), is_number=True),
    ]


def _transfers(found: Prediction) -> list[Column]:
    rows = found.transfers[:LARGEST]
    folder = common_folder(found.ledger)
    columns = [
        Column("transfer", tuple(str(row.transfer.kind) for row in rows)),
        Column("axes", tuple(axes_text(row.transfer) for row in rows)),
        Column("executions", tuple(f"{row.transfer.executions:,}" for row in rows), is_number=True),
        Column("on the wire", tuple(seconds_text(row.wire) for row in rows), is_number=True),
        Column("waited for", tuple(seconds_text(row.exposed) for row in rows), is_number=True),
        Column("rests on", tuple(row.basis for row in rows)),
        Column("phase", tuple(row.transfer.phase or "" for row in rows)),
        Column("scope", tuple(row.transfer.scope_or_function for row in rows)),
        Column("origin", tuple(shortened(row.transfer.origin or "", folder) for row in rows)),
    ]
    return [column for column in columns if any(column.cells)]


def _phases(found: Prediction) -> list[Column]:
    rows = found.phases
    return [
        Column("kernels of", tuple(row.phase or "no phase" for row in rows)),
        Column("seconds", tuple(seconds_text(row.seconds) for row in rows), is_number=True),
        Column("TFLOP/s", tuple(f"{row.flops / row.seconds / 1e12:,.0f}" for row in rows), is_number=True),
        Column("GB/s", tuple(f"{row.bytes / row.seconds / 1e9:,.0f}" for row in rows), is_number=True),
        Column("FLOP a byte", tuple(f"{row.flops / row.bytes:,.0f}" if row.bytes else "" for row in rows), True),
        Column("at full rates", tuple(seconds_text(row.floor) for row in rows), is_number=True),
    ]


def accuracy_text(found: Accuracy) -> str:
    """Predicted beside measured, a row a step, then the medians."""
    rows = found.rows
    columns = [
        Column("step", tuple(row.name for row in rows)),
        Column("target", tuple(row.target for row in rows)),
        Column("measured", tuple(seconds_text(row.measured_s) for row in rows), is_number=True),
        Column("predicted", tuple(_seconds_or_nothing(row.predicted_s) for row in rows), is_number=True),
        Column("off by", tuple(map(_off, rows)), is_number=True),
        Column("calibrated", tuple(_percent(row.calibrated_error) for row in rows), is_number=True),
        Column("exposed", tuple(map(_seconds_or_nothing, (row.exposed_s for row in rows))), is_number=True),
        Column("predicted", tuple(map(_seconds_or_nothing, (row.predicted_exposed_s for row in rows))), is_number=True),
        Column("what differs", tuple(row.refused or row.differs for row in rows)),
    ]
    return "\n\n".join([columns_text(columns), "\n".join(_medians(found))])


def _medians(found: Accuracy) -> list[str]:
    families = list(dict.fromkeys(row.family for row in found.rows))
    lines = [_median(family, [row for row in found.rows if row.family == family]) for family in families]
    if found.median_error is not None and found.worst_error is not None:
        lines.append(f"all: off by {found.median_error:.1%} in the median, {found.worst_error:+.1%} at worst")
    if found.median_calibrated is not None:
        lines.append(f"calibrated by the first row of each family: {found.median_calibrated:.1%} in the median")
    return lines


def _median(family: str, rows: Sequence[Row]) -> str:
    errors = [abs(row.error) for row in rows if row.error is not None and row.is_known]
    told = f"off by {median(errors):.1%} in the median" if errors else "nothing that is known"
    pairs = [(r.exposed_s, r.predicted_exposed_s) for r in rows if r.exposed_s and r.predicted_exposed_s is not None]
    if pairs:
        share = median(abs(guess / seen - 1) for seen, guess in pairs)
        apart = seconds_text(median(abs(guess - seen) for seen, guess in pairs))
        told += f"; exposed communication off by {share:.1%} and {apart} in the median"
    if (found := order(rows)).pairs:
        told += (
            f"; two settings in the right order in {found.right} of {found.pairs} pairs, and in {found.right_apart} of "
            f"the {found.pairs_apart} that are more than {seconds_text(APART_S)} apart"
        )
    return f"{family}: {count(len(rows), 'step')}, {told}"


def _seconds_or_nothing(seconds: float | None) -> str:
    return "" if seconds is None else seconds_text(seconds)


def _off(row: Row) -> str:
    return _percent(row.error) + ("" if row.is_known or row.error is None else ", at least")


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
