"""`lab upgrade`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Protocol, TypeVar

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import CompilerEnded, Script, programs, read_built
from lab.cli.progress import stages
from lab.compile import sources
from lab.compile.environment import Requirement, environment
from lab.compile.other_process import Call, Python, Stage, other_process
from lab.compile.saved import Saved, saved_as
from lab.compile.script import is_script
from lab.diagnosis.program import Program
from lab.guard.upgrade import Compiled, Upgrade, under_flags, under_release
from lab.harness import registry
from lab.laws.comparison import Comparison
from lab.laws.question import Question, answered
from lab.meshes.axes import TypedAxes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target
from lab.report.upgrade import upgrade_text

T = TypeVar("T")
DEFAULT_TARGET = parse_target("cpu:8")


@click.command(cls=options.OfScripts)
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.option(
    "--with",
    "wanted",
    metavar="PACKAGE==RELEASE",
    multiple=True,
    type=options.REQUIREMENT,
    help="Another release of JAX, such as jax==0.11.2, and of what else the program imports. It is installed once, by "
    "pip as you have configured it, in an environment that the lab keeps.",
)
@click.option(
    "--flags",
    "given",
    metavar="FLAGS",
    multiple=True,
    type=options.XLA_FLAGS,
    help="Flags of XLA, as XLA_FLAGS has them: '--xla_a=true --xla_b=2'.",
)
@click.option(
    "--style",
    metavar="STYLE",
    type=options.STYLE,
    help=f"Of an experiment: {', '.join(options.STYLES)}; by default the first that it has.",
)
@options.typed_mesh
@options.target(f"What to compile for: {options.TARGET_FORMS}. By default fake CPU devices, as many as the mesh has.")
@click.option(
    "--allow",
    "allowed",
    metavar="PERCENT",
    type=options.SHARE,
    help="How much may change, as a share of what there was: of the bytes along any axes, as lab diff has it, of all "
    "FLOPs and of the memory at its peak. When transfers start and are awaited then may change.",
)
@options.vary("Compare the laws of both, too: in axes of the mesh and sizes of the program, as lab law has them.")
@options.settings("A size that the laws begin with, or that stays: layers=2.")
@options.functions
@options.calls
@options.as_json
@click.pass_context
def upgrade(
    context: click.Context,
    source: str,
    wanted: tuple[Requirement, ...],
    given: tuple[Mapping[str, str], ...],
    style: str | None,
    mesh: TypedAxes | None,
    target: Target | None,
    allowed: Fraction | None,
    vary: tuple[str, ...],
    settings: tuple[tuple[str, str], ...],
    functions: tuple[str, ...],
    calls: int,
    as_json: bool,
) -> int:
    """Say what another release of JAX, or other flags, change.

    What it communicates, how that is scheduled, FLOPs, memory and seconds; each difference with its line, its
    instructions, and the flags that it comes from: of another release those whose default it changed.

    Exit status 1 if something differs, seconds aside, or with --allow if it differs by more. SOURCE is a program as lab
    inspect takes it, and no text; or an experiment of lab list.
    """
    flags = {name: value for some in given for name, value in some.items()}
    _check(source, wanted, flags, target)
    _check_laws(source, vary, settings)
    script = Script(context.meta[options.ARGUMENTS], functions, calls)
    with stages() as stage:

        def compiled(call: Call, of: Callable[[Program], T], python: Python | None = None) -> T:
            if source in registry.names():
                return call(_of_experiment, source, style, mesh, target or DEFAULT_TARGET, of)
            found = programs(source, mesh, target, stage, call, of, script, python=python)
            if len(found) != 1:
                raise UsageError(f"{source}: found {len(found)} functions of that name, expected one, with --function")
            return found[0]

        python = environment(wanted, target.platform if target else Platform.CPU, stage) if wanted else None
        asked = Question(source, vary, mesh, target, style, settings)
        laws = _laws(asked, flags, python, stage) if vary else None
        if python is not None:
            found = _of_release(wanted, flags, python, stage, compiled)
        else:
            with other_process(stage) as call:
                found = compiled(call, partial(under_flags, given=flags))
    found = replace(found, laws=laws)
    for ledger in (found.before.sites.ledger, found.after.sites.ledger):
        if not ledger.is_complete:
            raise UsageError(
                f"{source} could not be read whole, so that nothing can be said of the rest: {'; '.join(ledger.notes)}"
            )
    if as_json:
        print_json(found)
    else:
        print_text(upgrade_text(found, allowed))
    return int(not found.is_same if allowed is None else found.exceeds(allowed))


def _check(source: str, wanted: tuple[Requirement, ...], flags: Mapping[str, str], target: Target | None) -> None:
    if not (wanted or flags):
        raise UsageError("neither --with nor --flags is given; expected one, such as --with jax==0.11.2")
    if wanted and not any(each.name == "jax" for each in wanted):
        raise UsageError("--with names no release of jax; expected one, such as --with jax==0.11.2")
    if not (
        source in registry.names()
        or sources.is_program(source)
        or is_script(source)
        or saved_as(source) == Saved.EXPORT
    ):
        raise UsageError(
            f"{source} is compiled already, or no program; expected file.py:build, a script with --target, or what "
            "jax.export saved"
        )
    if wanted and target is not None and target.platform == Platform.ATTACHED:
        raise UsageError(
            "--target attached: another release compiles ahead of time; expected a target such as gpu:h100:1x8"
        )


def _check_laws(source: str, vary: tuple[str, ...], settings: tuple[tuple[str, str], ...]) -> None:
    if settings and not vary:
        raise UsageError("--set gives sizes of laws; expected --vary with it, such as --vary fsdp,layers")
    if vary and not (source in registry.names() or sources.is_program(source)):
        raise UsageError(f"{source} takes no sizes; --vary expects file.py:build, or an experiment of lab list")


def _laws(asked: Question, flags: Mapping[str, str], python: Python | None, stage: Stage) -> Comparison:
    before = answered(asked, stage)
    try:
        after = answered(replace(asked, flags=tuple(flags.items())), stage, python)
    except UsageError as refusal:
        raise UsageError(f"under the other {'flags' if python is None else 'release'}: {refusal}") from None
    return Comparison.of(before, after)


class _CompiledBy(Protocol):
    """What `of` makes of the program, compiled by a process."""

    def __call__(self, call: Call, of: Callable[[Program], T], python: Python | None = None) -> T: ...


def _of_release(
    wanted: tuple[Requirement, ...],
    flags: Mapping[str, str],
    python: Python,
    stage: Stage,
    compiled: _CompiledBy,
) -> Upgrade:
    with other_process(stage) as call:
        before = compiled(call, partial(Compiled.of, given={}))

    def upgraded(is_tried: bool) -> Upgrade:
        with other_process(stage, python) as call:
            return compiled(call, partial(under_release, before=before, given=flags, is_tried=is_tried), python)

    try:
        found = upgraded(is_tried=True)
    except CompilerEnded:
        # It may be a flag that XLA aborts at.
        found = upgraded(is_tried=False)
    asked = next(each for each in wanted if each.name == "jax")
    if f"=={found.after.release}" != asked.release:
        raise UsageError(
            f"--with {asked}: jax {found.after.release} was imported in its place; expected no other jax on PYTHONPATH"
        )
    return found


def _of_experiment(
    stage: Stage, name: str, style: str | None, given: TypedAxes | None, target: Target, of: Callable[[Program], T]
) -> T:
    prepare([target])
    with sources.users_code(name):  # A release may lack what a library takes from it.
        experiment = registry.experiment(name)
        axes = given.axes if given else experiment.axes(target)
        mesh = make_mesh(target, axes)
        function, args = experiment.build(style or experiment.styles[0], experiment.parameters, mesh)
    return of(read_built(stage, name, function, args, mesh, target))
