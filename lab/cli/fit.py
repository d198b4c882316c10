"""`lab fit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from lab.cli import options, running
from lab.cli.output import print_json, print_text
from lab.cli.progress import stages
from lab.compile.other_process import other_process
from lab.harness import suite
from lab.harness.experiment import Experiment, Run
from lab.harness.result import Result
from lab.meshes.axes import Axes
from lab.meshes.backends import prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target


@click.command()
@click.argument("name", metavar="EXPERIMENT", type=options.EXPERIMENT)
@options.target("What to compile for: gpu:h100:2x8 or tpu:v5p:2x2x4. By default the experiment's own.")
@click.option(
    "--style", metavar="STYLE", type=options.STYLE, help=f"{', '.join(options.STYLES)}; by default its first."
)
@options.mesh
@options.settings("A parameter: layers=80. lab list EXPERIMENT says which there are.")
@options.as_json
def fit(
    name: str,
    target: Target | None,
    style: str | None,
    mesh: Axes | None,
    settings: tuple[tuple[str, str], ...],
    as_json: bool,
) -> int:
    """Find what makes a step fit the memory of its device.

    Compares the peak that XLA plans with what JAX takes of the chip. Where it is too much, the lab changes what is
    recomputed, offloaded, taken at once and sharded, and compiles each change, the cheapest first, until one fits. Exit
    status 1 if none does.
    """
    run = _run(name, target, style, mesh, dict(settings))  # First, for it gets JAX ready before that is imported.
    from lab.harness.fit import fitting
    from lab.report.fit import fit_text

    with stages() as stage, other_process() as call:

        def compiled(parameters: Any, axes: Axes, words: str) -> Result:
            sized = replace(run.experiment, parameters=parameters)
            with stage(f"compiling {name} for {run.target}: {words}"):
                return running.result(call, run._replace(experiment=sized, axes=axes), [run.target])

        with stage(f"{name} on {run.target}: predicting and choosing"):
            found = fitting.fit(run, dict(settings), compiled)
    if as_json:
        print_json(found.json_object())
    else:
        print_text(fit_text(found))
    return 0 if found.answer else 1


def _run(
    name: str, target: Target | None, style: str | None, mesh: Axes | None, settings: dict[str, str]
) -> Run[Experiment]:
    """The step as asked; by default on the first of its experiment's targets that names a chip.

    Raises:
      UsageError: it is no experiment with one program.
    """
    experiments, *_ = suite.parted(suite.load([name], [target] if target else []))
    if not experiments:
        raise UsageError(f"{name} has no one program to fit; expected an experiment, as lab list calls it")
    (experiment,) = experiments
    chips = [one for one in map(parse_target, experiment.targets) if one.chip and experiment.place is None]
    run = suite.placed([experiment], [target] if target else chips[:1], [style] if style else [], settings)[0]
    prepare([run.target])
    return run._replace(axes=mesh or run.axes)
