"""`lab run`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.cli import options, running
from lab.core.files import write_whole
from lab.harness import suite
from lab.meshes.axes import Axes
from lab.meshes.backends import skip_code_optimization
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.report import answers, curves, verdicts

_STYLES = ", ".join(f"{style} ({what})" for style, what in options.STYLES.items()) + "; by default those of verify."


@click.command()
@click.argument("names", metavar="EXPERIMENT...", nargs=-1, required=True, type=options.EXPERIMENT)
@options.target(
    f"What to compile for: {options.TARGET_FORMS}. By default the experiment's own.", "targets", multiple=True
)
@click.option("--style", "styles", metavar="STYLE", multiple=True, type=options.STYLE, help=_STYLES)
@options.mesh
@options.settings("A parameter: layers=4. lab list EXPERIMENT says which there are.")
@options.html
@options.as_json
def run(
    names: tuple[str, ...],
    targets: tuple[Target, ...],
    styles: tuple[str, ...],
    mesh: Axes | None,
    settings: tuple[tuple[str, str], ...],
    html: Path | None,
    as_json: bool,
) -> int:
    """Run experiments and compare theory with compiled programs.

    Each program is compiled, and every transfer that theory predicts is settled with those in the compiled text, term
    by term. lab list shows the experiments.
    """
    # JAX looks for accelerators only where it is told so before it starts: a question may be told by --set.
    told = [parse_target(value) for name, value in settings if name == "target"]
    if all(target.platform != "attached" for target in (*targets, *told)):
        skip_code_optimization()
    experiments, trainings, questions = suite.parted(suite.load(names, (*targets, *told)))
    for question in questions:
        if styles or mesh or (targets and not question.targets):
            reason = (
                "chooses styles and meshes itself; leave out"
                if question.targets
                else "has no program to compile; leave out --target,"
            )
            raise UsageError(f"{question.name} {reason} --style and --mesh")
    if trainings and mesh:
        raise UsageError(f"{trainings[0].name} has a mesh for each layout; leave out --mesh")
    if note := running.left_out(dict(settings)):
        click.echo(f"lab: {note}", err=True)
    results = running.results(suite.placed(experiments, targets, styles, dict(settings)), mesh)
    trained, lost = running.trained(trainings, targets, styles, dict(settings))
    answered = running.answered(questions, dict(settings) | ({"target": str(targets[0])} if targets else {}))
    if html:
        from lab.report.html import reports

        write_whole(html, reports.experiments(results, trained, answered, is_audit=False))
    return running.report(
        as_json,
        lost,
        (results, verdicts.results_text),
        (trained, curves.trained_text),
        (answered, answers.answers_text),
    )
