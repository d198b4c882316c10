"""How well predicted seconds agree with measured ones: every step of which a time was recorded, here or by others, with
the schedule that was compiled for it."""

from __future__ import annotations

import lzma
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import combinations
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
APART_S = 1e-4
"""Times closer than this may change their order from run to run."""


@dataclass(frozen=True)
class Record:
    """A step that was timed.

    Attributes:
      family: of one machine and software: what one row of it is calibrated by holds for the others.
      source: who measured, or where it is published.
      compiled: by what the schedule was compiled, and how, where that is not what was timed.
      differs: what was timed that the schedule does not do, or the other way round.
      are_alike: the programs of its family: what one is calibrated by may hold for the others.
      exposed_s: seconds in which a GPU ran a collective and no other kernel, as a profiler saw it.
      overlap: the setting that it was compiled with, of several for the same step.
      is_brief: it was timed for tenths of a second, before the chip lowered its clock.
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
    exposed_s: float | None = None
    overlap: str = ""
    is_brief: bool = False

    def predicted(self) -> Prediction:
        """At the rates that ship; nothing of them is fitted to a record."""
        target = parse_target(self.target)
        found = schedule_from(self.schedule)
        named = replace(found, ledger=replace(found.ledger, source=self.name, target=self.target))
        rates = rates_of(target.chip or "")
        return of_schedule(named, rates.at_first if self.is_brief else rates, target.hardware)


@dataclass(frozen=True)
class Row:
    """One step: predicted seconds and what they are off by, cold and after calibration by the first row of its family,
    which is None for that row; `refused`: why there is no prediction.

    Attributes:
      exposed_s, predicted_exposed_s: seconds in which a GPU ran a collective and no other kernel; None where no profile
        was taken.
      overlap: see `Record`.
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
    exposed_s: float | None = None
    predicted_exposed_s: float | None = None
    overlap: str = ""

    @property
    def step(self) -> str:
        """Without its setting of overlap."""
        return self.name.removesuffix(f", {self.overlap}")


@dataclass(frozen=True)
class Order:
    """How often the prediction puts two settings of overlap of one step into the order of their exposed communication.

    Attributes:
      right: of `pairs`.
      right_apart: of `pairs_apart`, which differ by more than `APART_S`.
    """

    pairs: int
    right: int
    pairs_apart: int
    right_apart: int


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
        record.exposed_s,
        None if found is None or record.exposed_s is None else found.time.exposed,
        record.overlap,
    )


def order(rows: Iterable[Row]) -> Order:
    """Of all pairs of rows of one step."""
    by_step: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.overlap and row.exposed_s is not None and row.predicted_exposed_s is not None:
            by_step[row.step].append((row.exposed_s, row.predicted_exposed_s))
    apart = [
        (one[0] - other[0], one[1] - other[1]) for some in by_step.values() for one, other in combinations(some, 2)
    ]
    far = [pair for pair in apart if abs(pair[0]) > APART_S]
    right, right_far = (sum(seen * told > 0 for seen, told in pairs) for pairs in (apart, far))
    return Order(len(apart), right, len(far), right_far)


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
    exposed_s: float | None = None,
    overlap: str = "",
) -> Record:
    """A step with its schedule."""
    kept = to_json(schedule)
    return Record(
        SCHEMA, name, family, target, measured_s, source, compiled, kept, differs, are_alike, exposed_s, overlap
    )
