"""What a prediction did not say of its values, and would have settled with: rules act on a transfer's `Provenance`, and
a strategy that states none leaves over what the compiler makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations
from typing import Any

from lab.core.ledger import Provenance, Transfer
from lab.settle.behaviours import Behaviour, Context, emitted
from lab.settle.unclaimed import Unclaimed, claim_all, subtract

COUNTS = ("partial_products", "stacked_layers", "iterations", "micro_batches", "repeats", "accumulated_in_loop")
WITH_OTHERS = ("micro_batches", "product")
"""Fields that some rules act on only where another is stated, too."""
MOST_COUNTS = 8
"""That are tried, the smallest: what is left over under no name may suggest many."""
UNSTATED = Provenance()


def hint(term: Transfer, claimed: Unclaimed, left_over: Unclaimed, context: Context) -> str | None:
    """The rules with which a term would have claimed what it did and all that is left over in its scope, and the
    provenance that they need; None where no few fields that the prediction leaves unstated do it.

    Only what was tried is said: with that provenance the rules give transfers that are there, to the byte.
    """
    if not term.executions or not term.payload_bytes or not set(term.axes or ()) <= context.mesh.keys():
        return None
    there, stated = claimed + left_over, emitted(term, context)[1]
    needed = claimed + tuple(t for t in left_over if t.scope == term.scope)
    for change in _changes(term, there, context):
        expected, behaviours = _emitted_with(change, term, context)
        taken = claim_all(expected, there)
        if subtract(taken, claimed) and not subtract(needed, taken):
            rules = ", ".join(b.id for b in behaviours if b not in stated)
            stating = ", ".join(f"{name}={value!r}" for name, value in change.items())
            return f"{rules} would explain it if the prediction stated Provenance({stating})"
    return None


Change = dict[str, Any]


def _emitted_with(
    change: Change, term: Transfer, context: Context
) -> tuple[tuple[Transfer, ...], tuple[Behaviour, ...]]:
    return emitted(replace(term, provenance=replace(term.provenance, **change)), context)


def _changes(term: Transfer, there: Unclaimed, context: Context) -> Iterator[Change]:
    """Values of one unstated field that a rule acts on, then of two, then of two and the dtype of the products."""
    as_stated = emitted(term, context)
    single: list[Change] = [
        change
        for name, values in _values(term, there, context).items()
        if getattr(term.provenance, name) == getattr(UNSTATED, name)
        for change in ({name: value} for value in values)
        if name in WITH_OTHERS or _emitted_with(change, term, context) != as_stated
    ]
    pairs = [one | other for one, other in combinations(single, 2) if one.keys() != other.keys()]
    with_product = [
        pair | change for pair in pairs for change in single if "product" in change and "product" not in pair
    ]
    return chain(single, pairs, with_product)


def _values(term: Transfer, there: Unclaimed, context: Context) -> dict[str, tuple[Any, ...]]:
    """Of each field those that what is there suggests."""
    axes = tuple(dict.fromkeys(t.axes for t in there if t.axes and set(t.axes) <= context.mesh.keys()))
    return dict.fromkeys(COUNTS, _counts(term, there)) | {
        "product": ("bf16",) if term.dtype == "f32" else (),
        "uses": (2,),
        "replicated_first": (True,),
        "sum_over": axes,
        "reduced_separately_over": (tuple((axis,) for axis in term.axes or ()),) if len(term.axes or ()) > 1 else (),
    }


def _counts(term: Transfer, there: Unclaimed) -> tuple[int, ...]:
    """Whole factors between executions or payloads of the term and of what is there, values of 16 bits in 32 or not,
    and between the two factors."""
    found = set()
    for alike in {(t.kind, t.dtype, t.payload_bytes) for t in there}:
        executions = sum(t.executions or 0 for t in there if (t.kind, t.dtype, t.payload_bytes) == alike)
        often, large = Fraction(executions, term.executions or 1), Fraction(alike[2], term.payload_bytes)
        sizes = (large / 2, large, 2 * large)
        found |= {often, *sizes, *(often * size for size in sizes)}
    whole = {factor if factor > 1 else 1 / factor for factor in found if factor}
    return tuple(sorted(int(factor) for factor in whole if factor > 1 and factor.denominator == 1)[:MOST_COUNTS])
