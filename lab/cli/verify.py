"""`lab verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click

from lab.cli import options, running
from lab.cli.output import print_text
from lab.core.files import write_whole
from lab.harness import suite
from lab.harness.drawn_runs import drawn_runs
from lab.harness.experiment import Experiment, Run
from lab.meshes import plugins
from lab.meshes.backends import skip_code_optimization
from lab.meshes.targets import parse_target
from lab.report import answers, curves, verdicts

DRAWN, DRAWN_COMPOSITIONS = 200, 30
"""Random configurations of `--full`: of all experiments, and of several parallelisms on one mesh."""


@click.command()
@click.option(
    "--all", "every", is_flag=True, help="Every experiment in its styles on its targets: a quarter of an hour."
)
@click.option(
    "--full",
    is_flag=True,
    help="All of these for every known chip, at real and at random sizes, with trainings and questions that compile: "
    "hours.",
)
@click.option(
    "--seed",
    type=int,
    help="Draws the random configurations of --full; by default the date, such as 20270131, so that each day draws its "
    "own.",
)
@options.html
@options.as_json
def verify(every: bool, full: bool, seed: int | None, html: Path | None, as_json: bool) -> int:
    """Run the experiments and print a table of verdicts.

    By default one run for each property of the book and each compiler, in about three minutes on two cores.
    """
    skip_code_optimization()
    experiments, trainings, questions = suite.parted(suite.load())
    runs = _runs(experiments, every, full)
    seed = int(f"{date.today():%Y%m%d}") if seed is None else seed
    drawn = _drawn(experiments, seed) if full else []
    if full:
        print(f"lab: random configurations are drawn by --seed {seed}", file=sys.stderr)
    missing = suite.without_plugin([*runs, *drawn])
    for platform in missing:
        print(
            f"lab: no {platform} targets, the plugin is not installed; run: {plugins.install_command(platform)}",
            file=sys.stderr,
        )
    own, random = ([run for run in some if run.target.platform not in missing] for some in (runs, drawn))
    results = running.results(own) + (running.results(random, may_refuse=True) if random else [])
    trained, lost = running.trained(trainings if full else [])
    asked = [question for question in questions if full or (not question.targets and (every or question.is_quick))]
    answered = running.answered(
        [
            question
            for question in asked
            if not {parse_target(target).platform for target in question.targets} & set(missing)
        ]
    )
    if html:
        from lab.report.html import reports

        write_whole(html, reports.experiments(results, trained, answered, is_audit=True))
    status = running.report(
        as_json,
        lost,
        (results, verdicts.summary_text),
        (trained, curves.trained_text),
        (answered, answers.summary_text),
    )
    if not (as_json or every or full):
        print_text(f"\nThat was one run for each property and compiler. {_more(experiments)}")
    return status


def _runs(experiments: Sequence[Experiment], every: bool, full: bool) -> list[Run[Experiment]]:
    runs = suite.runs(experiments) if every or full else suite.everyday(experiments)
    if not full:
        return runs
    return [
        *suite.on_every_chip(runs),
        *suite.in_more_styles(experiments),
        *suite.at_real_size(experiments),
        *suite.at_unseen_sizes(experiments),
    ]


def _drawn(experiments: Sequence[Experiment], seed: int) -> list[Run[Experiment]]:
    from lab.harness.decoder.drawn_compositions import drawn_compositions

    composed = suite.composed(experiments)
    others = [one for one in experiments if one not in composed]
    return [*drawn_runs(others, DRAWN, seed), *drawn_compositions(composed, DRAWN_COMPOSITIONS, seed)]


def _more(experiments: Sequence[Experiment]) -> str:
    full = len(_runs(experiments, True, True)) + DRAWN + DRAWN_COMPOSITIONS
    return (
        f"--all makes all {len(_runs(experiments, True, False))} runs of every experiment, style and target; --full "
        f"makes {full}, for every known chip and at real sizes, with trainings."
    )
