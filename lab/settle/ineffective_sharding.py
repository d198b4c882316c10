"""Layouts that did nothing: a program that runs, gives right numbers, and keeps or sums in full what was declared
split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from lab.core.ledger import Kind, Phase, Transfer
from lab.settle.settlement import Settlement, Status, Term


@dataclass(frozen=True)
class StateShard:
    """An array of a step's state: what a layout declares of it, and what a device of the compiled program holds.

    Attributes:
      name: of the array.
      when: a step has it: "taken" or "given back".
      split_over: the axes that the layout splits it over.
      declared: entries that a device is to hold.
      held: entries that it holds.
    """

    name: str
    when: str
    shape: tuple[int, ...]
    split_over: tuple[str, ...]
    declared: int
    held: int


def state_not_split(state: Iterable[StateShard]) -> str | None:
    """The sentence on state of which a device holds more than was declared; None where there is none."""
    large = [array for array in state if array.held > array.declared]
    if not large:
        return None
    first, whole = large[0], prod(large[0].shape)
    holds = "all of it" if first.held == whole else f"{first.held:,} of its {whole:,} entries, not {first.declared:,}"
    return (
        f"{first.name} {list(first.shape)}, {_WHEN[first.when]} a step, is declared sharded over "
        f"{_and(first.split_over)}, but each device holds {holds}{_others(large)}"
    )


def not_scattered(settlement: Settlement) -> str | None:
    """The sentence on gradients that are summed in full where a scatter was predicted, and no behaviour of the compiler
    makes one of the other."""
    full = [
        term
        for term in settlement.terms
        if _is_unmet_scatter(term)
        and any(_sums_in_full(term.predicted, t) for t in (*term.measured, *settlement.unexplained))
    ]
    if not full:
        return None
    first = full[0].predicted
    return (
        f"the gradient of {first.scope} is declared reduce-scattered over {_and(first.axes or ())}, but each device "
        f"all-reduces it in full{_others(full)}"
    )


def _is_unmet_scatter(term: Term) -> bool:
    return (
        term.predicted.kind is Kind.REDUCE_SCATTER
        and term.predicted.phase in (Phase.BACKWARD, Phase.UPDATE)
        and term.status in (Status.REFUTED, Status.MISSING)
    )


def _sums_in_full(scatter: Transfer, found: Transfer) -> bool:
    """Layer by layer or the whole stack at once."""
    sizes = scatter.payload_bytes * (scatter.executions or 1), found.payload_bytes * (found.executions or 1)
    return found.kind is Kind.ALL_REDUCE and found.axes == scatter.axes and sizes[0] == sizes[1]


_WHEN = {"taken": "an input of", "given back": "an output of"}


def _others(all_of_them: Sequence[object]) -> str:
    return f"; the same holds for {len(all_of_them) - 1} more" if len(all_of_them) > 1 else ""


def _and(axes: Sequence[str]) -> str:
    return " and ".join(axes)
