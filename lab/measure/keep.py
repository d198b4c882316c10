"""Compiles a published run's step, or the steps of a tour's record, and keeps their schedules beside the measured
times: `python -m lab.measure.keep --row maxtext-8b-v6e-8`, or `--tour results/tour_2xh200_jax0.11.2.json`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import jax

from lab.core.files import write_whole
from lab.core.known import known
from lab.harness import registry
from lab.harness.decoder.published import PublishedShape, placed
from lab.harness.experiment import Experiment
from lab.harness.run import program_of
from lab.measure.accuracy import SUFFIX, Record, packed, record_of
from lab.measure.schedule import Schedule
from lab.measure.tour.apart import TILED, add_flags
from lab.measure.tour.times import Setting, branches_by_trip
from lab.meshes.axes import Axes
from lab.meshes.backends import prepare
from lab.meshes.documents import read_json
from lab.meshes.targets import Target, parse_target
from lab.zoo import published_run

FOLDER = Path(__file__).parent / "records"


@click.command()
@click.option("--row", "rows", multiple=True, metavar="ROW", help="Of the table of published runs.")
@click.option("--tour", "tours", multiple=True, metavar="FILE", type=click.Path(exists=True, path_type=Path))
def main(rows: tuple[str, ...], tours: tuple[Path, ...]) -> None:
    add_flags(TILED)
    for row in rows:
        _keep(_published(row))
    for path in tours:
        for record in _toured(path):
            _keep(record)


def _keep(record: Record) -> None:
    path = FOLDER / (re.sub(r"[^\w.-]+", "_", record.name) + SUFFIX)
    write_whole(path, packed(record))
    print(path.name, file=sys.stderr)


def _published(row: str) -> Record:
    run = published_run(row)
    experiment = next(one for one in map(registry.load, registry.names()) if isinstance(one, Experiment) and one.place)
    parameters, target, axes = placed(PublishedShape.preset(row), None)
    schedule = _schedule(experiment, "explicit", parameters, target, axes)
    return record_of(
        row,
        run.source.split(",")[0],
        run.target,
        known(run.step_s),
        schedule.with_fused_attention(),
        source=run.source,
        compiled=f"lab run {experiment.name} --set row={row}, jax {jax.__version__}",
        differs=f"{run.differs}; attention to tiles of keys counts as one kernel, as theirs is",
    )


def _toured(path: Path) -> Iterator[Record]:
    record = read_json(path, "expected the output of lab tour --save")
    target = parse_target(f"gpu:{record['machine']['chip']}:1x{record['devices']}")
    for step in record["times"]:
        setting = Setting(*(step[name] for name in Setting._fields))
        experiment = registry.experiment(setting.layout)
        schedule = _schedule(experiment, setting.style, setting.shape, target, experiment.axes(target))
        yield record_of(
            f"{record['devices']}xH200 {setting}",
            f"the lab's steps on {record['devices']} x H200",
            str(target),
            step["measured_s"],
            schedule,
            source=path.name,
            compiled=f"ahead of time, jax {jax.__version__}, {TILED}; what was timed was compiled on the card",
        )


def _schedule(experiment: Experiment, style: str, parameters: Any, target: Target, axes: Axes) -> Schedule:
    prepare([target])
    program = program_of(experiment, style, parameters, target, axes)
    found = Schedule.of(program, target, branches_by_trip(parameters, axes.shape))
    return replace(found, ledger=replace(found.ledger, memory=None))


if __name__ == "__main__":
    main()
