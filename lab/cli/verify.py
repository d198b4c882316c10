"""`lab verify`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lab.cli import options, running
from lab.cli.output import write
from lab.harness import suite
from lab.meshes import plugins
from lab.meshes.targets import parse_target
from lab.report import answers, curves, verdicts


@click.command()
@click.option(
    "--full",
    is_flag=True,
    help="For every known chip, at real size and at drawn ones, with trainings and the questions that compile.",
)
@options.html
@options.as_json
def verify(full: bool, html: Path | None, as_json: bool) -> int:
    """Runs every experiment in its styles on its targets, and ends with a table of verdicts. Trainings and questions
    that compile take minutes: --full, or lab run."""
    experiments, trainings, questions = suite.parted(suite.load())
    runs = suite.runs(experiments)
    runs = (
        [
            *suite.on_every_chip(runs),
            *suite.in_more_styles(experiments),
            *suite.at_real_size(experiments),
            *suite.at_unseen_sizes(experiments),
        ]
        if full
        else runs
    )
    missing = suite.without_plugin(runs)
    for platform in missing:
        print(
            f"lab: no {platform} targets, the plugin is not installed; run: {plugins.install_command(platform)}",
            file=sys.stderr,
        )
    results = running.results([run for run in runs if run.target.platform not in missing])
    compilable = [
        question
        for question in questions
        if not {parse_target(target).platform for target in question.targets} & set(missing)
    ]
    trained = running.trained(trainings) if full else []
    answered = suite.answers(question for question in compilable if full or not question.targets)
    if html:
        from lab.report.html import reports

        write(html, reports.experiments(results, trained, answered, is_audit=True))
    return running.report(
        as_json, (results, verdicts.summary_text), (trained, curves.trained_text), (answered, answers.summary_text)
    )
