"""Running experiments and trainings, and printing what they came to: what `lab run` and `lab verify` share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from lab.cli.output import print_json, print_text
from lab.cli.progress import stages, watched
from lab.compile.other_process import Call, ProcessEnded, other_process
from lab.harness import suite
from lab.harness.experiment import Experiment, Run
from lab.harness.result import Result, Seconds
from lab.harness.settings import with_settings
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target

if TYPE_CHECKING:
    from lab.harness.decoder.training import Training, TrainingResult
    from lab.harness.question import Answer, Question


Lost = tuple[str, ...]
"""Sentences on trainings whose process was ended."""


def left_out(settings: Mapping[str, str]) -> str:
    """A sentence about what a preset has not of its model, or nothing."""
    from lab.programs.models.shape import DecoderShape

    name = settings.get("preset", "")
    if not name or not (parameters := DecoderShape.left_out(name)):
        return ""
    rest = DecoderShape.preset(name).parameters
    return f"preset={name} has {rest:,} parameters; {parameters:,} biases and learned positions are left out"


def results(runs: Sequence[Run[Experiment]], mesh: Axes | None = None, may_refuse: bool = False) -> list[Result]:
    """In another process: where XLA aborts that run has failed, and the next one starts another process.

    Args:
      may_refuse: a run that its experiment refuses is a line on stderr, not an error; the others go on.
    Raises:
      UsageError: a run is refused.
    """
    targets = list(dict.fromkeys(run.target for run in runs))
    found = []
    with other_process() as call:
        for run in watched(runs, lambda run: f"{run}: {run.experiment.question}"):
            try:
                found.append(result(call, run._replace(axes=mesh or run.axes), targets))
            except UsageError as refusal:
                if not may_refuse:
                    raise
                print(f"lab: {run} is refused: {refusal}", file=sys.stderr)
    return found


def result(call: Call, run: Run[Experiment], targets: Sequence[Target]) -> Result:
    """Of one run in another process, which JAX is made ready in for all targets; failed where that is ended."""
    experiment, target, style, axes = run
    start = time.perf_counter()
    try:
        return call(suite.result_by_name, experiment.name, target, style, experiment.parameters, axes, targets)
    except ProcessEnded as how:
        seconds = Seconds(0.0, 0.0, time.perf_counter() - start)
        mesh, sizes = axes.shape if axes else {}, asdict(experiment.parameters)
        return Result(experiment.name, style, str(target), mesh, sizes, seconds, failure=f"its process {how}")


def trained(
    trainings: Sequence[Training],
    targets: Sequence[Target] = (),
    styles: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> tuple[list[TrainingResult], Lost]:
    found: list[TrainingResult] = []
    lost: dict[str, str] = {}
    with stages() as stage, other_process(stage) as call:
        for work in (suite.check_training_by_name, suite.trained_by_name):
            for training in trainings:
                try:
                    if training.name not in lost:
                        found += call(work, training.name, targets, styles, settings or {})
                except ProcessEnded as how:
                    lost[training.name] = f"{training.name} failed: its process {how}"
    return found, tuple(lost.values())


def answered(questions: Sequence[Question], settings: Mapping[str, str] | None = None) -> list[Answer]:
    """Those that compile programs in another process."""
    from lab.harness.question import Answer

    found: list[Answer] = []
    with other_process() as call:
        for question in watched(questions, lambda question: f"{question.name}: {question.question}"):
            start = time.perf_counter()
            if not question.targets:
                found += suite.answers([question], settings)
                continue
            try:
                found.append(call(suite.answer_by_name, question.name, settings or {}))
            except ProcessEnded as how:
                seconds, parameters = time.perf_counter() - start, with_settings(question.parameters, settings or {})
                failure = f"its process {how}"
                found.append(Answer(question.name, question.question, asdict(parameters), (), (), seconds, failure))
    return found


def report(
    as_json: bool, lost: Lost, *some: tuple[Sequence[Result | TrainingResult | Answer], Callable[..., str]]
) -> int:
    """Prints results, each kind by its function; 1 where something failed or was refuted."""
    from lab.harness.schemas import SCHEMA, RunJson

    every = [result for group, _ in some for result in group]
    if as_json:
        print_json(RunJson(SCHEMA, tuple(result.json_object() for result in every)))
    else:
        print_text("\n\n\n".join(text(group) for group, text in some if group))
    for sentence in lost:
        print(f"lab: {sentence}", file=sys.stderr)
    return 0 if all(result.is_fine for result in every) and not lost else 1
