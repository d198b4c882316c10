"""Draws changes by a seed, runs what names their places, and prints what nothing saw."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256

import click

from tests.mutants.judge import GROUPS, Judged, Outcome, group_of, judge, key
from tests.mutants.mutation import Mutation, mutations
from tests.rooms import modules


def drawn(seed: int, count: int, groups: tuple[str, ...] = ()) -> list[Mutation]:
    """As many of each group as of another, `count` in all; the same for a seed, wherever the code did not change."""
    every: dict[str, list[Mutation]] = {name: [] for name in groups or GROUPS}
    for module, path in modules().items():
        if (group := group_of(module)) in every:
            every[group] += mutations(module, path)
    shuffled = [sorted(some, key=lambda mutation: _lot(seed, mutation)) for some in every.values()]
    return [some[turn] for turn in range(max(map(len, shuffled))) for some in shuffled if turn < len(some)][:count]


def _lot(seed: int, mutation: Mutation) -> tuple[bytes, int]:
    return sha256(repr((seed, key(mutation))).encode()).digest(), mutation.number


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=100, show_default=True)
@click.option("--group", "groups", multiple=True, type=click.Choice(list(GROUPS)))
@click.option("--jobs", default=os.cpu_count(), show_default=True)
def main(seed: int, count: int, groups: tuple[str, ...], jobs: int) -> None:
    """Exits with 1 where a change was not seen."""
    with ThreadPoolExecutor(jobs) as pool:
        judged = []
        for each in as_completed([pool.submit(judge, mutation) for mutation in drawn(seed, count, groups)]):
            judged.append(each.result())
            click.echo(f"{len(judged):4d} {_line(judged[-1])}")
    missed = [found for found in judged if found.outcome in (Outcome.SURVIVED, Outcome.UNTESTED, Outcome.UNDECIDED)]
    click.echo(f"\nseed {seed}: {', '.join(f'{sum(j.outcome is o for j in judged)} {o}' for o in Outcome)}")
    for found in missed:
        of = found.mutation
        click.echo(f"\n{_line(found)}\n  untrue: {of.statement or 'says nothing of itself'}")
    raise SystemExit(bool(missed))


def _line(found: Judged) -> str:
    of = found.mutation
    by = f" ({found.by})" if found.by else ""
    return f"{found.outcome}: {of.module}:{of.line} {of.function}: {of.before} -> {of.after}{by}"


if __name__ == "__main__":
    main()
