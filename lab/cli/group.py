"""`lab` and its commands, one module each."""

from __future__ import annotations

import click

from lab.cli.bench import bench
from lab.cli.book import book
from lab.cli.diff import diff
from lab.cli.explain import explain
from lab.cli.fit import fit
from lab.cli.frontier import frontier
from lab.cli.inspect import inspect
from lab.cli.launch import launch
from lab.cli.law import law
from lab.cli.list import list_experiments
from lab.cli.plot import plot
from lab.cli.restart import restart
from lab.cli.run import run
from lab.cli.schema import schema
from lab.cli.targets import targets
from lab.cli.time import time
from lab.cli.tour import tour
from lab.cli.upgrade import upgrade
from lab.cli.verify import verify
from lab.core.faults import versions_text
from lab.meshes.errors import no_such


def _print_versions(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(versions_text())
        context.exit()


class InOrder(click.Group):
    """Lists its commands in the order in which they were added."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise no_such("command", args[0], self.commands, shown_by="lab --help")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=InOrder,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Completion in bash: eval "$(_LAB_COMPLETE=bash_source lab)"; in zsh and fish: zsh_source, fish_source.',
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Print the versions of lab and JAX.",
)
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    help="Where something fails, print the whole traceback; LAB_TRACEBACK=1 does the same.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """What a sharded JAX program communicates: predicted by theory, read from the compiled program, settled to the
    byte."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    inspect,
    time,
    explain,
    diff,
    upgrade,
    frontier,
    targets,
    list_experiments,
    run,
    fit,
    law,
    restart,
    verify,
    launch,
    bench,
    tour,
    book,
    plot,
    schema,
):
    # Wherever it stands on the command line.
    click.option("--traceback", is_flag=True, expose_value=False, hidden=True)(_command)
    cli.add_command(_command)
