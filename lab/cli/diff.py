"""`lab diff`."""

from __future__ import annotations

from fractions import Fraction
from operator import attrgetter

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import programs
from lab.cli.progress import stages
from lab.compile import sources
from lab.compile.other_process import Call, Stage, other_process
from lab.core import changes
from lab.core.ledger import Ledger
from lab.meshes.axes import TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target
from lab.report.changes import changes_text, exceeded


@click.command()
@click.argument("before", metavar="BEFORE", type=click.Path())
@click.argument("after", metavar="AFTER", type=click.Path())
@options.typed_mesh
@options.target(f"What to compile programs for: {options.TARGET_FORMS}.")
@click.option(
    "--allow",
    "allowed",
    metavar="PERCENT",
    type=options.SHARE,
    help="How many bytes may come or go along any axes, as a share of those before: 1%. Bytes that "
    "vanish do not offset bytes that appear.",
)
@options.as_json
def diff(
    before: str, after: str, mesh: TypedAxes | None, target: Target | None, allowed: Fraction | None, as_json: bool
) -> int:
    """Compare the communication of two programs.

    Exit status 1 if they differ, or with --allow if they differ by more. BEFORE and AFTER are each a SOURCE as of lab
    inspect, or a .json file that lab inspect --json wrote.
    """
    with stages() as stage, other_process(stage) as call:
        old, new = (_one_ledger(source, mesh, target, stage, call) for source in (before, after))
    if as_json:
        print_json(changes.Difference(old, new))
    else:
        over = exceeded(old, new, allowed) if allowed is not None else []
        print_text("\n\n".join([changes_text(old, new), *["\n".join(over)] * bool(over)]))
    along = changes.by_axes(old, new)
    return 1 if any(allowed is None or row.exceeds(allowed) for row in along) else 0


def _one_ledger(source: str, mesh: TypedAxes | None, target: Target | None, stage: Stage, call: Call) -> Ledger:
    ledgers = (
        [sources.saved_ledger(source)]
        if source.endswith(".json")
        else programs(source, mesh, target, stage, call, attrgetter("ledger"))
    )
    if len(ledgers) > 1:
        raise UsageError(
            f"{source} holds {len(ledgers)} partitioned modules; give one of their files, such as {ledgers[0].source}"
        )
    if not ledgers[0].is_complete:
        raise UsageError(
            f"{source} could not be read whole, so that nothing can be said of the rest: {'; '.join(ledgers[0].notes)}"
        )
    return ledgers[0]
