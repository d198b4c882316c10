"""What a prediction did not say of its values, and would have settled with: rules act on a transfer's `Provenance`, and
a strategy that states none leaves over what the compiler makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain, combinations
from typing import Any

from lab.core.known import known
from lab.core.ledger import Provenance, Transfer
from lab.settle.behaviours import Behaviour, Context, emitted
from lab.settle.unclaimed import Unclaimed, claim_all, subtract

COUNTS = ("partial_products", "stacked_layers", "iterations", "micro_batches", "repeats", "accumulated_in_loop")
WITH_OTHERS = ("micro_batches", "product")
"""Fields that some rules act on only where another is stated, too."""
MOST_COUNTS = 8
"""That are tried, the smallest: what is left over under no name may suggest many."""
UNSTATED = Provenance()


Change = dict[str, Any]
"""Fields of a provenance, and what the prediction would have to state there."""


def change(terms: Sequence[Transfer], claimed: Unclaimed, left_over: Unclaimed, context: Context) -> Change | None:
    """What the prediction would have to state of all these terms alike, so that rules give what they claimed and all
    that is left over: in their scopes, and under no name with a payload that the rules give. None where no few fields
    that it leaves unstated do it.

    Only what was tried is said: with that provenance the rules give transfers that are there, to the byte.
    """
    if not all(map(partial(_may_change, context=context), terms)):
        return None
    scopes, there = {term.scope for term in terms}, claimed + left_over
    for tried in _changes(terms[0], there, context):
        expected = [given for term in terms for given in _emitted_with(tried, term, context)[0]]
        taken, sizes = claim_all(expected, there), {given.payload_bytes for given in expected}
        needed = tuple(t for t in left_over if t.scope in scopes or (t.scope == "" and t.payload_bytes in sizes))
        if subtract(taken, claimed) and not subtract(claimed + needed, taken):
            return tried
    return None


def hint(term: Transfer, stating: Change, context: Context) -> str:
    """The rules with which a term would be settled, and the provenance that they need."""
    stated = emitted(term, context)[1]
    rules = ", ".join(b.id for b in _emitted_with(stating, term, context)[1] if b not in stated)
    said = ", ".join(f"{name}={value!r}" for name, value in stating.items())
    return f"{rules} would explain it if the prediction stated Provenance({said})"


def followed(term: Transfer, stating: Change) -> Transfer:
    """The term as the hint would have it predicted."""
    return replace(term, provenance=replace(term.provenance, **stating))


def _may_change(term: Transfer, context: Context) -> bool:
    return bool(term.executions and term.payload_bytes and set(term.axes or ()) <= context.mesh.keys())


def _emitted_with(
    change: Change, term: Transfer, context: Context
) -> tuple[tuple[Transfer, ...], tuple[Behaviour, ...]]:
    return emitted(followed(term, change), context)


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
        often, large = Fraction(executions, known(term.executions)), Fraction(alike[2], term.payload_bytes)
        sizes = (large / 2, large, 2 * large)
        found |= {often, *sizes, *(often * size for size in sizes)}
    whole = {factor if factor > 1 else 1 / factor for factor in found if factor}
    return tuple(sorted(int(factor) for factor in whole if factor > 1 and factor.denominator == 1)[:MOST_COUNTS])
