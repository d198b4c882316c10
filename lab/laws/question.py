"""What a law is asked of, and its answer: which family, from which sizes on. Imports no JAX but what experiments do."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from lab.compile.other_process import Python, Stage
from lab.compile.text_files import functions_of
from lab.harness import registry
from lab.harness.settings import with_settings
from lab.laws.derive import About, Start
from lab.laws.family import EXPECTED_SIZES, MOST_CPUS, Family, has_size, sized, whole
from lab.laws.law import Law
from lab.laws.pool import Pool, pool
from lab.laws.theory import beside_theory
from lab.laws.verify import verified
from lab.meshes.axes import PIPE, TypedAxes
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

MOST_DEVICES = 512
"""Of a held-out compile."""
FEW_LAYERS = 4
"""What a program writes out one after the other is compiled a few times over at most."""
PIPELINED_LAYERS = 24
"""Two or more on each of 2, 3, 4, 6, 8 or 12 stages: XLA removes loops of one."""
BY_DEFAULT = "cpu:8"


@dataclass(frozen=True)
class Question:
    """See `lab law`.

    Attributes:
      vary: axes of the mesh and sizes of the program.
      mesh: None of an experiment, on the mesh that it has for the target.
      flags: of XLA, that it is compiled with.
    """

    source: str
    vary: tuple[str, ...]
    mesh: TypedAxes | None = None
    target: Target | None = None
    style: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()


def answered(question: Question, stage: Stage = lambda _: nullcontext(), python: Python | None = None) -> Law:
    """The law, with what held-out compiles, and theory where there is one, say of it.

    Args:
      stage: what goes on here around a compile.
      python: what compiles; by default this Python.
    Raises:
      UsageError: no such program, or what is to be varied is none of its sizes.
    """
    with pool(question.source, stage, python) as processes:
        return _answered(question, processes)


def _answered(question: Question, processes: Pool) -> Law:
    family = family_of(question)
    sizes, degrees = processes.sizes(family), family.mesh.axes.shape
    variables = {**degrees, **sizes}
    for name in question.vary:
        if name not in variables and not sizes:
            raise UsageError(f"{name}: no axis of the mesh, and {question.source} takes no sizes; {EXPECTED_SIZES}")
        if name not in variables:
            raise no_such("axis or size", name, variables)
    if not question.vary:
        raise UsageError(f"--vary is missing; name some of {', '.join(variables)}")
    given = {name for name, _ in question.settings}
    first = {
        name: _first(name, variables[name], name in given or name in degrees, PIPE in question.vary)
        for name in question.vary
    }
    for name, size in first.items():
        if size < 1:
            raise UsageError(f"{name}={size} cannot be varied; set a size from 1 on: --set {name}=2")
    fixed = {name: text for name, text in family.settings if name not in question.vary}
    about = About(
        question.source,
        str(family.target),
        family.target.platform,
        family.style,
        processes.compiler(),
    )
    most = MOST_DEVICES if family.target.platform == Platform.GPU else MOST_CPUS

    def fits(devices: int) -> bool:
        return devices <= most and has_size(family.target, devices)

    start = Start(first, family.mesh.axes, fixed)
    law = verified(about, start, processes.measure(family), fits)
    if not family.is_experiment:
        return law
    experiment = registry.experiment(question.source)
    return beside_theory(law, experiment, with_settings(experiment.parameters, dict(family.settings)), start)


def _first(name: str, default: int, is_given: bool, is_pipelined: bool) -> int:
    if is_given or not ("layer" in name or "depth" in name):
        return default
    return PIPELINED_LAYERS if is_pipelined else min(default, FEW_LAYERS)


def family_of(question: Question) -> Family:
    """With degrees of 2 for what is varied, unless they are set.

    Raises:
      UsageError: no function of a file, no mesh, style or target of which there are several sizes.
    """
    if question.source.endswith(".py"):
        has = ", ".join(functions_of(Path(question.source))) or "no function"
        raise UsageError(f"{question.source} is a file; name its function that builds the step: it has {has}")
    target, mesh, style = question.target or parse_target(BY_DEFAULT), question.mesh, question.style
    if target.platform == Platform.ATTACHED:
        raise UsageError("--target attached: a law needs meshes of many sizes; expected a cpu:, gpu: or tpu: target")
    if Family(question.source, TypedAxes.parse("devices=1"), target, style).is_experiment:
        experiment = registry.experiment(question.source)
        style = style or experiment.styles[0]
        if style not in (known := experiment.styles + experiment.more_styles):
            raise no_such("style", style, known)
        mesh = mesh or TypedAxes(experiment.axes(target))
    elif style is not None:
        raise UsageError(f"--style {style}: {question.source} is a program; an experiment of lab list has styles")
    elif mesh is None:
        raise UsageError("a program needs a mesh; name its axes in the order of mesh.devices: --mesh data=2,tensor=2")
    set_here = dict(question.settings)
    degrees = {
        name: whole(name, str(set_here.get(name, 2 if name in question.vary else size)))
        for name, size in mesh.axes.shape.items()
    }
    axes = replace(mesh.axes, sizes=tuple(degrees.values()))
    own = tuple((name, text) for name, text in question.settings if name not in degrees)
    return Family(question.source, replace(mesh, axes=axes), sized(target, axes.size), style, own, question.flags)
