"""Settles a predicted ledger with a measured one, term by term and to the byte.

Both are split into single operands first. A transfer is known by kind, axes, dtype and payload; executions of equal ones are added
up, since compilers peel, unroll and merge loops. Scopes only decide between terms that look alike: compilers lose names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any

from lab.ledger import Ledger, Totals, Transfer
from lab.settle.behaviours import CATALOGUE, Context, emitted


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
    """The terms, and the measured transfers that no term asks for."""

    terms: tuple[Term, ...]
    unexplained: tuple[Transfer, ...]

    @property
    def missing(self) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.status is Status.MISSING)

    @property
    def verdict(self) -> Verdict:
        statuses = {term.status for term in self.terms}
        if self.unexplained or statuses & {Status.REFUTED, Status.MISSING}:
            return Verdict.REFUTED
        for status in (Status.ATTRIBUTED, Status.EXPLAINED):
            if status in statuses:
                return Verdict(status)
        return Verdict.EXACT

    @property
    def predicted_wire_bytes(self) -> Fraction:
        """On the wire as predicted: exact terms and explained ones. One of the three columns."""
        return self._wire_bytes(Status.EXACT, Status.EXPLAINED)

    @property
    def attributed_wire_bytes(self) -> Fraction:
        return self._wire_bytes(Status.ATTRIBUTED)

    @property
    def unexplained_wire_bytes(self) -> Fraction:
        return Totals.of(self.unexplained).wire_bytes + self._wire_bytes(Status.REFUTED)

    def _wire_bytes(self, *statuses: Status) -> Fraction:
        return Totals.of(t for term in self.terms if term.status in statuses for t in term.measured).wire_bytes


# Measured transfers that no term has claimed yet.
Left = tuple[Transfer, ...]
# Settles a term with what is left, and says what is left then; None where it cannot.
Settle = Callable[[Transfer, Left, Context], tuple[Term, Left] | None]


def settle(predicted: Ledger, measured: Ledger, context: Context) -> Settlement:
    """Settles every predicted transfer; groups of one device, which send nothing, are left out on both sides."""
    left = _moving(measured)
    open_terms = dict(enumerate(_moving(predicted)))
    settled: dict[int, Term] = {}
    for attempt in (_as_predicted, _as_emitted, _as_recognised, _contradicted):
        scopes = {t.scope for t in left}
        for place, term in sorted(open_terms.items(), key=lambda item: item[1].scope not in scopes):
            found = attempt(term, left, context)
            if found is not None:
                settled[place], left = found
                del open_terms[place]
    for place, term in open_terms.items():
        settled[place] = Term(term, (), Status.MISSING, "the compiled program has no such transfer")
    return Settlement(tuple(settled[place] for place in sorted(settled)), left)


def _as_predicted(term: Transfer, left: Left, context: Context) -> tuple[Term, Left] | None:
    taken = _take(term, left)
    return (Term(term, taken, Status.EXACT), _without(left, taken)) if taken else None


def _as_emitted(term: Transfer, left: Left, context: Context) -> tuple[Term, Left] | None:
    expected, behaviours = emitted(term, context)
    taken = _take(expected, left) if behaviours else ()
    why = "; ".join(f"{b.id}: {b.effect}" for b in behaviours)
    return (Term(term, taken, Status.EXPLAINED, why), _without(left, taken)) if taken else None


def _as_recognised(term: Transfer, left: Left, context: Context) -> tuple[Term, Left] | None:
    for behaviour in CATALOGUE:
        if behaviour.recognise is None or behaviour.platform not in (None, context.platform):
            continue
        if found := behaviour.recognise(term, left):
            return Term(term, found, Status.ATTRIBUTED, f"{behaviour.id}: {behaviour.effect}"), _without(left, found)
    return None


def _contradicted(term: Transfer, left: Left, context: Context) -> tuple[Term, Left] | None:
    """What the program does in the term's own scope, on its axes, with other bytes or executions than predicted."""
    rivals = tuple(t for t in left if term.scope and (t.scope, t.axes) == (term.scope, term.axes))
    why = f"predicted {_sentence((term,))}, compiled {_sentence(rivals)}"
    return (Term(term, rivals, Status.REFUTED, why), _without(left, rivals)) if rivals else None


def _take(wanted: Transfer, left: Left) -> Left:
    """As many executions as are wanted of transfers like it, those of its scope and phase first; () where there are fewer."""
    alike = [t for t in left if _key(t) == _key(wanted) and t.executions]
    missing, taken = wanted.executions or 0, []
    for transfer in sorted(alike, key=lambda t: (t.scope != wanted.scope, t.phase != wanted.phase)):
        share = min(missing, transfer.executions)
        taken += [replace(transfer, executions=share)] if share else []
        missing -= share
    return () if missing else tuple(taken)


def _without(left: Left, taken: Left) -> Left:
    """What is left when the executions of `taken` are gone."""
    claimed = Counter()
    for transfer in taken:
        claimed[replace(transfer, executions=None)] += transfer.executions or 0
    rest = []
    for transfer in left:
        name = replace(transfer, executions=None)
        if name not in claimed:
            rest.append(transfer)
            continue
        remaining = max(0, (transfer.executions or 0) - claimed[name])
        claimed[name] -= (transfer.executions or 0) - remaining
        rest += [replace(transfer, executions=remaining)] if remaining else []
    return tuple(rest)


def _key(transfer: Transfer) -> tuple:
    axes = None if transfer.axes is None else frozenset(transfer.axes)
    return transfer.kind, axes, transfer.dtype, transfer.payload_bytes


def _moving(ledger: Ledger) -> tuple[Transfer, ...]:
    return tuple(t for t in ledger.split().transfers if t.group_size > 1)


def _totals_json(transfers: tuple[Transfer, ...]) -> dict[str, Any]:
    row = Totals.of(transfers).to_json()
    return {name: row[name] for name in ("executions", "payload_bytes", "wire_bytes")}


def _sentence(transfers: Iterable[Transfer]) -> str:
    return " and ".join(f"{t.executions} x {t.kind} of {t.payload_bytes:,} B {t.dtype}" for t in transfers)
