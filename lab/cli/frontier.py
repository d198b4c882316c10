"""`lab frontier`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import NotAppliedThere, Script, programs, read_built, with_settings_of
from lab.cli.progress import stages
from lab.compile import sources
from lab.compile.other_process import Call, ProcessEnded, Stage, called_here
from lab.compile.saved import Saved, saved_as
from lab.compile.script import is_script
from lab.compile.several_processes import several_processes
from lab.core.files import write_whole
from lab.core.known import known
from lab.core.room import Room
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import NotApplicable, Remedy
from lab.frontier.frontier import Frontier, Refusal, explored
from lab.frontier.intervention import Intervention, Lever, Variant, Wrap, text
from lab.frontier.outcome import Outcome
from lab.frontier.step import Step, interventions, of_parameters, of_policies
from lab.harness import registry, suite
from lab.harness.settings import with_settings
from lab.measure.step_time import Taken
from lab.meshes.axes import TypedAxes
from lab.meshes.backends import make_mesh, prepare, skip_code_optimization
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, check_size
from lab.report.frontier import frontier_text

T = TypeVar("T")
ByTrip = Sequence[Collection[Taken]]
_NOTHING_TO_CHANGE = re.compile(r"(?!\w+Error: )|\w+Error: .*No such compile option")
"""Why a change cannot be made; where XLA, or JAX, refuses the changed program, that is an error of theirs."""


@dataclass(frozen=True)
class Asked:
    """A step by its source, on its mesh.

    Attributes:
      style, parameters: of an experiment.
      script: of a script, how to follow it.
      settings: arguments of a builder.
    """

    source: str
    target: Target
    mesh: TypedAxes | None
    script: Script
    settings: tuple[tuple[str, str], ...] = ()
    style: str = ""
    parameters: Any = None

    @property
    def is_experiment(self) -> bool:
        return self.parameters is not None

    @property
    def parameters_to_try(self) -> Iterator[Intervention]:
        return of_parameters(self.parameters) if self.is_experiment else of_policies()


def _trials(texts: str, option: str, mathematics: str = "") -> tuple[Intervention, ...]:
    """`remat=none,full`: a parameter and its values."""
    name, equals, values = texts.partition("=")
    if not (name and equals and values):
        raise UsageError(f"{option} {texts}: expected NAME=VALUE,VALUE, such as {option} bucket_mb=4,64")
    return tuple(
        Intervention(Lever.PARAMETER, settings=((name, value),), mathematics=mathematics) for value in values.split(",")
    )


_TRY, _TRY_OTHER = "--try", "--try-other"


@click.command(cls=options.OfScripts)
@click.argument("source", metavar="SOURCE", type=click.Path())
@options.typed_mesh
@options.target("The chips to compile for, whose rates count: cpu:8, gpu:h100:2x8 or tpu:v5p:2x2x4.")
@click.option("--style", metavar="STYLE", type=options.STYLE, help="Of an experiment; by default its first.")
@options.settings("A parameter of an experiment, or an argument of build(mesh, ...) with a default: layers=32.")
@click.option(
    _TRY,
    "trials",
    metavar="NAME=VALUES",
    multiple=True,
    type=options.Parsed("values", partial(_trials, option=_TRY)),
    help="Such a parameter, and values to compile it with besides: --try bucket_mb=4,64.",
)
@click.option(
    _TRY_OTHER,
    "others",
    metavar="NAME=VALUES",
    multiple=True,
    type=options.Parsed("values", partial(_trials, option=_TRY_OTHER, mathematics="other numbers")),
    help="The same of one that changes the numbers, such as a precision or a compression: shown, and never picked.",
)
@options.functions
@options.calls
@options.html
@options.as_json
@click.pass_context
def frontier(
    context: click.Context,
    source: str,
    mesh: TypedAxes | None,
    target: Target | None,
    style: str | None,
    settings: tuple[tuple[str, str], ...],
    trials: tuple[tuple[Intervention, ...], ...],
    others: tuple[tuple[Intervention, ...], ...],
    functions: tuple[str, ...],
    calls: int,
    html: Path | None,
    as_json: bool,
) -> int:
    """Compile a step under many changes and pick the best that fits.

    None of them changes the step's mathematics: flags of XLA that its compiler knows, sizes of combined transfers,
    what jax.checkpoint keeps, unrolled scans, the order of the mesh's axes, what findings advise. Of each it says what
    it changes of bytes, seconds, memory and FLOPs, and whether it is on the Pareto front. What is picked fits the
    memory of a device. The best are also tried together.

    Exit status 1 if nothing fits. SOURCE is a program as lab inspect takes it, and no text; or an experiment of lab
    list.
    """
    began = time.perf_counter()
    script = Script(context.meta[options.ARGUMENTS], functions, calls)
    asked = _asked(source, mesh, target, style, settings, script)
    tried = [one for some in (*trials, *others) for one in some]
    _check_takes(asked, tried)
    if asked.target.platform == Platform.CPU:
        skip_code_optimization()
    given = [*asked.parameters_to_try, *tried]
    with stages() as stage, several_processes(partial(_ready, asked)) as each:
        (step,) = each(lambda call, of: call(_as_it_is, asked, tried, of), [Step.of])

        def one(call: Call, variant: Variant) -> Outcome | Refusal:
            with stage(f"compiling {source} {text(variant)}"):
                try:
                    return call(_tried, asked, variant)
                except ProcessEnded as how:
                    return Refusal(f"its process {how}")

        axes = asked.mesh.axes if asked.mesh else None
        rows = explored(step.outcome, interventions(step, axes, given), partial(each, one))
    room = Room.of(asked.target)
    found = Frontier(
        source,
        str(asked.target),
        axes.shape if axes else None,
        room.usable_bytes if room else None,
        rows,
        time.perf_counter() - began,
    )
    if html:
        from lab.report.html.frontier import page

        write_whole(html, page(found))
    if as_json:
        print_json(found)
    else:
        print_text(frontier_text(found))
    return 0 if found.pick else 1


def _asked(
    source: str,
    mesh: TypedAxes | None,
    target: Target | None,
    style: str | None,
    settings: tuple[tuple[str, str], ...],
    script: Script,
) -> Asked:
    if target is None or target.platform == Platform.ATTACHED:
        raise UsageError(
            f"found --target {target}, expected one to compile for ahead of time, such as gpu:h100:2x8"
            if target
            else "--target is missing; expected one to compile for, such as --target gpu:h100:2x8"
        )
    if source in registry.names() or (source.isidentifier() and not Path(source).exists()):
        styles = [style] if style else []
        experiments = suite.parted(suite.load([source]))[0]
        if not experiments:
            raise UsageError(
                f"{source} compiles no step of its own; expected an experiment that lab list shows targets of"
            )
        run = suite.placed(experiments, [target], styles, dict(settings))[0]
        axes = (mesh.axes if mesh else None) or run.axes or run.experiment.axes(run.target)
        check_size(run.target, axes)
        typed = TypedAxes(axes)
        return Asked(source, run.target, typed, script, style=run.style, parameters=run.experiment.parameters)
    if style:
        raise UsageError(f"--style {style}: expected SOURCE to be an experiment, found {source}")
    if settings and not sources.is_program(source):
        raise UsageError(f"--set {'='.join(settings[0])}: expected SOURCE to be an experiment, or build(mesh, ...)")
    if not (sources.is_program(source) or is_script(source) or saved_as(source) == Saved.EXPORT):
        raise UsageError(
            f"{source} is compiled already, or no program; expected file.py:build, a script, what jax.export saved, or "
            "an experiment of lab list"
        )
    return Asked(source, target, mesh, script, settings)


def _check_takes(asked: Asked, tried: Sequence[Intervention]) -> None:
    """Raises UsageError where parameters to try are none of the step's, so that nobody waits to be told; those of a
    builder are known once it is imported."""
    for name, value in (setting for one in tried for setting in one.settings):
        if asked.is_experiment:
            with_settings(asked.parameters, {name: value})
        elif not sources.is_program(asked.source):
            raise UsageError(f"--try {name}={value}: expected SOURCE to be an experiment, or build(mesh, ...)")


def _as_it_is(stage: Stage, asked: Asked, tried: Sequence[Intervention], of: Callable[[Program, ByTrip], T]) -> T:
    if tried and not asked.is_experiment:
        prepare([asked.target])
        builder = sources.builder(asked.source)
        for one in tried:
            with_settings_of(asked.source, builder, dict(one.settings))
    return _made(stage, asked, (), of)


def _ready(asked: Asked) -> None:
    """What takes seconds to import, once for all forks."""
    prepare([asked.target])
    if asked.is_experiment:
        registry.experiment(asked.source)
    import lab.compile.inspection
    import lab.compile.remedies
    import lab.compile.shapes_only
    import lab.compile.xla_dump
    import lab.measure.tour.times  # noqa: F401


def _tried(stage: Stage, asked: Asked, variant: Variant) -> Outcome | Refusal:
    """Of a variant, in a process of its own."""
    try:
        return _made(stage, asked, variant, Outcome.of)
    except (NotApplicable, NotAppliedThere) as why:
        return Refusal(str(why), bool(_NOTHING_TO_CHANGE.match(str(why))))
    except UsageError as why:
        return Refusal(str(why).removeprefix(f"{asked.source} does not compile for {asked.target}: "))


def _made(stage: Stage, asked: Asked, variant: Variant, of: Callable[[Program, ByTrip], T]) -> T:
    """What `of` makes of a variant, compiled up to machine code.

    Raises:
      NotApplicable, UsageError: it cannot be made, or does not compile.
    """
    from lab.compile import xla_dump

    remedy = tuple(change for one in variant for change in one.remedy)
    settings = dict(asked.settings) | {name: value for one in variant for name, value in one.settings}
    mesh = next((TypedAxes(one.mesh, _explicit(asked.mesh)) for one in variant if one.mesh), asked.mesh)
    with ExitStack() as stack:
        stack.enter_context(xla_dump.without_machine_code())
        for one in variant:
            stack.enter_context(_policy(one.policy))
        if asked.is_experiment:
            return _of_experiment(stage, asked, settings, mesh, remedy, of)
        found = programs(
            asked.source,
            mesh,
            asked.target,
            stage,
            partial(called_here, stage),
            lambda program: of(program, ()),
            asked.script,
            remedy,
            keywords=settings,
            is_alone=True,
        )
    if len(found) != 1:
        raise UsageError(f"{asked.source}: found {len(found)} functions of that name, expected one, with --function")
    return found[0]


def _policy(policy: str) -> AbstractContextManager[None]:
    from lab.compile.policies import around_scans, forced, removed

    match policy:
        case "":
            return nullcontext()
        case Wrap.REMOVED:
            return removed()
        case Wrap.AROUND_SCANS:
            return around_scans()
        case _:
            return forced(policy)


def _explicit(mesh: TypedAxes | None) -> tuple[str, ...]:
    return mesh.explicit if mesh else ()


def _of_experiment(
    stage: Stage,
    asked: Asked,
    settings: Mapping[str, str],
    mesh: TypedAxes | None,
    remedy: Remedy,
    of: Callable[[Program, ByTrip], T],
) -> T:
    from lab.measure.tour.times import branches_by_trip

    prepare([asked.target])
    axes = known(mesh).axes
    parameters = with_settings(asked.parameters, settings)
    experiment = registry.experiment(asked.source)
    with stage(f"building {asked.source}"):
        experiment.predict(parameters, axes)  # Refuses sizes that do not go together.
        made = make_mesh(asked.target, axes)
        function, args = experiment.build(asked.style, parameters, made)
    program = read_built(stage, asked.source, function, args, made, asked.target, remedy=remedy)
    return of(program, branches_by_trip(parameters, axes.shape))
