"""The command line. Exit status: 0 fine, 1 a claim refuted or a budget broken, 2 unusable input, told in one line on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lab import inspection, sources
from lab.ledger import Ledger
from lab.report import tables, verdicts
from meshes import plugins
from meshes.availability import availability
from meshes.axes import Axes
from meshes.errors import Unusable
from meshes.targets import Target, make_mesh, parse_target, prepare

if TYPE_CHECKING:
    from lab.experiment import Experiment
    from lab.run import Result

INTERRUPTED, CLOSED_PIPE = 130, 141

# An experiment, where to compile it, and in which style.
Run = tuple["Experiment", Target, str]


def _parsed(parse):
    """Reads an option's value, or each of its values, with `parse`."""

    def callback(_context, _option, value):
        return tuple(map(parse, value)) if isinstance(value, tuple) else value and parse(value)

    return callback


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Unusable(f"--set {text}: expected NAME=VALUE, such as --set layers=4")
    return name, value


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
mesh_option = click.option("--mesh", metavar="AXES", callback=_parsed(Axes.parse), help="Axes in the order of mesh.devices: data=2,tensor=8.")
_TARGET_HELP = "What to compile for: cpu:8, gpu:h100:2x8, tpu:v5p:2x2x4, attached."


@click.group(no_args_is_help=False)
def cli() -> None:
    """What a sharded JAX program communicates: predicted by theory, read from the compiled program, settled to the byte."""


@cli.command()
@click.argument("given", metavar="SOURCE...", nargs=-1, required=True)
@mesh_option
@click.option("--target", metavar="TARGET", callback=_parsed(parse_target), help=_TARGET_HELP + " By default fake CPU devices, as many as the mesh has.")
@as_json
def inspect(given: tuple[str, ...], mesh: Axes | None, target: Target | None, as_json: bool) -> None:
    """Lists what a compiled program communicates.

    SOURCE is a compiled text (.hlo, .txt, .gz), the folder of an XLA dump, or file.py:build or package.module:build, where
    build(mesh) returns (function, args) with args as arrays or ShapeDtypeStructs with shardings.
    """
    if any(map(sources.is_program, given)):
        target = _prepared(mesh, target)
    ledgers = [ledger for source in given for ledger in _ledgers(source, mesh, target)]
    if as_json:
        _print_json([ledger.to_json() for ledger in ledgers] if len(ledgers) > 1 else ledgers[0].to_json())
    else:
        _print("\n\n".join(map(tables.ledger_text, ledgers)))


def _prepared(mesh: Axes | None, target: Target | None) -> Target:
    """The target of a program, with JAX made ready for it before the user's code imports JAX."""
    if mesh is None:
        raise Unusable("a program needs a mesh; name its axes in the order of mesh.devices, such as --mesh data=2,tensor=4")
    target = target or parse_target(f"cpu:{mesh.size}")
    prepare([target])
    return target


def _ledgers(source: str, mesh: Axes | None, target: Target | None) -> list[Ledger]:
    if not sources.is_program(source):
        return inspection.inspect_texts(Path(source), mesh, target)
    with _working(f"compiling {source} for {target}"):
        build = sources.builder(source)
        devices = make_mesh(target, mesh)
        function, args = sources.program(source, build, devices)
        with sources.own_words(source):
            return [inspection.inspect_program(function, args, devices, target, source=source)]


@cli.command("targets")
@as_json
def list_targets(as_json: bool) -> None:
    """Lists what this machine can compile for, and how to install what it cannot."""
    rows = availability()
    if as_json:
        _print_json([asdict(row) for row in rows])
    else:
        _print(tables.rows_text(("target", "chip", "compiles here", "how"), [(r.target, r.name, "no" if r.install else "yes", r.install or r.how) for r in rows]))


@cli.command("list")
@as_json
def list_experiments(as_json: bool) -> None:
    """Lists the experiments."""
    experiments = _loaded((), ())
    if as_json:
        _print_json([{"experiment": e.name, "chapter": e.chapter, "question": e.question, "targets": e.targets, "styles": e.styles} for e in experiments])
    else:
        _print(tables.rows_text(("experiment", "chapter", "question"), [(e.name, str(e.chapter), e.question) for e in experiments]))


@cli.command()
@click.argument("names", metavar="EXPERIMENT...", nargs=-1, required=True)
@click.option("--target", "targets", metavar="TARGET", multiple=True, callback=_parsed(parse_target), help=_TARGET_HELP + " By default the experiment's own.")
@click.option("--style", "styles", metavar="STYLE", multiple=True, help="declared or explicit; by default both.")
@mesh_option
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, callback=_parsed(_setting), help="A parameter of the experiment, such as layers=4.")
@as_json
def run(names: tuple[str, ...], targets: tuple[Target, ...], styles: tuple[str, ...], mesh: Axes | None, settings: tuple[tuple[str, str], ...], as_json: bool) -> int:
    """Settles what theory predicts with what the compilers make of it, term by term."""
    runs = _runs(_loaded(names, targets), targets, styles)
    results = _results(runs, mesh, dict(settings))
    return _report(results, as_json, verdicts.results_text)


@cli.command()
@click.option("--full", is_flag=True, help="For every known chip, not only for the experiments' own targets.")
@as_json
def verify(full: bool, as_json: bool) -> int:
    """Runs every experiment in every style on its targets, and ends with a table of verdicts."""
    experiments = _loaded((), ())
    runs = _runs(experiments, (), ())
    runs = _with_plugin(_on_every_chip(runs) if full else runs)
    results = _results(runs, None, {})
    return _report(results, as_json, verdicts.summary_text)


def _loaded(names: Sequence[str], targets: Sequence[Target]) -> list[Experiment]:
    """The named experiments, or all, with JAX made ready for these targets before it is imported."""
    prepare(targets)
    from lab import experiment

    return [experiment.load(name) for name in names or experiment.names()]


def _runs(experiments: Sequence[Experiment], targets: Sequence[Target], styles: Sequence[str]) -> list[Run]:
    for experiment in experiments:
        for style in set(styles) - set(experiment.styles):
            raise Unusable(f"{experiment.name} has no style {style!r}; it has {', '.join(experiment.styles)}")
    return [(e, target, style) for e in experiments for target in targets or map(parse_target, e.targets) for style in styles or e.styles]


def _on_every_chip(runs: Sequence[Run]) -> list[Run]:
    """The same runs on all chips of their platform: GPU clusters of the same shape, TPU topologies such as `lab targets` lists."""
    examples = [parse_target(row.target) for row in availability()]
    chips = {target: [e if e.platform == "tpu" else replace(e, shape=target.shape) for e in examples if e.platform == target.platform] for _, target, _ in runs}
    return list(dict.fromkeys((experiment, other, style) for experiment, target, style in runs for other in (target, *chips[target])))


def _with_plugin(runs: Sequence[Run]) -> list[Run]:
    """The runs whose target can be compiled for here; says once for each platform what is left out."""
    for platform in dict.fromkeys(target.platform for _, target, _ in runs):
        if not plugins.installed(platform):
            print(f"lab: {platform} targets are left out, the plugin is not installed; run: {plugins.install_command(platform)}", file=sys.stderr)
    return [run for run in runs if plugins.installed(run[1].platform)]


def _results(runs: Sequence[Run], mesh: Axes | None, settings: dict[str, str]) -> list[Result]:
    prepare([target for _, target, _ in runs])
    from lab.experiment import with_settings
    from lab.run import run

    results = []
    for experiment, target, style in _counted(runs):
        parameters = with_settings(experiment.parameters, settings)
        results.append(run(experiment, target=target, style=style, axes=mesh, parameters=parameters))
    return results


def _counted(runs: Sequence[Run]) -> Iterator[Run]:
    """The same runs; on a terminal it shows which one is under way, and how many are done."""
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=len(runs))
        for experiment, target, style in runs:
            progress.update(task, description=f"{experiment.name} {style} {target}")
            yield experiment, target, style
            progress.advance(task)


def _report(results: Sequence[Result], as_json: bool, text: Callable[[Sequence[Result]], str]) -> int:
    """Prints the results; 1 where something failed or was refuted."""
    if as_json:
        _print_json({"schema": "sharding-lab/run/1", "results": [result.to_json() for result in results]})
    else:
        _print(text(results))
    return 0 if all(result.is_fine for result in results) else 1


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


def main() -> None:
    """The entry point `lab`."""
    try:
        status = cli.main(prog_name="lab", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except (click.ClickException, Unusable) as error:
        status = _refuse(error)
    sys.exit(status)


def _refuse(error: click.ClickException | Unusable) -> int:
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    print(f"lab: {_said(error)}", file=sys.stderr)
    return 2


def _said(error: click.ClickException | Unusable) -> str:
    if isinstance(error, Unusable):
        return " ".join(str(error).split())
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "lab"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


if __name__ == "__main__":
    main()
