"""Settles a predicted ledger with a measured one, term by term and to the byte.

Both are split into single operands first. A transfer is known by kind, axes, dtype and payload; executions of equal ones are added
up, since compilers peel, unroll and merge loops. Scopes only decide between terms that look alike: compilers lose names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from lab.ledger import Kind, Ledger, Totals, Transfer
from lab.settle.behaviours import CATALOGUE, Behaviour, Context, emitted
from lab.settle.left import Left, take, without


class Status(StrEnum):
    """How a predicted term was settled, best first."""

    EXACT = "exact"
    EXPLAINED = "explained"
    ATTRIBUTED = "attributed"
    REFUTED = "refuted"
    MISSING = "missing"


class Verdict(StrEnum):
    """Of a settlement or a run, best first."""

    EXACT = "exact"
    EXPLAINED = "explained"
    ATTRIBUTED = "attributed"
    REFUTED = "refuted"
    FAILED = "failed"


@dataclass(frozen=True)
class Term:
    """One predicted transfer and what the compiled program does for it.

    Attributes:
      measured: the transfers that carry it out; of a refuted term, those that stand in its place; () where there are none.
      explanation: the behaviours or the contradiction, in a sentence.
    """

    predicted: Transfer
    measured: tuple[Transfer, ...]
    status: Status
    explanation: str | None = None

    def to_json(self) -> dict[str, Any]:
        axes = None if self.predicted.axes is None else list(self.predicted.axes)
        return {
            "term": self.predicted.scope,
            "kind": str(self.predicted.kind),
            "axes": axes,
            "predicted": _totals_json((self.predicted,)),
            "measured": _totals_json(self.measured) if self.measured else None,
            "status": str(self.status),
            "explanation": self.explanation,
        }


@dataclass(frozen=True)
class Settlement:
    """The terms, the measured transfers that no term asks for, and whether the measured ledger holds all that communicates."""

    terms: tuple[Term, ...]
    unexplained: tuple[Transfer, ...]
    is_complete: bool = True

    @property
    def missing(self) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.status is Status.MISSING)

    @property
    def verdict(self) -> Verdict:
        statuses = {term.status for term in self.terms}
        if self.unexplained or not self.is_complete or statuses & {Status.REFUTED, Status.MISSING}:
            return Verdict.REFUTED
        for status in (Status.ATTRIBUTED, Status.EXPLAINED):
            if status in statuses:
                return Verdict(status)
        return Verdict.EXACT

    @property
    def foreseen_wire_bytes(self) -> Fraction:
        """Measured on the wire as predicted, in exact terms and explained ones. One of the three columns."""
        return self._wire_bytes(Status.EXACT, Status.EXPLAINED)

    @property
    def attributed_wire_bytes(self) -> Fraction:
        return self._wire_bytes(Status.ATTRIBUTED)

    @property
    def unexplained_wire_bytes(self) -> Fraction:
        return Totals.of(self.unexplained).wire_bytes + self._wire_bytes(Status.REFUTED)

    def _repr_html_(self) -> str:
        from lab.report.html.notebook import settlement_html

        return settlement_html(self)

    def _wire_bytes(self, *statuses: Status) -> Fraction:
        return Totals.of(t for term in self.terms if term.status in statuses for t in term.measured).wire_bytes


# Settles a term with what it may claim of what is left; None where it cannot.
Attempt = Callable[[Transfer, Left, Context], Term | None]


def settle(predicted: Ledger, measured: Ledger, context: Context) -> Settlement:
    """Settles every predicted transfer; what sends nothing is left out on both sides."""
    left = _moving(measured)
    open_terms = dict(enumerate(_moving(predicted)))
    places = {_place(term) for term in open_terms.values()}
    settled: dict[int, Term] = {}
    for attempt, may_guess in ((_as_emitted, False), (_as_predicted, False), (_as_recognised, False), (_as_recognised, True), (_contradicted, False)):
        kept = {t.scope for t in left}
        for place, term in sorted(open_terms.items(), key=lambda item: item[1].scope not in kept):
            found = attempt(term, _of_no_other(term, left, places, may_guess), context)
            if found is not None:
                settled[place], left = found, without(left, found.measured)
                del open_terms[place]
    for place, term in open_terms.items():
        settled[place] = Term(term, (), Status.MISSING, "the compiled program has no such transfer")
    return Settlement(tuple(settled[place] for place in sorted(settled)), left, measured.is_complete)


Place = tuple[str, tuple[str, ...] | None, bool]


def _place(transfer: Transfer) -> Place:
    """Scope and axes, and whether something is summed there: compilers turn one kind of sum into another, never into a gather."""
    return transfer.scope, transfer.axes, transfer.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)


def _of_no_other(term: Transfer, left: Left, places: set[Place], may_guess: bool) -> Left:
    """What a term may claim: what stands in the place of some term is for the terms of that scope, unless it has lost its name and the
    scope is that of what it was made from."""
    return tuple(t for t in left if t.scope == term.scope or not t.scope or _place(t) not in places or (may_guess and t.op_name is None))


def _as_emitted(term: Transfer, left: Left, context: Context) -> Term | None:
    expected, behaviours = emitted(term, context)
    if not behaviours:
        return None
    taken: Left = ()
    for transfer in expected:
        found = take(transfer, without(left, taken))
        if not found:
            return None
        taken += found
    return Term(term, taken, Status.EXPLAINED, _effects(behaviours))


def _as_predicted(term: Transfer, left: Left, context: Context) -> Term | None:
    _, behaviours = emitted(term, context)
    taken = take(term, left)
    unseen = f"although this was expected of the compiler: {_effects(behaviours)}" if behaviours else None
    return Term(term, taken, Status.EXACT, unseen) if taken else None


def _as_recognised(term: Transfer, left: Left, context: Context) -> Term | None:
    """By a behaviour that shows in the text, done to what the compiler was predicted to emit or to what theory asks for."""
    expected, behaviours = emitted(term, context)
    for wanted, before in ((expected, behaviours), ((term,), ())):
        for behaviour in CATALOGUE:
            if len(wanted) != 1 or behaviour.recognise is None or behaviour.platform not in (None, context.platform):
                continue
            if found := behaviour.recognise(wanted[0], context, left):
                return Term(term, found, Status.ATTRIBUTED, _effects((*before, behaviour)))
    return None


def _contradicted(term: Transfer, left: Left, context: Context) -> Term | None:
    """What the program does in the term's own scope, on its axes, with other bytes or executions than predicted."""
    rivals = tuple(t for t in left if term.scope and (t.scope, t.axes) == (term.scope, term.axes))
    why = f"predicted {_sentence((term,))}, compiled {_sentence(rivals)}"
    return Term(term, rivals, Status.REFUTED, why) if rivals else None


def _effects(behaviours: Iterable[Behaviour]) -> str:
    return "; ".join(f"{b.id}: {b.effect}" for b in behaviours)


def _moving(ledger: Ledger) -> Left:
    """Single operands that move, on axes of more than one device."""
    sizes = ledger.mesh or {}
    rows = (t for t in ledger.split().transfers if t.group_size != 1 and t.executions != 0)
    return tuple(t if t.axes is None else replace(t, axes=tuple(axis for axis in t.axes if sizes.get(axis) != 1)) for t in rows)


def _totals_json(transfers: tuple[Transfer, ...]) -> dict[str, Any]:
    row = Totals.of(transfers).to_json()
    return {name: row[name] for name in ("executions", "payload_bytes", "wire_bytes")}


def _sentence(transfers: Iterable[Transfer]) -> str:
    return " and ".join(f"{t.executions} x {t.kind} of {t.payload_bytes:,} B {t.dtype}" + " in a branch" * t.conditional for t in transfers)
