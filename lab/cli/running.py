"""Running experiments and trainings, and printing what they came to: what `lab run` and `lab verify` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lab.cli.output import print_json, print_text
from lab.cli.progress import watched
from lab.harness import suite
from lab.harness.experiment import Experiment, Run
from lab.meshes.axes import Axes
from lab.meshes.backends import prepare
from lab.meshes.targets import Target, parse_target

if TYPE_CHECKING:
    from lab.harness.decoder.training import Training, TrainingResult
    from lab.harness.question import Answer, Question
    from lab.harness.result import Result


def results(
    runs: Sequence[Run[Experiment]], mesh: Axes | None = None, settings: Mapping[str, str] | None = None
) -> list[Result]:
    # Where nothing is run nothing is prepared: without targets that would turn accelerators off.
    if runs:
        prepare([run.target for run in runs])
    return suite.results(watched(runs, lambda run: f"{run}: {run.experiment.question}"), mesh, settings)


def trained(
    trainings: Sequence[Training],
    targets: Sequence[Target] = (),
    styles: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> list[TrainingResult]:
    if trainings:
        prepare([target for training in trainings for target in targets or map(parse_target, training.targets)])
    return suite.trained(trainings, targets, styles, settings or {}, watched)


def answered(questions: Sequence[Question], settings: Mapping[str, str] | None = None) -> list[Answer]:
    return suite.answers(watched(questions, lambda question: f"{question.name}: {question.question}"), settings)


def report(as_json: bool, *some: tuple[Sequence[Result | TrainingResult | Answer], Callable[..., str]]) -> int:
    """Prints results, each kind by its function; 1 where something failed or was refuted."""
    from lab.harness.schemas import SCHEMA, RunJson

    every = [result for group, _ in some for result in group]
    if as_json:
        print_json(RunJson(SCHEMA, tuple(result.json_object() for result in every)))
    else:
        print_text("\n\n\n".join(text(group) for group, text in some if group))
    return 0 if all(result.is_fine for result in every) else 1
