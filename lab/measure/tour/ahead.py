"""The steps of a tour's record predicted once more without its cards: `python -m lab.measure.tour.ahead RECORD > FILE`,
on any laptop.

Rates are the record's, texts are compiled here ahead of time; what was measured stands beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import click
import jax
import msgspec

from lab.core.codec import Size, from_json, to_text
from lab.harness import registry
from lab.measure.step_time import MeasuredRates
from lab.measure.tour.apart import TILED, add_flags
from lab.measure.tour.times import Setting, predicted_ahead
from lab.measure.tour.tour import SCHEMA as TOUR
from lab.meshes.backends import prepare
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip_names
from lab.meshes.targets import Target, parse_target

SCHEMA: Final = "sharding-lab/ahead/1"


@dataclass(frozen=True)
class AheadStepJson:
    layout: str
    style: str
    size: str
    remat: str
    measured_s: float
    predicted_s: float
    error: float
    terms_s: Mapping[str, float]


@dataclass(frozen=True)
class AheadJson:
    """The steps of a tour's record, predicted once more on a machine without its cards."""

    schema: Literal["sharding-lab/ahead/1"]
    command: str
    record: str
    target: str
    jax: str
    flags: str
    steps: tuple[AheadStepJson, ...]


@dataclass(frozen=True)
class _Machine:
    chip: str | None
    card: str


@dataclass(frozen=True)
class _Step:
    layout: str
    style: str
    size: str
    remat: str
    measured_s: Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True)
class _Tour:
    """What is read of a tour's record."""

    machine: _Machine
    devices: Size
    rates: MeasuredRates
    times: tuple[_Step, ...]


def rates(record: Mapping[str, Any]) -> MeasuredRates:
    """Those that a tour measured, from its JSON."""
    return from_json(MeasuredRates, record["rates"])


def predicted(record: Mapping[str, Any], target: Target) -> Iterator[AheadStepJson]:
    """Each step of the record, by setting, in its order."""
    for step in record["times"]:
        setting = Setting(*(step[name] for name in Setting._fields))
        terms = predicted_ahead(setting, registry.experiment(setting.layout).axes(target), target, None, rates(record))
        total, measured = terms.pop("total"), step["measured_s"]
        yield AheadStepJson(*setting, measured, total, total / measured - 1, terms)


@click.command()
@click.argument("path", metavar="RECORD", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Predicts the steps of RECORD, the JSON of `lab tour`, once more without its cards; prints JSON."""
    add_flags(TILED)
    try:
        record = _read(path)
        target = parse_target(f"gpu:{record['machine']['chip']}:1x{record['devices']}")
        prepare([target])
        steps = list(_watched(predicted(record, target), len(record["times"])))
    except UsageError as refusal:
        raise click.UsageError(str(refusal)) from refusal
    command = f"python -m lab.tour.ahead {path}"
    print(to_text(AheadJson(SCHEMA, command, path.name, str(target), jax.__version__, TILED, tuple(steps))))


def _watched(steps: Iterable[AheadStepJson], count: int) -> Iterator[AheadStepJson]:
    for number, step in enumerate(steps, 1):
        print(f"{number}/{count} {step.layout} {step.size} {step.error:+.1%}", file=sys.stderr)
        yield step


def _read(path: Path) -> Mapping[str, Any]:
    record: Mapping[str, Any] = read_json(path, "expected the output of lab tour --save")
    if not (isinstance(record, dict) and record.get("schema") == TOUR and record.get("times")):
        raise UsageError(f"{path}: found no times of steps; expected the output of lab tour times --save")
    try:
        from_json(_Tour, record)
    except UsageError as refusal:
        raise UsageError(f"{path}: {refusal}; expected the output of lab tour times --save") from None
    if record["machine"]["chip"] not in chip_names("gpu"):
        raise UsageError(
            f"{path}: found times of {record['devices']} x {record['machine']['card']}, expected GPUs of the table of "
            f"hardware: {', '.join(chip_names('gpu'))}"
        )
    return record


if __name__ == "__main__":
    main()
