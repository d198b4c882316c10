"""`lab law`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.progress import stages
from lab.core import codec
from lab.core.files import write_whole
from lab.laws.answer import Answer, Value
from lab.laws.evaluate import OutsideLaw
from lab.laws.law import Law
from lab.laws.question import Question, answered
from lab.laws.scale import DEVICES, Scale, scaled
from lab.meshes.axes import TypedAxes
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip as described
from lab.meshes.targets import Target

_SIZE = re.compile(r"0*[1-9]\d{0,17}", re.ASCII)


def _sizes(text: str) -> dict[str, int]:
    found = {}
    for part in options.names(text):
        name, _, size = part.partition("=")
        if not name or name in found or not _SIZE.fullmatch(size):
            raise UsageError(f"--at {text}: found {part!r}, expected NAME=SIZE,... such as fsdp=4096,layers=126")
        found[name] = int(size)
    return found


@click.command()
@click.argument("source", metavar="SOURCE", type=click.Path())
@options.vary("What the law is in: axes of the mesh and sizes of the program, such as fsdp,tensor,layers,embed.")
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
@click.option(
    "--chip",
    metavar="CHIP",
    help="Whose data sheet says where communication passes the products, by default the target's: h100, v5p.",
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
    chip: str | None,
    html: Path | None,
    as_json: bool,
) -> int:
    """Derive exact formulas of communication, FLOPs and memory.

    From a few small compiles of a program: payload, executions and groups of each transfer, FLOPs and bytes of
    arguments as sums of monomials of the program's sizes and of the degrees of its mesh, with where they hold; each law
    is then held against four compiles that it was not derived from.

    SOURCE is file.py:build or package.module:build, where build(mesh, *, layers=2, embed=1024) or build(mesh,
    sizes=Sizes()) takes sizes, an experiment of lab list, or a law that --json printed, to evaluate it.
    """
    if chip is not None and not along:
        raise UsageError("--chip says where communication passes the products as a variable grows: add --scale NAME")
    if source.endswith(".json"):
        if vary or mesh or target or style or settings:
            raise UsageError(f"{source} is derived already; expected --at, --scale, --chip, --html or --json with it")
        found = _read(source)
    else:
        _check_asked(vary, places, along, chip)
        found = _found(Question(source, vary, mesh, target, style, settings))
    first = found.compiled[0].sizes
    try:
        values = tuple(Value.of(found, {**first, **place}) for place in places)
    except OutsideLaw as refusal:
        raise UsageError(f"{found.source}: {refusal}") from None
    scales = tuple(scaled(found, name, {**first, **(places[-1] if places else {})}, chip) for name in along)
    if html:
        from lab.report.html.law import page

        write_whole(html, page(found, scales))
    if as_json:
        print_json(Answer.of(found, values, scales))
    else:
        _print(found, places, scales)
    return 0 if all(check.is_equal for check in found.checks) else 1


def _check_asked(vary: Sequence[str], places: Sequence[dict[str, int]], along: Sequence[str], chip: str | None) -> None:
    """Before minutes of compiles; without `vary` it is what is missing.

    Raises:
      UsageError: what the law is to be evaluated at, or scaled along, is none of its variables; or no such chip.
    """
    for name in (*(name for place in places for name in place), *along):
        if vary and name not in (*vary, DEVICES):
            raise UsageError(f"{name}: the law is to be in {', '.join(vary)}; name it in --vary as well")
    if chip is not None:
        described(chip)


def _found(question: Question) -> Law:
    with stages() as stage:
        return answered(question, stage)


def _print(found: Law, places: Sequence[dict[str, int]], scales: Sequence[Scale]) -> None:
    from lab.report.law import law_text, scale_text, value_text

    first = found.compiled[0].sizes
    parts = [law_text(found), *(value_text(found, {**first, **place}) for place in places), *map(scale_text, scales)]
    print_text("\n\n\n".join(parts))


def _read(source: str) -> Law:
    expected = "expected what lab law --json prints"
    document = read_json(Path(source), expected)
    try:
        found = codec.from_json(Law, document)
        if not found.compiled:
            raise UsageError("compiled: empty")
        found.at(found.compiled[0].sizes)  # Where it does not even hold there, it was changed.
    except (UsageError, OutsideLaw) as refusal:
        raise UsageError(f"{source}: {refusal}; {expected}") from None
    return found
