"""Which experiments are run, where and in which style. JAX is imported when experiments are loaded, and made ready
before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any

from lab.compile.other_process import Stage
from lab.harness import registry
from lab.harness.experiment import STYLES, E, Experiment, Run
from lab.harness.registry import Entry
from lab.harness.result import Result
from lab.harness.settings import with_settings
from lab.meshes import plugins
from lab.meshes.availability import availability
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

if TYPE_CHECKING:
    from lab.harness.decoder.training import LayoutUnderTraining, Training, TrainingResult
    from lab.harness.decoder.training_shape import TrainingShape
    from lab.harness.question import Answer, Question


class Takes(StrEnum):
    """How long it takes to run an experiment, a training or a question as it is by default, on two cores."""

    SECONDS = "seconds"
    MINUTE = "a minute"
    MINUTES = "minutes"


FEW_PROGRAMS = 3
"""A step of the lab's decoder at its default sizes compiles, and runs at small ones, in about six seconds of processor
time."""
REAL_SIZE = "tpu:v5p:2x2x4"
UNSEEN_ON = (REAL_SIZE, "tpu:v5e:2x4")


def load(names: Sequence[str] = (), targets: Sequence[Target] = ()) -> list[Entry]:
    """The named experiments, trainings and questions, or all of them, with JAX made ready for these targets."""
    prepare(targets)
    return [registry.load(name) for name in names or registry.names()]


def parted(
    loaded: Iterable[Entry],
) -> tuple[list[Experiment], list[Training], list[Question]]:
    """Those with one program, those with one for each layout, and those without."""
    from lab.harness.decoder.training import Training
    from lab.harness.question import Question

    loaded = list(loaded)
    return (
        [one for one in loaded if isinstance(one, Experiment)],
        [one for one in loaded if isinstance(one, Training)],
        [one for one in loaded if isinstance(one, Question)],
    )


def kind(entry: Entry) -> str:
    """`experiment`, `training` or `question`."""
    _, trainings, questions = parted([entry])
    return "training" if trainings else "question" if questions else "experiment"


def takes(entry: Entry) -> Takes:
    """By how many programs it compiles, and how often it runs them."""
    (experiments, trainings, questions) = parted([entry])
    if trainings or any(question.targets for question in questions):
        return Takes.MINUTES
    is_short = all(question.is_quick for question in questions) and all(
        len(e.styles) * len(e.targets) <= FEW_PROGRAMS for e in experiments
    )
    return Takes.SECONDS if is_short else Takes.MINUTE


def everyday(experiments: Iterable[Experiment]) -> list[Run[Experiment]]:
    """One run for each property of the book and each compiler."""
    return [Run(e, parse_target(target), style) for e in experiments for style, target in e.everyday]


def composed(experiments: Iterable[Experiment]) -> list[Experiment]:
    """Those on the step of any `Configuration`, whatever their mesh."""
    from lab.harness.decoder.composed import ComposedShape

    return [one for one in experiments if type(one.parameters) is ComposedShape]


def placed(
    experiments: Iterable[Experiment],
    targets: Sequence[Target],
    styles: Sequence[str],
    settings: Mapping[str, str],
) -> list[Run[Experiment]]:
    """As `runs`, of sizes that are set; those whose parameters say where they run are run there."""
    found = list[Run[Experiment]]()
    for one in experiments:
        parameters = with_settings(one.parameters, settings)
        if one.place is None:
            found += runs([replace(one, parameters=parameters)], targets, styles)
            continue
        for target in targets or (None,):
            sized, where, axes = one.place(parameters, target)
            # What is set counts for more than what follows from the place.
            sized = with_settings(sized, {name: text for name, text in settings.items() if name != sized.NAMED_BY})
            found += [Run(replace(one, parameters=sized), where, style, axes) for style in _styles(one, styles)]
    return found


def runs(experiments: Iterable[E], targets: Sequence[Target] = (), styles: Sequence[str] = ()) -> list[Run[E]]:
    """Every experiment in these styles on these targets; by default in all of its styles, on its own targets."""
    places = {e: targets or tuple(map(parse_target, e.targets)) for e in experiments}
    return [Run(e, target, style) for e, some in places.items() for target in some for style in _styles(e, styles)]


def _styles(experiment: Experiment, wanted: Sequence[str]) -> Sequence[str]:
    for style in wanted:
        if style not in (known := experiment.styles + experiment.more_styles):
            raise UsageError(f"{experiment.name}: {no_such('style', style, known)}")
    return wanted or experiment.styles


def in_more_styles(experiments: Iterable[Experiment]) -> list[Run[Experiment]]:
    """On their own targets, in the styles that take too long for every day."""
    return [Run(e, parse_target(target), style) for e in experiments for target in e.targets for style in e.more_styles]


def on_every_chip(some: Iterable[Run[Experiment]]) -> list[Run[Experiment]]:
    """The same runs on all chips of their platform as well (GPU clusters of the same shape, TPU topologies as `lab
    targets` lists them), and where else their experiments run."""
    return list(
        dict.fromkeys(
            run._replace(target=target)
            for run in some
            for target in (run.target, *_on_other_chips(run.target), *_besides(run))
        )
    )


def at_real_size(experiments: Iterable[Experiment]) -> list[Run[Experiment]]:
    """A whole step of Llama 3 8B under every layout, for 16 TPUs."""
    target = parse_target(REAL_SIZE)
    settings = {"preset": "llama3-8b", "batch": str(target.devices)}
    sized = [
        replace(e, parameters=with_settings(e.parameters, settings | dict(e.real_size)))
        for e in experiments
        if e.real_size is not None
    ]
    return [Run(e, target, style) for e in sized for style in e.styles]


def at_unseen_sizes(experiments: Iterable[Experiment], seed: int = 0) -> list[Run[Experiment]]:
    """A whole step of a decoder of drawn sizes under every layout, declared and explicit, for 16 TPUs and for 8."""
    from lab.harness.decoder.drawn_sizes import drawn

    layouts, draw = [e for e in experiments if e.real_size is not None], Random(seed)
    places = [(e, target) for target in map(parse_target, UNSEEN_ON) for e in layouts]
    return [
        Run(replace(e, parameters=drawn(draw, e.axes(target))), target, style)
        for e, target in places
        for style in STYLES
        if style in e.styles
    ]


def _besides(run: Run[Experiment]) -> tuple[Target, ...]:
    return tuple(map(parse_target, run.experiment.more_targets))


def _on_other_chips(target: Target) -> list[Target]:
    examples = [parse_target(row.target) for row in availability() if row.platform == target.platform]
    return [replace(example, shape=target.shape) for example in examples] if target.platform == "gpu" else examples


def without_plugin(some: Iterable[Run[Experiment]]) -> list[Platform]:
    """The platforms that these runs need a plugin for which is not installed."""
    return [
        platform for platform in dict.fromkeys(run.target.platform for run in some) if not plugins.installed(platform)
    ]


def results(some: Iterable[Run[Experiment]], mesh: Axes | None = None) -> list[Result]:
    """Runs them one after the other, on `mesh` where given."""
    from lab.harness.run import run

    return [
        run(
            one.experiment,
            target=one.target,
            style=one.style,
            axes=mesh or one.axes,
            parameters=one.experiment.parameters,
        )
        for one in some
    ]


def result_by_name(
    stage: Stage,
    name: str,
    target: Target,
    style: str,
    parameters: Any,
    mesh: Axes | None,
    targets: Sequence[Target],
) -> Result:
    """Runs an experiment by its name, as another process is asked to, with JAX made ready for all these targets."""
    from lab.harness.run import run

    prepare(targets)
    with stage(f"running {name}"):
        return run(
            registry.experiment(name),
            target=target,
            style=style,
            axes=mesh,
            parameters=parameters,
        )


def trained(
    trainings: Iterable[Training],
    targets: Sequence[Target],
    styles: Sequence[str],
    settings: Mapping[str, str],
    watched: Callable[[Sequence[Run[LayoutUnderTraining]]], Iterable[Run[LayoutUnderTraining]]],
) -> list[TrainingResult]:
    """Trains under every layout in these styles on these targets; by default in all styles, on the training's own
    targets.

    Raises:
      UsageError: one of them cannot train so; then none has.
    """
    from lab.harness.decoder.training import train

    trainings = list(trainings)
    for training in trainings:
        check_training(training, targets, styles, settings)
    return [
        train(training, target, watched(some), shape)
        for training in trainings
        for shape in [with_settings(training.parameters, settings)]
        for target, some in _trainings(training, shape, targets, styles).items()
    ]


def check_training(
    training: Training, targets: Sequence[Target], styles: Sequence[str], settings: Mapping[str, str]
) -> None:
    """Builds the program of every layout.

    Raises:
      UsageError: one of them cannot train so.
    """
    shape = with_settings(training.parameters, settings)
    for some in _trainings(training, shape, targets, styles).values():
        for run in some:
            _check(run, shape)


def _trainings(
    training: Training, shape: TrainingShape, targets: Sequence[Target], styles: Sequence[str]
) -> dict[Target, list[Run[LayoutUnderTraining]]]:
    """Each layout in those of the styles that it has.

    Raises:
      UsageError: a style that no layout has, or no such layout.
    """
    own = {layout: layout.styles + layout.more_styles for layout in training.chosen(shape)}
    for style in styles:
        if not any(style in some for some in own.values()):
            raise UsageError(f"{training.name}: {no_such('style', style, dict.fromkeys(chain(*own.values())))}")
    wanted = {layout: [style for style in styles if style in some] for layout, some in own.items()}
    return {
        target: [run for layout, some in wanted.items() if some or not styles for run in runs([layout], [target], some)]
        for target in targets or tuple(map(parse_target, training.targets))
    }


def _check(run: Run[LayoutUnderTraining], shape: TrainingShape) -> None:
    layout, axes = run.experiment, run.experiment.axes(run.target)
    own, mesh = layout.sized(shape), make_mesh(run.target, axes)
    layout.predict(own, axes)
    layout.build(run.style, own, mesh)


def check_training_by_name(
    _: Stage, name: str, targets: Sequence[Target], styles: Sequence[str], settings: Mapping[str, str]
) -> tuple[TrainingResult, ...]:
    """The same of a training by its name, as another process is asked to; none is trained yet."""
    (training,) = _trainings_by_name(name, targets)
    check_training(training, targets, styles, settings)
    return ()


def trained_by_name(
    stage: Stage, name: str, targets: Sequence[Target], styles: Sequence[str], settings: Mapping[str, str]
) -> list[TrainingResult]:
    """Trains by the name of a training, as another process is asked to, a stage for each layout."""

    def watched(some: Sequence[Run[LayoutUnderTraining]]) -> Iterator[Run[LayoutUnderTraining]]:
        for run in some:
            with stage(f"training {run}"):
                yield run

    return trained(_trainings_by_name(name, targets), targets, styles, settings, watched)


def _trainings_by_name(name: str, targets: Sequence[Target]) -> list[Training]:
    _, trainings, _ = parted([registry.load(name)])
    prepare([target for training in trainings for target in targets or map(parse_target, training.targets)])
    return trainings


def answer_by_name(stage: Stage, name: str, settings: Mapping[str, str]) -> Answer:
    """Answers a question by its name, as another process is asked to."""
    *_, questions = parted([registry.load(name)])
    (question,) = questions
    prepare(list(map(parse_target, [settings["target"]] if "target" in settings else question.targets)))
    with stage(f"answering {name}"):
        (found,) = answers([question], settings)
    return found


def answers(questions: Iterable[Question], settings: Mapping[str, str] | None = None) -> list[Answer]:
    """Answers them, with `settings` of what they assume where given."""
    from lab.harness.question import answer

    return [answer(question, settings or {}) for question in questions]
