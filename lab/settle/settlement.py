"""Settles a predicted ledger with a measured one, term by term and to the byte.

Both are split into single operands first. A transfer is known by kind, axes, dtype and payload; executions of equal
ones are added up, since compilers peel, unroll and merge loops. Scopes only decide between terms that look alike:
compilers lose names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from lab.core import display
from lab.core.ledger import Kind, Ledger, Totals, Transfer, TransferJson
from lab.settle.behaviours import CATALOGUE, Behaviour, Context, emitted
from lab.settle.hints import Change, change, followed, hint
from lab.settle.unclaimed import Unclaimed, claim, claim_all, is_of_scope, subtract


class Status(StrEnum):
    """How a predicted term was settled, best first."""

    EXACT = "exact"
    EXPLAINED = "explained"
    ATTRIBUTED = "attributed"
    REFUTED = "refuted"
    MISSING = "missing"


SETTLED = (Status.EXACT, Status.EXPLAINED, Status.ATTRIBUTED)


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
      predicted: what theory asks for; with no executions, what a compiler does beside that.
      measured: the transfers that carry it out; of a refuted term, those that stand in its place; () where there are
        none.
      explanation: the behaviours or the contradiction, in a sentence.
      behaviours: ids of the compiler behaviours that explain it.
      did_not_happen: ids of those that were predicted, of a term that is settled without them.
      hint: what the prediction did not say, and would have claimed what is left over with.
    """

    predicted: Transfer
    measured: tuple[Transfer, ...]
    status: Status
    explanation: str | None = None
    behaviours: tuple[str, ...] = ()
    did_not_happen: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def is_added(self) -> bool:
        return self.predicted.executions == 0

    @property
    def taken_by_size(self) -> tuple[Transfer, ...]:
        """Transfers without a name, and with nothing around them that has one in the term's scope: axes, kind, phase
        and size alone speak for them."""
        return tuple(t for t in self.measured if t.op_name is None and t.scope != self.predicted.scope)

    def json_object(self) -> TermJson:
        return TermJson(
            term=self.predicted.scope,
            kind=self.predicted.kind,
            axes=self.predicted.axes,
            predicted=_totals((self.predicted,)),
            measured=_totals(self.measured) if self.measured else None,
            status=self.status,
            explanation=self.explanation,
            behaviours=self.behaviours,
            hint=self.hint,
            did_not_happen=self.did_not_happen,
        )


@dataclass(frozen=True)
class TermTotalsJson:
    """Of one step of one device."""

    executions: int
    payload_bytes: int
    wire_bytes: Fraction


@dataclass(frozen=True)
class TermJson:
    """One predicted transfer, and what the compiled program does for it; with no predicted executions, what a compiler
    does beside that."""

    term: str
    kind: Kind
    axes: tuple[str, ...] | None
    predicted: TermTotalsJson
    measured: TermTotalsJson | None
    status: Status
    explanation: str | None
    behaviours: tuple[str, ...] = ()
    hint: str | None = None
    did_not_happen: tuple[str, ...] = ()


@dataclass(frozen=True)
class RuleJson:
    """A rule of the catalogue, and in how many terms."""

    rule: str
    times: int


@dataclass(frozen=True)
class Settlement:
    """The terms, the measured transfers that no term asks for, and whether the measured ledger holds all that
    communicates."""

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
    def taken_by_size(self) -> tuple[Transfer, ...]:
        return tuple(t for term in self.terms for t in term.taken_by_size)

    @property
    def scope_not_stated(self) -> int:
        """Transfers of which the text names no scope: combined ones, such that have lost their names, and such that the
        program gives none."""
        return sum(t.scope == "" and term.predicted.scope != "" for term in self.terms for t in term.measured)

    @property
    def phase_not_stated(self) -> int:
        """The same of the phase."""
        return sum(t.phase is None and term.predicted.phase is not None for term in self.terms for t in term.measured)

    @property
    def did_not_happen(self) -> Counter[str]:
        """Rules that were predicted and did not happen, and in how many terms: each of these is exact without them."""
        return Counter(rule for term in self.terms for rule in term.did_not_happen)

    @property
    def predicted_wire_bytes(self) -> Fraction:
        """Measured on the wire as predicted, in exact terms and explained ones. One of the three columns."""
        return self._wire_bytes(Status.EXACT, Status.EXPLAINED)

    @property
    def attributed_wire_bytes(self) -> Fraction:
        return self._wire_bytes(Status.ATTRIBUTED)

    @property
    def unexplained_wire_bytes(self) -> Fraction:
        return Totals.of(self.unexplained).wire_bytes + self._wire_bytes(Status.REFUTED)

    def json_object(self) -> SettlementJson:
        return SettlementJson(
            tuple(term.json_object() for term in self.terms),
            tuple(transfer.json_object() for transfer in self.unexplained),
            tuple(term.json_object() for term in self.missing),
            len(self.taken_by_size),
            tuple(RuleJson(rule, times) for rule, times in self.did_not_happen.items()),
            self.scope_not_stated,
            self.phase_not_stated,
        )

    def _repr_html_(self) -> str | None:
        return display.html(self)

    def _wire_bytes(self, *statuses: Status) -> Fraction:
        return Totals.of(t for term in self.terms if term.status in statuses for t in term.measured).wire_bytes


@dataclass(frozen=True)
class SettlementJson:
    """What of a result settling gives; nothing of each where nothing was settled."""

    terms: tuple[TermJson, ...] = ()
    unexplained: tuple[TransferJson, ...] = ()
    missing: tuple[TermJson, ...] = ()
    taken_by_size: int = 0
    did_not_happen: tuple[RuleJson, ...] = ()
    scope_not_stated: int = 0
    phase_not_stated: int = 0


# Settles a term with what it may claim of what is left; None where it cannot.
Attempt = Callable[[Transfer, Unclaimed, Context], Term | None]


def settle(predicted: Ledger, measured: Ledger, context: Context) -> Settlement:
    """Settles every predicted transfer, and says what the prediction would have to state where one is not settled;
    what sends nothing is left out on both sides."""
    found = _settled(_moving(predicted), measured, context)
    for changes in _plans(found, context):
        terms = [
            followed(term.predicted, changes.get(place, {}))
            for place, term in enumerate(found.terms)
            if not term.is_added
        ]
        if _settled(terms, measured, context).verdict is not Verdict.REFUTED:
            hinted = tuple(
                replace(term, hint=hint(term.predicted, changes[place], context)) if place in changes else term
                for place, term in enumerate(found.terms)
            )
            return replace(found, terms=hinted)
    return found


def _settled(predicted: Sequence[Transfer], measured: Ledger, context: Context) -> Settlement:
    unclaimed = tuple(_as_named(t, context) for t in _moving(measured))
    # A message of as many bytes may be either's: that of what fills it by itself, before what is filled up to it.
    open_terms = dict(sorted(enumerate(predicted), key=lambda placed: _is_filled_up(placed[1], context)))
    settled: dict[int, Term] = {}

    def settle_open(attempt: Attempt, may_claim: Callable[[Transfer, Transfer], bool]) -> None:
        nonlocal unclaimed
        for place, term in tuple(open_terms.items()):
            wanted = replace(term, scope="") if may_claim is _nameless else term
            found = attempt(wanted, tuple(t for t in unclaimed if may_claim(term, t)), context)
            if found is not None:
                settled[place], unclaimed = replace(found, predicted=term), subtract(unclaimed, found.measured)
                del open_terms[place]

    for attempt, may_claim in _ATTEMPTS:
        settle_open(attempt, may_claim)
        for place, term in tuple(open_terms.items()):
            if found := _absorbed(term, settled.values(), context):
                settled[place] = found
                del open_terms[place]
    for behaviour in CATALOGUE:
        if behaviour.recognise_together is None or behaviour.platform not in (None, context.platform):
            continue
        done = [(term.predicted, term.measured) for term in settled.values()]
        for place, taken in behaviour.recognise_together(open_terms, done, unclaimed, context).items():
            settled[place] = _explained((behaviour,), open_terms.pop(place), taken, Status.ATTRIBUTED)
            unclaimed = subtract(unclaimed, taken)
    added = _added([settled[place] for place in sorted(settled)], unclaimed, context)
    unclaimed = subtract(unclaimed, tuple(t for term in added for t in term.measured))
    settle_open(_contradicted, _any)
    for place, term in open_terms.items():
        settled[place] = Term(term, (), Status.MISSING, "the compiled program has no such transfer")
    return Settlement((*(settled[place] for place in sorted(settled)), *added), unclaimed, measured.is_complete)


def _added(settled: Iterable[Term], unclaimed: Unclaimed, context: Context) -> tuple[Term, ...]:
    """What a compiler does beside what settled terms ask for, as terms of their own that are not predicted."""
    found: list[Term] = []
    for behaviour in CATALOGUE:
        if behaviour.recognise_added is None or behaviour.platform not in (None, context.platform):
            continue
        for term in settled:
            if taken := behaviour.recognise_added(term.measured, unclaimed):
                nothing = replace(term.predicted, executions=0)
                found.append(_explained((behaviour,), nothing, taken, Status.ATTRIBUTED))
                unclaimed = subtract(unclaimed, taken)
    return tuple(found)


def _plans(found: Settlement, context: Context) -> Iterator[dict[int, Change]]:
    """What terms that are not settled, or beside which something is left over, would have to state, by their place:
    each by itself, then those alike together. Whoever gives such advice tries it first."""
    asked = {place: term for place, term in enumerate(found.terms) if not term.is_added}
    wanting = {place: term for place, term in asked.items() if _left_over((term,), found.unexplained)}
    alone = {place: _change((term,), found.unexplained, context) for place, term in wanting.items()}
    if by_itself := {place: change for place, change in alone.items() if change}:
        yield by_itself
    together: dict[int, Change | None] = {}
    for place, first in wanting.items():
        alike = {other: term for other, term in wanting.items() if _looks_like(first.predicted, term.predicted)}
        if place == min(alike) and len(alike) > 1:
            together |= dict.fromkeys(alike, _change(tuple(alike.values()), found.unexplained, context))
    if any(together.values()):
        yield {place: change for place, change in (alone | together).items() if change}


def _change(terms: tuple[Term, ...], unclaimed: Unclaimed, context: Context) -> Change | None:
    claimed = tuple(t for term in terms if term.status is not Status.REFUTED for t in term.measured)
    return change([term.predicted for term in terms], claimed, _left_over(terms, unclaimed), context)


def _left_over(terms: tuple[Term, ...], unclaimed: Unclaimed) -> Unclaimed:
    """What contradicts the terms, and what is left over that may be theirs: of settled ones in their own scope."""
    rivals = tuple(t for term in terms if term.status is Status.REFUTED for t in term.measured)
    scopes = [term.predicted for term in terms]
    theirs = tuple(t for t in unclaimed if t.scope == "" or any(is_of_scope(one, t.scope) for one in scopes))
    are_settled = all(term.status in SETTLED for term in terms)
    return () if are_settled and not any(t.scope in {one.scope for one in scopes} for t in theirs) else rivals + theirs


def _looks_like(one: Transfer, other: Transfer) -> bool:
    return (one.kind, one.axes, one.dtype, one.payload_bytes) == (
        other.kind,
        other.axes,
        other.dtype,
        other.payload_bytes,
    )


def _states_it(term: Transfer, found: Transfer) -> bool:
    """The text gives it the scope of the term."""
    return found.scope == term.scope


def _states_one(term: Transfer, found: Transfer) -> bool:
    """The text gives it a scope."""
    return found.scope != ""


def _any(term: Transfer, found: Transfer) -> bool:
    return True


def _nameless(term: Transfer, found: Transfer) -> bool:
    """What has lost its name may be for another scope than that of what it was made from."""
    return found.op_name is None or found.scope == ""


def _as_emitted(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    expected, behaviours = emitted(term, context)
    taken = claim_all(expected, unclaimed)
    return _explained(behaviours, term, taken, Status.EXPLAINED) if behaviours and taken else None


def _absorbed(term: Transfer, settled: Iterable[Term], context: Context) -> Term | None:
    """A term that the compiler is predicted to make part of another one, where that one is there."""
    expected, behaviours = emitted(term, context)
    is_part_of = behaviours[-1].absorbed_by if behaviours and not expected else None
    if is_part_of is None or not any(
        other.status in SETTLED and is_part_of(term, other.predicted, other.behaviours) for other in settled
    ):
        return None
    return _explained(behaviours, term, (), Status.EXPLAINED)


def _as_predicted(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    _, behaviours = emitted(term, context)
    taken = claim(term, unclaimed)
    if not taken:
        return None
    unseen = f"although the compiler was expected to rewrite it: {_effects(behaviours)}" if behaviours else None
    return Term(term, taken, Status.EXACT, unseen, did_not_happen=tuple(b.id for b in behaviours))


def _as_predicted_between_slices(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    """Where the program has a copy for each slice: making these loses names, of transfers that stay inside, too."""
    return _as_predicted(term, unclaimed, context) if _has_slices(context) else None


def _as_one(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    """As predicted, unless the compiler is to make several of it: the others may have lost their names, and this one
    alone would leave them over."""
    return None if _is_made_several(term, context) else _as_predicted(term, unclaimed, context)


def _is_filled_up(term: Transfer, context: Context) -> bool:
    return any(t.padded_from_bytes is not None for t in emitted(term, context)[0])


def _is_made_several(term: Transfer, context: Context) -> bool:
    return len(emitted(term, context)[0]) > 1


def _as_recognised(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    """By behaviours that show in the text, done to what the compiler was predicted to emit or, where that is one
    transfer, to what theory asks for."""
    expected, predicted = emitted(term, context)
    as_asked = () if _is_made_several(term, context) else (((term,), (), predicted),)
    for wanted, before, absent in ((expected, predicted, ()), *as_asked):
        taken, seen = _recognised(wanted, unclaimed, context)
        if seen:
            found = _explained((*before, *dict.fromkeys(seen)), term, taken, Status.ATTRIBUTED)
            return replace(found, did_not_happen=tuple(b.id for b in absent))
    return None


def _recognised(
    wanted: Iterable[Transfer], unclaimed: Unclaimed, context: Context
) -> tuple[Unclaimed, tuple[Behaviour, ...]]:
    """What carries out all of these, some as they stand, and the behaviours that the others show; nothing where one is
    not there."""
    taken: Unclaimed = ()
    seen: tuple[Behaviour, ...] = ()
    for transfer in wanted:
        rest = subtract(unclaimed, taken)
        found = claim(transfer, rest)
        for behaviour in () if found else CATALOGUE:
            if behaviour.recognise is None or behaviour.platform not in (None, context.platform):
                continue
            if found := behaviour.recognise(transfer, context, rest):
                seen += (behaviour,)
                break
        if not found:
            return (), ()
        taken += found
    return taken, seen


def _contradicted(term: Transfer, unclaimed: Unclaimed, context: Context) -> Term | None:
    """What the program does in the term's own scope, on its axes, with other bytes or executions than predicted."""
    rivals = tuple(t for t in unclaimed if term.scope and (t.scope, t.axes) == (term.scope, term.axes))
    why = f"predicted {_sentence((term,))}, compiled {_sentence(rivals)}"
    return Term(term, rivals, Status.REFUTED, why) if rivals else None


# In their order: what fits best chooses first. What is nameless may be of any scope.
_ATTEMPTS: tuple[tuple[Attempt, Callable[[Transfer, Transfer], bool]], ...] = (
    (_as_emitted, _states_it),
    (_as_one, _states_it),
    (_as_emitted, _states_one),
    (_as_one, _states_one),
    (_as_recognised, _states_one),
    (_as_emitted, _any),
    (_as_predicted, _any),
    (_as_recognised, _any),
    (_as_predicted_between_slices, _nameless),
    (_as_recognised, _nameless),
)


def _explained(behaviours: tuple[Behaviour, ...], term: Transfer, taken: Unclaimed, status: Status) -> Term:
    return Term(term, taken, status, _effects(behaviours), tuple(b.id for b in behaviours))


def _effects(behaviours: Iterable[Behaviour]) -> str:
    return "; ".join(f"{b.id}: {b.effect}" for b in behaviours)


def _moving(ledger: Ledger) -> Unclaimed:
    """Single operands that move, on axes of more than one device."""
    sizes = ledger.mesh or {}
    rows = (t for combined in ledger.transfers for t in _operands(combined) if t.group_size != 1 and t.executions != 0)
    return tuple(
        t if t.axes is None else replace(t, axes=tuple(axis for axis in t.axes if sizes.get(axis) != 1)) for t in rows
    )


def _as_named(transfer: Transfer, context: Context) -> Transfer:
    """A message to other slices has no name of its own, and that of the nearest operation may be of another operand;
    nor is the nearest operation's phase that of a nameless transfer where the program has a copy for each slice."""
    if not _has_slices(context) or transfer.op_name is not None:
        return transfer
    return replace(transfer, phase=None, scope="" if transfer.kind is Kind.SEND_RECV else transfer.scope)


def _has_slices(context: Context) -> bool:
    return context.target is not None and context.target.slices > 1


def _operands(transfer: Transfer) -> tuple[Transfer, ...]:
    """One transfer an operand; the phase of a combination may be that of any of them."""
    if len(transfer.parts) < 2:
        return (transfer,)
    return tuple(replace(t, phase=part.phase) for t, part in zip(transfer.split(), transfer.parts, strict=True))


def _totals(transfers: tuple[Transfer, ...]) -> TermTotalsJson:
    totals = Totals.of(transfers)
    return TermTotalsJson(totals.executions, totals.payload_bytes, totals.wire_bytes)


def _sentence(transfers: Iterable[Transfer]) -> str:
    return " and ".join(
        f"{t.executions} x {t.kind} of {t.payload_bytes:,} B {t.dtype}" + " in a branch" * t.conditional
        for t in transfers
    )
