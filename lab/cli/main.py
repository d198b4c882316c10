"""The command line. Exit status: 0 fine, 1 a claim refuted or a budget broken, 2 unusable input, told in one line on
stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fractions import Fraction
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lab import diagnosis
from lab.compile import inspection, sources
from lab.core import changes
from lab.core.ledger import Ledger
from lab.diagnosis import KINDS
from lab.diagnosis.program import Program
from lab.harness import suite
from lab.harness.experiment import Run
from lab.measure.bench.sizes import parse_sizes
from lab.meshes import plugins
from lab.meshes.availability import availability
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.report import answers, curves, tables, verdicts
from lab.report.changes import changes_text
from lab.report.diagnosis import diagnosis_text

if TYPE_CHECKING:
    from lab.harness.decoder.training import Training, TrainingResult
    from lab.harness.question import Answer
    from lab.harness.result import Result

INTERRUPTED, CLOSED_PIPE = 130, 141
JAX_NOTE = "-----"
"""How a note begins that JAX adds to every error of a traced function."""
T = TypeVar("T")


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Reads an option's value, or each of its values, with `parse`."""

    def callback(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        return tuple(map(parse, value)) if isinstance(value, tuple) else None if value is None else parse(value)

    return callback


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: expected NAME=VALUE, such as --set layers=4")
    return name, value


def _share(text: str) -> Fraction:
    number, percent, rest = text.partition("%")
    try:
        share = Fraction(number) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if share < 0 or not percent or rest:
        raise UsageError(f"--allow {text}: expected a percentage of the bytes, such as 1%")
    return share


def _writable(path: Path) -> Path:
    """Refused before the work is done, not after it."""
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written; name a file in a folder of yours that exists")
    return path


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
mesh_option = click.option(
    "--mesh", metavar="AXES", callback=_parsed(Axes.parse), help="In the order of mesh.devices: data=2,tensor=8."
)
html_option = click.option(
    "--html",
    type=Path,
    metavar="FILE",
    callback=_parsed(_writable),
    help="Also write a report to open in a browser; it needs no network.",
)
_TARGET = {"metavar": "TARGET", "callback": _parsed(parse_target)}
_KIND = click.Choice(["any", *(kind.name for kind in KINDS)])
_FORMS = "cpu:8, gpu:h100:2x8, tpu:v5p:2x2x4 or attached"
_STYLES = (
    "declared (the compiler inserts the collectives), typed (it does where types of arrays say so) or explicit "
    "(they are written out); by default those of verify."
)


@click.group(no_args_is_help=False)
def cli() -> None:
    """What a sharded JAX program communicates: predicted by theory, read from the compiled program, settled to the
    byte."""


@cli.command()
@click.argument("given", metavar="SOURCE...", nargs=-1, required=True)
@mesh_option
@click.option(
    "--target", **_TARGET, help=f"What to compile for: {_FORMS}. By default fake CPU devices, as many as the mesh has."
)
@click.option(
    "--fail-on",
    "kinds",
    metavar="KIND",
    multiple=True,
    type=_KIND,
    help="Exit status 1 where this is found; any: where anything is.",
)
@html_option
@as_json
def inspect(
    given: tuple[str, ...],
    mesh: Axes | None,
    target: Target | None,
    kinds: tuple[str, ...],
    html: Path | None,
    as_json: bool,
) -> int:
    """Says what is wrong with a compiled program, the worst first, and lists what it communicates.

    SOURCE is a compiled text (.hlo, .txt, .gz), the folder of an XLA dump, or file.py:build or package.module:build,
    where build(mesh) returns (function, args) with args as arrays or ShapeDtypeStructs with shardings.
    """
    if any(map(sources.is_program, given)):
        # So that XLA says where it finds no way between two shardings; what it says is caught.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
        target = _prepared(mesh, target)
    diagnoses = [diagnosis.of(program) for source in given for program in _programs(source, mesh, target)]
    if html:
        from lab.report.html import reports

        _write(html, reports.inspection(diagnoses))
    if as_json:
        rows = [found.to_json() for found in diagnoses]
        _print_json(rows if len(rows) > 1 else rows[0])
    else:
        _print("\n\n".join(map(diagnosis_text, diagnoses)))
    found = {finding.kind for each in diagnoses for finding in each.findings}
    return 1 if found and ("any" in kinds or found & set(kinds)) else 0


def _prepared(mesh: Axes | None, target: Target | None) -> Target:
    """The target of a program, with JAX made ready for it before the user's code imports JAX."""
    if mesh is None:
        raise UsageError(
            "a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4"
        )
    target = target or parse_target(f"cpu:{mesh.size}")
    prepare([target])
    return target


def _ledgers(source: str, mesh: Axes | None, target: Target | None) -> list[Ledger]:
    return [program.ledger for program in _programs(source, mesh, target)]


def _programs(source: str, mesh: Axes | None, target: Target | None) -> list[Program]:
    if not sources.is_program(source):
        return inspection.read_texts(Path(source), mesh, target)
    with _working(f"compiling {source} for {target}"):
        build = sources.builder(source)
        devices = make_mesh(target, mesh)
        function, args = sources.program(source, build, devices)
        with sources.own_words(source):
            return [inspection.read_program(function, args, devices, target, source=source)]


@cli.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@mesh_option
@click.option("--target", **_TARGET, help=f"What to compile programs for: {_FORMS}.")
@click.option(
    "--allow",
    "allowed",
    metavar="PERCENT",
    callback=_parsed(_share),
    help="How much of what is sent along any axes may come or go: 1%.",
)
@as_json
def diff(
    before: str, after: str, mesh: Axes | None, target: Target | None, allowed: Fraction | None, as_json: bool
) -> int:
    """Says what AFTER communicates otherwise than BEFORE. Exit status 1 where they differ, or with --allow where they
    do by more than that.

    Each is a SOURCE as of lab inspect, or a .json file that lab inspect --json printed.
    """
    if any(map(sources.is_program, (before, after))):
        target = _prepared(mesh, target)
    ledgers = [_one_ledger(source, mesh, target) for source in (before, after)]
    if as_json:
        _print_json(changes.to_json(*ledgers))
    else:
        _print(changes_text(*ledgers))
    along = changes.by_axes(*ledgers)
    return 1 if any(allowed is None or row.exceeds(allowed) for row in along) else 0


def _one_ledger(source: str, mesh: Axes | None, target: Target | None) -> Ledger:
    ledgers = [sources.saved_ledger(source)] if source.endswith(".json") else _ledgers(source, mesh, target)
    if len(ledgers) > 1:
        raise UsageError(
            f"{source} holds {len(ledgers)} partitioned modules; give one of their files, such as {ledgers[0].source}"
        )
    if not ledgers[0].is_complete:
        raise UsageError(
            f"{source} could not be read whole, so that nothing can be said of the rest: {'; '.join(ledgers[0].notes)}"
        )
    return ledgers[0]


@cli.command("targets")
@as_json
def list_targets(as_json: bool) -> None:
    """Lists what this machine can compile for, and how to install what it cannot."""
    rows = availability()
    if as_json:
        _print_json([asdict(row) for row in rows])
    else:
        cells = [(row.target, row.name, "no" if row.install else "yes", row.install or row.how) for row in rows]
        _print(tables.rows_text(("target", "chip", "compiles here", "how"), cells))


@cli.command("list")
@as_json
def list_experiments(as_json: bool) -> None:
    """Lists the experiments."""
    experiments = suite.load()
    if as_json:
        names = ("name", "chapter", "question", "targets", "styles")
        _print_json([{name: getattr(experiment, name) for name in names} for experiment in experiments])
    else:
        _print(
            tables.rows_text(
                ("experiment", "chapter", "question"), [(e.name, str(e.chapter), e.question) for e in experiments]
            )
        )


@cli.command()
@click.argument("names", metavar="EXPERIMENT...", nargs=-1, required=True)
@click.option(
    "--target", "targets", multiple=True, **_TARGET, help=f"What to compile for: {_FORMS}. By default its own."
)
@click.option("--style", "styles", metavar="STYLE", multiple=True, help=_STYLES)
@mesh_option
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, callback=_parsed(_setting), help="A parameter: layers=4."
)
@html_option
@as_json
def run(
    names: tuple[str, ...],
    targets: tuple[Target, ...],
    styles: tuple[str, ...],
    mesh: Axes | None,
    settings: tuple[tuple[str, str], ...],
    html: Path | None,
    as_json: bool,
) -> int:
    """Settles what theory predicts with what the compilers make of it, term by term."""
    # JAX looks for accelerators only where it is told so before it starts: a question may be told by --set.
    told = [parse_target(value) for name, value in settings if name == "target"]
    experiments, trainings, questions = suite.parted(suite.load(names, (*targets, *told)))
    for question in questions:
        if styles or mesh or (targets and not question.targets):
            reason = (
                "chooses styles and meshes itself; leave out"
                if question.targets
                else "has no program to compile; leave out --target,"
            )
            raise UsageError(f"{question.name} {reason} --style and --mesh")
    if trainings and mesh:
        raise UsageError(f"{trainings[0].name} has a mesh for each layout; leave out --mesh")
    results = _results(suite.runs(experiments, targets, styles), mesh, dict(settings))
    trained = _trained(trainings, targets, styles, dict(settings))
    answered = suite.answers(questions, dict(settings) | ({"target": str(targets[0])} if targets else {}))
    if html:
        from lab.report.html import reports

        _write(html, reports.experiments(results, trained, answered, is_audit=False))
    return _report(
        as_json, (results, verdicts.results_text), (trained, curves.trained_text), (answered, answers.answers_text)
    )


@cli.command()
@click.option(
    "--full",
    is_flag=True,
    help="For every known chip, at real size and at drawn ones, with trainings and the questions that compile.",
)
@html_option
@as_json
def verify(full: bool, html: Path | None, as_json: bool) -> int:
    """Runs every experiment in its styles on its targets, and ends with a table of verdicts. Minutes long are
    trainings, and questions that compile: --full, or lab run."""
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
    results = _results([run for run in runs if run.target.platform not in missing])
    compilable = [
        question
        for question in questions
        if not {parse_target(target).platform for target in question.targets} & set(missing)
    ]
    trained = _trained(trainings) if full else []
    answered = suite.answers(question for question in compilable if full or not question.targets)
    if html:
        from lab.report.html import reports

        _write(html, reports.experiments(results, trained, answered, is_audit=True))
    return _report(
        as_json, (results, verdicts.summary_text), (trained, curves.trained_text), (answered, answers.summary_text)
    )


@cli.command()
@click.argument("primitives", metavar="PRIMITIVE...", nargs=-1)
@click.option("--algorithm", "algorithms", metavar="NAME", multiple=True, help="By default all that the mesh allows.")
@mesh_option
@click.option(
    "--over",
    metavar="AXIS,...",
    help="The axes that every collective spans; groups along the others work side by side. By default all.",
)
@click.option(
    "--target",
    **_TARGET,
    default="attached",
    show_default=True,
    help="attached; cpu:N to try it; or GPUs to estimate for: gpu:h200:1x8.",
)
@click.option(
    "--links",
    type=Path,
    metavar="FILE",
    help="Of an estimate: a record of lab bench whose times by JAX's own collectives it takes.",
)
@click.option(
    "--sizes",
    metavar="FROM..TO",
    default="1KiB..1GiB",
    show_default=True,
    callback=_parsed(parse_sizes),
    help="In steps of 4.",
)
@click.option("--save", type=Path, callback=_parsed(_writable), help="Also write the JSON to a file.")
@as_json
def bench(
    primitives: tuple[str, ...],
    algorithms: tuple[str, ...],
    mesh: Axes | None,
    over: str | None,
    target: Target,
    links: Path | None,
    sizes: tuple[int, ...],
    save: Path | None,
    as_json: bool,
) -> None:
    """Times collectives on attached devices, or estimates them for GPUs that are not there, and fits alpha and beta to
    each algorithm.

    The mesh is by default one axis of all devices. The JSON of times is a link profile that
    lab.meshes.hardware.measured_link reads.
    """
    from lab.measure.bench import run as benches
    from lab.measure.bench import tables as bench_tables

    # A kernel that waits for one on another GPU must not wait for it to be loaded, which may wait in turn (CUDA's
    # guide, lazy loading).
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    command = shlex.join(["lab", *sys.argv[1:]])
    spanned = tuple(over.split(",")) if over else ()
    found = benches.bench(target, mesh, primitives, algorithms, sizes, command, _watched, spanned, links)
    if save:
        _write(save, json.dumps(found.to_json(), indent=2) + "\n")
    if as_json:
        _print_json(found.to_json())
    else:
        _print(bench_tables.bench_text(found))


@cli.command()
@click.argument("parts", metavar="[PART]...", nargs=-1)
@click.option("--save", type=Path, callback=_parsed(_writable), help="Also write the JSON to a file.")
@as_json
def tour(parts: tuple[str, ...], save: Path | None, as_json: bool) -> int:
    """Measures on the attached GPUs what the lab says ahead of time.

    PART is collectives (lab bench of all), times (steps predicted from compiled text and measured rates, and timed),
    programs (every experiment that is one program, here and ahead of time) or losses (a small decoder's under every
    layout, against one CPU's); by default all. The JSON is written after each part.
    """
    from lab.measure.tour import tour as tours
    from lab.report.tour import tour_text

    for found in tours.tour(parts or tours.PARTS, shlex.join(["lab", *sys.argv[1:]]), _watched):
        if save:
            _write(save, json.dumps(found.to_json(), indent=2) + "\n")
    if as_json:
        _print_json(found.to_json())
    else:
        _print(tour_text(found))
    return 1 if found.failures else 0


@cli.command()
@click.argument("what", metavar="[CHAPTER|ID|WORDS]", nargs=-1)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parsed(_setting),
    help="Evaluate: n=10GB, parameters=70B, flops_per_s=h100; p=2,4,8 gives a table.",
)
@click.option("--errata", is_flag=True, help="What is wrong in the book, worst first.")
@click.option(
    "--coverage",
    is_flag=True,
    help="How many entries compiling, numerics, timers or calculation decide, and which are open.",
)
@as_json
def book(
    what: tuple[str, ...], settings: tuple[tuple[str, str], ...], errata: bool, coverage: bool, as_json: bool
) -> None:
    """Lists the book's chapters, a chapter's formulas, those that have some words, or all about one; evaluates it with
    --set."""
    from lab.report import book as pages

    page = pages.page(" ".join(what) or None, settings, errata, coverage)
    if as_json:
        _print_json(page.to_json())
    else:
        _print(page.text)


@cli.command()
@click.argument("name", metavar="[PLOT]", required=False)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parsed(_setting),
    help="What it shows: chip=h200, ranks=256.",
)
@click.option("--save", type=Path, callback=_parsed(_writable), help="A .png, .svg or .pdf file.")
@as_json
def plot(name: str | None, settings: tuple[tuple[str, str], ...], save: Path | None, as_json: bool) -> None:
    """Lists the pictures, or draws one into a file.

    The roofline takes a program's compiled text: --set source=step.hlo --set mesh=data=2,tensor=8. The training takes
    what a run of it printed: lab run ch14_training --json > training.json, then --set source=training.json.
    """
    from lab.report import plots

    if name and save:
        plots.save(name, dict(settings), save)
    elif name or save or settings:
        raise UsageError(
            "a picture takes its name and a file: lab plot roofline --save roofline.png; lab plot lists them"
        )
    elif as_json:
        _print_json(plots.listed())
    else:
        _print(plots.listed_text())


def _results(runs: Sequence[Run], mesh: Axes | None = None, settings: Mapping[str, str] | None = None) -> list[Result]:
    # Where nothing is run nothing is prepared: without targets that would turn accelerators off.
    if runs:
        prepare([run.target for run in runs])
    return suite.results(_watched(runs), mesh, settings)


def _trained(
    trainings: Sequence[Training],
    targets: Sequence[Target] = (),
    styles: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> list[TrainingResult]:
    if trainings:
        prepare([target for training in trainings for target in targets or map(parse_target, training.targets)])
    return suite.trained(trainings, targets, styles, settings or {}, _watched)


def _watched(runs: Sequence[T]) -> Iterator[T]:
    """The same runs; a terminal shows which one is under way and how many are done."""
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(runs))
        for run in runs:
            progress.update(task, description=str(run))
            yield run
            progress.advance(task)


def _report(as_json: bool, *told: tuple[Sequence[Result | TrainingResult | Answer], Callable[..., str]]) -> int:
    """Prints the results, each kind in its own words; 1 where something failed or was refuted."""
    from lab.harness.result import SCHEMA

    every = [result for results, _ in told for result in results]
    if as_json:
        _print_json({"schema": SCHEMA, "results": [result.to_json() for result in every]})
    else:
        _print("\n\n\n".join(say(some) for some, say in told if some))
    return 0 if all(result.is_fine for result in every) else 1


@contextmanager
def _working(on: str) -> Iterator[None]:
    """Says on a terminal what takes its time."""
    with Console(stderr=True).status(on):
        yield


def _print_json(value: Any) -> None:
    _print(json.dumps(value, indent=2))


def _print(text: str) -> None:
    """Prints a whole answer at once; a reader that went away, such as `head`, is no error."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.exit(CLOSED_PIPE)


def _write(path: Path, text: str) -> None:
    """All of it, or nothing: until then there stands what stood there."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # Such as /dev/stdout.
        return
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main() -> None:
    """The entry point `lab`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # Lines of tables are in no 8-bit encoding.
    try:
        status = cli.main(prog_name="lab", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except (click.ClickException, UsageError) as error:
        status = _refuse(error)
    except OSError as error:
        status = _refuse(UsageError(f"{error.filename or 'output'}: cannot be read or written ({error.strerror})"))
    sys.exit(status)


def _refuse(error: click.ClickException | UsageError) -> int:
    for note in getattr(error, "__notes__", ()):
        if not note.startswith(JAX_NOTE):
            print(note, file=sys.stderr)
    print(f"lab: {_said(error)}", file=sys.stderr)
    return 2


def _said(error: click.ClickException | UsageError) -> str:
    if isinstance(error, UsageError):
        return " ".join(str(error).split())
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lab"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


if __name__ == "__main__":
    main()
