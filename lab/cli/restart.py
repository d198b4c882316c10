"""`lab restart`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from lab.cli import options, running
from lab.cli.output import print_json, print_text
from lab.cli.programs import programs
from lab.cli.progress import stages
from lab.compile import sources
from lab.compile.other_process import Call, Stage, other_process
from lab.core.files import write_whole
from lab.core.known import known
from lab.diagnosis.remedy import Donate, NotApplicable
from lab.harness import registry, suite
from lab.harness.experiment import Experiment, Run
from lab.harness.result import Result
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, check_size
from lab.report.restart import restart_text
from lab.resilience.loss import Loss
from lab.resilience.meshes import other_splits, replica_axes
from lab.resilience.restart import LeverJson, restarts
from lab.resilience.survey import Survey, surveyed
from lab.resilience.tiers import Failures, Machine, parse_rate, parse_seconds

LOSS = options.Parsed("loss", Loss.parse)
FAILURES = options.Parsed("failures", Failures.parse)
RATE = options.Parsed("rate", parse_rate)
SECONDS = options.Parsed("seconds", partial(parse_seconds, option="--restart"))

MOST_SPLITS = 4
"""Other meshes that are compiled where a program does not fit."""


@click.command()
@click.argument("source", metavar="SOURCE")
@options.mesh
@options.target("The machine as it is, such as gpu:h100:16x8.")
@click.option(
    "--lose",
    "losses",
    metavar="LOSS",
    type=LOSS,
    multiple=True,
    default=("host",),
    help="What fails: device, host, rack (four hosts), slice, or a number of devices; as often as wanted.",
)
@click.option(
    "--mtbf",
    "failures",
    metavar="TIME",
    type=FAILURES,
    default="50000h",
    help="Between failures of one device, 50000h by default; device=50000h,rack=1000000h adds those that fail as one.",
)
@click.option("--store", metavar="RATE", type=RATE, required=True, help="Of the whole store: 25GB/s.")
@click.option(
    "--restart",
    "restart_s",
    metavar="TIME",
    type=SECONDS,
    default="300s",
    help="From a failure until the state is loaded: detection, a new start, compilation; 300s by default.",
)
@options.settings("A parameter of an experiment: layers=80. lab list EXPERIMENT says which there are.")
@options.html
@options.as_json
def restart(
    source: str,
    mesh: Axes | None,
    target: Target | None,
    losses: tuple[Loss, ...],
    failures: Failures,
    store: float,
    restart_s: float,
    settings: tuple[tuple[str, str], ...],
    html: Path | None,
    as_json: bool,
) -> int:
    """Say before a failure what remains after it.

    Which meshes, whether the step compiles and fits there and how long it takes, which bytes a restore needs from peers
    and from the store, how often to save where, and the goodput to expect. SOURCE is file.py:build or
    package.module:build, where build(mesh) is called with every mesh, or the name of an experiment.
    """
    is_experiment = source in registry.names()
    if not is_experiment and (mesh is None or target is None or not sources.is_program(source)):
        raise UsageError(
            "lab restart builds a step on several meshes: expected the name of an experiment, or file.py:build, --mesh "
            "data=16,tensor=8 and --target"
        )
    if settings and not is_experiment:
        raise UsageError(
            f"--set {'='.join(settings[0])}: a parameter of experiments, and {source} is a program of yours"
        )
    run = (
        suite.placed(suite.parted(suite.load([source]))[0], [target] if target else [], [], dict(settings))[0]
        if is_experiment
        else None
    )
    target = run.target if run else known(target)
    mesh = mesh or (run.axes or run.experiment.axes(target) if run else known(mesh))
    check_size(target, mesh)
    machine = Machine(target, failures, store, restart_s)
    with stages() as stage, other_process(stage) as call:

        def compiled(axes: Axes, part: Target) -> Survey:
            if run is None:
                return programs(source, TypedAxes(axes), part, stage, call, surveyed)[0]
            from lab.resilience.experiments import resized, surveyed_by_name

            sized = resized(run.experiment.parameters, mesh, axes)
            return call(surveyed_by_name, source, run.style, sized, axes, part)

        def levers(axes: Axes, part: Target) -> Iterator[LeverJson]:
            if run is None:
                return _of_program(source, axes, part, stage, call)
            from lab.resilience.experiments import resized

            sized = replace(run.experiment, parameters=resized(run.experiment.parameters, mesh, axes))
            return _of_experiment(run._replace(experiment=sized, target=part, axes=axes), call)

        found = restarts(source, mesh, machine, losses, compiled, levers)
    if html:
        from lab.report.html.restart import page

        write_whole(html, page(found))
    if as_json:
        print_json(found)
    else:
        print_text(restart_text(found))
    return 0 if all(any(one.can_go_on for one in loss.meshes) for loss in found.losses) else 1


def _of_program(source: str, axes: Axes, target: Target, stage: Stage, call: Call) -> Iterator[LeverJson]:
    """What can be changed without a word of the program: what it donates, and its mesh."""
    kept = ("donated state", axes, (Donate(),))
    others = [(f"mesh {mesh}", mesh, ()) for mesh in other_splits(axes, replica_axes(axes, ()))]
    for change, mesh, remedy in (kept, *others[:MOST_SPLITS]):
        try:
            survey = programs(source, TypedAxes(mesh), target, stage, call, surveyed, remedy=remedy)[0]
        except NotApplicable:
            continue
        except UsageError:
            yield LeverJson(change, None, False)
        else:
            yield LeverJson(change, survey.peak, survey.fits is True)


def _of_experiment(run: Run[Experiment], call: Call) -> Iterator[LeverJson]:
    """What `lab fit` compiles: recomputation, offloading, more micro-batches, other meshes."""
    from lab.harness.fit import fitting

    def compiled(parameters: Any, axes: Axes, words: str) -> Result:
        sized = replace(run.experiment, parameters=parameters)
        return running.result(call, run._replace(experiment=sized, axes=axes), [run.target])

    found = fitting.fit(run, {}, compiled)
    for one in found.tries:
        if one.changes and one.compiled:
            yield LeverJson(fitting.words(one.changes), one.peak, one.fits(found.pool))
