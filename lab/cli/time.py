"""`lab time`."""

from __future__ import annotations

from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import Script, programs
from lab.cli.progress import stages
from lab.compile.other_process import other_process
from lab.core.files import write_whole
from lab.measure.accuracy import accuracy, records
from lab.measure.prediction import predicted, rates_at
from lab.meshes.axes import TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target
from lab.report.seconds import accuracy_text, prediction_text
from lab.report.trace import trace_text


@click.command(cls=options.OfScripts)
@click.argument("source", metavar="[SOURCE]", required=False, type=click.Path())
@options.typed_mesh
@options.target(f"The chips whose rates count, and what to compile for: {options.TARGET_FORMS}.")
@options.functions
@options.calls
@click.option(
    "--trace",
    metavar="PATH",
    type=options.OUTPUT_FILE,
    help="Write the timeline as a trace, which https://ui.perfetto.dev opens.",
)
@click.option(
    "--accuracy",
    "of_records",
    is_flag=True,
    help="Instead of a program: predicted beside measured seconds of every step that was timed, here or by others.",
)
@options.html
@options.as_json
@click.pass_context
def time(
    context: click.Context,
    source: str | None,
    mesh: TypedAxes | None,
    target: Target | None,
    functions: tuple[str, ...],
    calls: int,
    trace: Path | None,
    of_records: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    """Predict the seconds of one step from its compiled schedule.

    Products, memory traffic, communication along each axis and what of it is waited for, from rates that were measured,
    or that a data sheet states: how much of the time rests on which is said, and what no rate covers is listed.

    SOURCE is what lab inspect takes.
    """
    if of_records == (source is not None):
        raise UsageError("expected a SOURCE, as lab inspect takes it, or --accuracy alone")
    if source is None:
        found_accuracy = accuracy(records())
        if as_json:
            print_json(found_accuracy)
        else:
            print_text(accuracy_text(found_accuracy))
        return 0
    if target is None or target.platform != Platform.ATTACHED:
        rates_at(target)  # Before the program runs: it may take minutes.
    script = Script(context.meta[options.ARGUMENTS], functions, calls)
    with stages() as stage, other_process(stage) as call:
        found = programs(source, mesh, target, stage, call, predicted, script)
    if trace:
        write_whole(trace, trace_text(found[0]))
    if html:
        from lab.report.html.seconds import page

        write_whole(html, page(found))
    if as_json:
        print_json(found if len(found) > 1 else found[0])
    else:
        print_text("\n\n".join(map(prediction_text, found)))
    return 0
