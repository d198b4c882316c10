"""How well predicted seconds agree with measured ones: every step of which a time was recorded, here or by others, with
the schedule that was compiled for it."""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import median
from typing import Annotated, Any, Final

import msgspec

from lab.core.codec import from_json, to_json
from lab.measure.prediction import Prediction, of_schedule
from lab.measure.rates.table import rates_of
from lab.measure.schedule import Schedule, schedule_from
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target

SCHEMA: Final = "sharding-lab/step/1"
SUFFIX = ".json.xz"


@dataclass(frozen=True)
class Record:
    """A step that was timed.

    Attributes:
      family: of one machine and software: what one row of it is calibrated by holds for the others.
      source: who measured, or where it is published.
      compiled: by what the schedule was compiled, and how, where that is not what was timed.
      differs: what was timed that the schedule does not do, or the other way round.
      are_alike: the programs of its family: what one is calibrated by may hold for the others.
      waited_s: seconds in which a GPU ran no kernel but collectives, as a profiler saw it.
    """

    schema: Annotated[str, msgspec.Meta(pattern=f"^{SCHEMA}$")]
    name: str
    family: str
    target: str
    measured_s: Annotated[float, msgspec.Meta(gt=0)]
    source: str
    compiled: str
    schedule: Any
    differs: str = ""
    are_alike: bool = True
    waited_s: float | None = None

    def predicted(self) -> Prediction:
        """At the rates that ship; nothing of them is fitted to a record."""
        target = parse_target(self.target)
        found = schedule_from(self.schedule)
        named = replace(found, ledger=replace(found.ledger, source=self.name, target=self.target))
        return of_schedule(named, rates_of(target.chip or ""), target.hardware)


@dataclass(frozen=True)
class Row:
    """One step: predicted seconds and what they are off by, cold and after calibration by the first row of its family,
    which is None for that row; `refused`: why there is no prediction.

    Attributes:
      waited_s, exposed_s: seconds that a GPU waited for communication, and those predicted; None where no profile was
        taken.
    """

    name: str
    family: str
    target: str
    source: str
    differs: str
    measured_s: float
    predicted_s: float | None
    error: float | None
    calibrated_error: float | None
    is_known: bool
    refused: str = ""
    waited_s: float | None = None
    exposed_s: float | None = None


@dataclass(frozen=True)
class Accuracy:
    """Attributes: median_error, median_calibrated: of the absolute errors of the rows that are known."""

    rows: tuple[Row, ...]
    median_error: float | None
    worst_error: float | None
    median_calibrated: float | None


def accuracy(records: Iterable[Record]) -> Accuracy:
    """Predicted against measured, family by family."""
    rows: list[Row] = []
    for record in records:
        try:
            found = record.predicted()
        except UsageError as refusal:
            rows.append(_row(record, None, rows, str(refusal)))
        else:
            rows.append(_row(record, found, rows))
    errors = [row.error for row in rows if row.error is not None and row.is_known]
    calibrated = [row.calibrated_error for row in rows if row.calibrated_error is not None and row.is_known]
    return Accuracy(
        tuple(rows),
        median(map(abs, errors)) if errors else None,
        max(errors, key=abs) if errors else None,
        median(map(abs, calibrated)) if calibrated else None,
    )


def _row(record: Record, found: Prediction | None, before: Sequence[Row], refused: str = "") -> Row:
    seconds = found.time.total if found else None
    first = (
        next((row for row in before if row.family == record.family and row.predicted_s and row.is_known), None)
        if record.are_alike
        else None
    )
    scale = first.measured_s / first.predicted_s if first and first.predicted_s else None
    return Row(
        record.name,
        record.family,
        record.target,
        record.source,
        record.differs,
        record.measured_s,
        seconds,
        seconds / record.measured_s - 1 if seconds else None,
        scale * seconds / record.measured_s - 1 if seconds and scale else None,
        found is not None and found.is_known,
        refused,
        record.waited_s,
        None if found is None or record.waited_s is None else found.time.exposed,
    )


def records() -> list[Record]:
    """Those that ship with the lab, by family and name."""
    folder = files("lab.measure") / "records"
    found = [_read(one.read_bytes()) for one in folder.iterdir() if one.name.endswith(SUFFIX)]
    return sorted(found, key=lambda record: (record.family, record.name))


def _read(packed: bytes) -> Record:
    return from_json(Record, msgspec.json.decode(lzma.decompress(packed)))


def packed(record: Record) -> bytes:
    """As it is kept."""
    return lzma.compress(msgspec.json.encode(record), preset=9)


def record_of(
    name: str,
    family: str,
    target: str,
    measured_s: float,
    schedule: Schedule,
    *,
    source: str,
    compiled: str,
    differs: str = "",
    are_alike: bool = True,
    waited_s: float | None = None,
) -> Record:
    """A step with its schedule."""
    kept = to_json(schedule)
    return Record(SCHEMA, name, family, target, measured_s, source, compiled, kept, differs, are_alike, waited_s)
