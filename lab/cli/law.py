"""`lab law`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.progress import stages
from lab.core import codec
from lab.core.faults import versions_text
from lab.core.files import write_whole
from lab.harness import registry
from lab.laws.answer import Answer, Value
from lab.laws.derive import About, Start
from lab.laws.evaluate import OutsideLaw
from lab.laws.family import MOST_CPUS, Family, sized
from lab.laws.law import Law
from lab.laws.pool import compiler, known_sizes
from lab.laws.scale import Scale, scaled
from lab.laws.verify import verified
from lab.meshes.axes import TypedAxes
from lab.meshes.backends import skip_code_optimization
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

MOST_DEVICES = 512
"""Of a held-out compile."""
FEW_LAYERS = 4
"""What a program writes out one after the other is compiled a few times over at most."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.replace(" ", "").split(",") if name)


def _sizes(text: str) -> dict[str, int]:
    found = {}
    for part in _names(text):
        name, equals, size = part.partition("=")
        if not (equals and size.isdecimal() and int(size)):
            raise UsageError(f"--at {text}: found {part!r}, expected NAME=SIZE,... such as fsdp=4096,layers=126")
        found[name] = int(size)
    return found


@click.command()
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.option(
    "--vary",
    metavar="NAMES",
    type=options.Parsed("names", _names),
    default="",
    help="What the law is in: axes of the mesh and sizes of the program, such as fsdp,tensor,layers,embed.",
)
@options.typed_mesh
@options.target(
    f"What to compile for: {options.TARGET_FORMS.removesuffix(' or attached')}; as many devices as each mesh has."
)
@click.option("--style", metavar="STYLE", type=options.STYLE, help="Of an experiment; by default its first.")
@options.settings("A size, or a parameter of an experiment, that the search begins with or that stays: layers=2.")
@click.option(
    "--at",
    "places",
    metavar="SIZES",
    type=options.Parsed("sizes", _sizes),
    multiple=True,
    help="Evaluate the law: fsdp=4096,tensor=8,layers=126 (others as in the first compile).",
)
@click.option(
    "--scale",
    "along",
    metavar="NAME",
    multiple=True,
    help="How each term grows with a variable, or with devices: with the first degree.",
)
@options.html
@options.as_json
def law(
    source: str,
    vary: tuple[str, ...],
    mesh: TypedAxes | None,
    target: Target | None,
    style: str | None,
    settings: tuple[tuple[str, str], ...],
    places: tuple[dict[str, int], ...],
    along: tuple[str, ...],
    html: Path | None,
    as_json: bool,
) -> int:
    """Derive exact formulas of what a program communicates, multiplies and holds, from a few small compiles of it.

    Payload, executions and groups of each transfer, FLOPs and bytes of arguments as sums of monomials of the program's
    sizes and of the degrees of its mesh, with where they hold; each law is then held against three compiles that it was
    not derived from.

    SOURCE is file.py:build or package.module:build, where build(mesh, *, layers=2, embed=1024) or build(mesh,
    sizes=Sizes()) takes sizes, an experiment of lab list, or a law that --json printed, to evaluate it.
    """
    found = _read(source) if source.endswith(".json") else _derived(source, vary, mesh, target, style, settings)
    first = found.compiled[0].sizes
    try:
        values = tuple(Value.of(found, {**first, **place}) for place in places)
    except OutsideLaw as refusal:
        raise UsageError(f"{found.source}: {refusal}") from None
    scales = tuple(scaled(found, name, {**first, **(places[-1] if places else {})}) for name in along)
    if html:
        from lab.report.html.law import page

        write_whole(html, page(found, scales))
    if as_json:
        print_json(Answer.of(found, values, scales))
    else:
        _print(found, places, scales)
    return 0 if all(check.is_equal for check in found.checks) else 1


def _print(found: Law, places: Sequence[dict[str, int]], scales: Sequence[Scale]) -> None:
    from lab.report.law import law_text, scale_text, value_text

    first = found.compiled[0].sizes
    parts = [law_text(found), *(value_text(found, {**first, **place}) for place in places), *map(scale_text, scales)]
    print_text("\n\n\n".join(parts))


def _read(source: str) -> Law:
    expected = "expected what lab law --json prints"
    try:
        return codec.from_json(Law, read_json(Path(source), expected))
    except UsageError as refusal:
        raise UsageError(f"{source}: {refusal}; {expected}") from None


def _derived(
    source: str,
    vary: tuple[str, ...],
    mesh: TypedAxes | None,
    target: Target | None,
    style: str | None,
    settings: tuple[tuple[str, str], ...],
) -> Law:
    skip_code_optimization()
    family = _family(source, vary, mesh, target, style, settings)
    sizes, degrees = known_sizes(family), family.mesh.axes.shape
    given = {name for name, _ in settings}
    variables = {**degrees, **sizes}
    for name in vary:
        if name not in variables:
            raise no_such("axis or size", name, variables)
    if not vary:
        raise UsageError(f"--vary is missing; name some of {', '.join(variables)}")
    first = {name: _first(name, variables[name], name in given, name in degrees) for name in vary}
    fixed = {name: text for name, text in settings if name not in vary}
    about = About(source, str(family.target), family.target.platform, family.style, versions_text().partition(", ")[2])
    most = MOST_CPUS if family.target.platform == Platform.CPU else MOST_DEVICES
    with stages() as stage, compiler(family, stage) as measure:
        return verified(about, Start(first, family.mesh.axes, fixed), measure, most)


def _first(name: str, default: int, is_given: bool, is_axis: bool) -> int:
    if is_given:
        return default
    if is_axis:
        return 2
    return min(default, FEW_LAYERS) if "layer" in name or "depth" in name else default


def _family(
    source: str,
    vary: tuple[str, ...],
    mesh: TypedAxes | None,
    target: Target | None,
    style: str | None,
    settings: tuple[tuple[str, str], ...],
) -> Family:
    """With degrees of 2 for what is varied, unless they are set."""
    target = target or parse_target("cpu:8")
    if target.platform == Platform.ATTACHED:
        raise UsageError("--target attached: a law needs meshes of many sizes; expected a cpu:, gpu: or tpu: target")
    family = Family(source, mesh or TypedAxes.parse("devices=1"), target, style, settings)
    if family.is_experiment:
        experiment = registry.experiment(source)
        style = style or experiment.styles[0]
        if style not in (known := experiment.styles + experiment.more_styles):
            raise no_such("style", style, known)
        mesh = mesh or TypedAxes(experiment.axes(target))
    elif mesh is None:
        raise UsageError("a program needs a mesh; name its axes in the order of mesh.devices: --mesh data=2,tensor=2")
    degrees = dict(settings)
    shape = {name: int(degrees.get(name, 2 if name in vary else size)) for name, size in mesh.axes.shape.items()}
    axes = replace(mesh.axes, sizes=tuple(shape.values()))
    own = tuple((name, text) for name, text in settings if name not in shape)
    return Family(source, replace(mesh, axes=axes), sized(target, axes.size), style, own)
