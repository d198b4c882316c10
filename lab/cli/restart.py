"""`lab restart`."""

from __future__ import annotations

from functools import partial

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import programs
from lab.cli.progress import stages
from lab.compile import sources
from lab.compile.other_process import other_process
from lab.core.known import known
from lab.harness import registry, suite
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, check_size
from lab.report.restart import restart_text
from lab.resilience.loss import Loss
from lab.resilience.restart import restarts
from lab.resilience.survey import Survey, surveyed
from lab.resilience.tiers import Failures, Machine, parse_rate, parse_seconds

LOSS = options.Parsed("loss", Loss.parse)
FAILURES = options.Parsed("failures", Failures.parse)
RATE = options.Parsed("rate", parse_rate)
SECONDS = options.Parsed("seconds", partial(parse_seconds, option="--restart"))


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
@options.as_json
def restart(
    source: str,
    mesh: Axes | None,
    target: Target | None,
    losses: tuple[Loss, ...],
    failures: Failures,
    store: float,
    restart_s: float,
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
    run = (
        suite.placed(suite.parted(suite.load([source]))[0], [target] if target else [], [], {})[0]
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

        found = restarts(source, mesh, machine, losses, compiled)
    if as_json:
        print_json(found)
    else:
        print_text(restart_text(found))
    return (
        0 if all(any(one.fits is not False and not one.refused for one in loss.meshes) for loss in found.losses) else 1
    )
