"""Where two laws of one program say different things, formula by formula. Imports no JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from lab.laws import formula
from lab.laws.law import Condition, Law, Term
from lab.laws.polynomial import Polynomial, collected
from lab.laws.verify import full_text, term_names

NO_LAW = "no law"
EXECUTIONS = attrgetter("executions")
OF_STEP = attrgetter("payload_of_step")


@dataclass(frozen=True)
class FormulaDifference:
    """Attributes:
    what: `all_gather over fsdp, forward, mlp`, `FLOPs`, `bytes of arguments`.
    of: which of its formulas: executions, payload, payload of a step, group; where it holds; or the transfer itself,
      where one law has none. "" of what is one formula.
    before, after: as text; "" where there is nothing, `no law` where there is something that has none.
    lines: where a transfer comes from.
    """

    what: str
    of: str
    before: str
    after: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The laws of one program, as two releases of JAX compile it or under other flags.

    Attributes:
      differences: of their formulas; not of the sizes that they were compiled at and hold from, which each law tells.
    """

    before: Law
    after: Law
    differences: tuple[FormulaDifference, ...]

    @classmethod
    def of(cls, before: Law, after: Law) -> Comparison:
        found = (*_transfers(before, after), *_refused(before, after), *_flops(before, after), *_memory(before, after))
        return cls(before, after, found)


def _transfers(before: Law, after: Law) -> Iterator[FormulaDifference]:
    """Of terms that do not say the same under fewer names either: a compiler that merges operations keeps any name."""
    left = [before.terms, after.terms]
    for level, said in enumerate((_formulas, _sums, _sums)):
        old, new = (_by_name(terms, level) for terms in left)
        equal = {name for name, terms in old.items() if said(terms) == said(new.get(name, ()))}
        left = [tuple(term for term in terms if term_names(term)[level] not in equal) for terms in left]
    old, new = (_by_name(terms, 1) for terms in left)
    for name in dict.fromkeys((*old, *new)):
        yield from _of_terms(old.get(name, ()), new.get(name, ()), before, after)


def _by_name(terms: Iterable[Term], level: int) -> dict[Hashable, tuple[Term, ...]]:
    found: dict[Hashable, tuple[Term, ...]] = {}
    for term in terms:
        name = term_names(term)[level]
        found[name] = (*found.get(name, ()), term)
    return found


def _formulas(terms: Sequence[Term]) -> Mapping[str, object]:
    return Counter(repr((t.executions, t.payload, t.payload_of_step, t.group, t.where)) for t in terms)


def _sums(terms: Sequence[Term]) -> Mapping[str, object]:
    """Executions and payload of a step, by groups and by where they hold."""
    found: dict[str, tuple[Term, ...]] = {}
    for term in terms:
        key = repr((term.group, term.where))
        found[key] = (*found.get(key, ()), term)
    return {key: (_sum(some, EXECUTIONS), _sum(some, OF_STEP)) for key, some in found.items()}


def _sum(terms: Iterable[Term], of: Callable[[Term], Polynomial]) -> Polynomial:
    return collected(monomial for term in terms for monomial in of(term))


def _of_terms(old: Sequence[Term], new: Sequence[Term], before: Law, after: Law) -> Iterator[FormulaDifference]:
    one = (*old, *new)[0]
    what = full_text(one)
    lines = tuple(dict.fromkeys(term.origin for term in (*old, *new) if term.origin))
    if not (old and new):
        was, now = (_whole(terms) or _missing(law, one) for terms, law in ((old, before), (new, after)))
        yield FormulaDifference(what, "transfer", was, now, lines)
        return
    pairs = {
        "executions": [formula.text(_sum(terms, EXECUTIONS)) for terms in (old, new)],
        "payload": [_once(formula.text(t.payload) if t.payload else "" for t in terms) for terms in (old, new)],
        "payload of a step": [formula.text(_sum(terms, OF_STEP)) for terms in (old, new)],
        "group": [_once(formula.text(t.group) for t in terms) for terms in (old, new)],
        "holds where": [_once(_where(t.where) for t in terms) for terms in (old, new)],
    }
    for of, (was, now) in pairs.items():
        if was != now:
            yield FormulaDifference(what, of, was, now, lines)


def _whole(terms: Sequence[Term]) -> str:
    """`layers x, 4 * embed * layers B a step`."""
    if not terms:
        return ""
    return f"{formula.text(_sum(terms, EXECUTIONS))} x, {formula.text(_sum(terms, OF_STEP))} B a step"


def _missing(law: Law, term: Term) -> str:
    return NO_LAW if any((each.kind, each.axes) == (term.kind, term.axes) for each in law.refused) else ""


def _refused(before: Law, after: Law) -> Iterator[FormulaDifference]:
    """Transfers that one of the two has no law of; another name of the same is none."""
    old, new = (
        {(each.kind, each.axes, each.reason): each for each in law.refused if each.kind} for law in (before, after)
    )
    for key in dict.fromkeys((*old, *new)):
        if (key in old) != (key in new):
            was, now = (f"{NO_LAW}: {of[key].reason}" if key in of else "" for of in (old, new))
            yield FormulaDifference((old | new)[key].what, "law", was, now)


def _flops(before: Law, after: Law) -> Iterator[FormulaDifference]:
    """Of the step, and where it differs of which phase and scope."""
    places = before.flops_where, after.flops_where
    yield from _formula("FLOPs", before.flops, after.flops, *places, whys=_whys("FLOPs", before, after))
    if before.flops != after.flops:
        old, new = ({(each.phase, each.scope): each.flops for each in law.products} for law in (before, after))
        for part in dict.fromkeys((*old, *new)) if old and new else ():
            name = ", ".join(("FLOPs", *filter(None, part)))
            yield from _formula(name, old.get(part, ()), new.get(part, ()))


def _memory(before: Law, after: Law) -> Iterator[FormulaDifference]:
    for name in dict.fromkeys((*before.memory, *after.memory)):
        places = before.memory_where.get(name, ()), after.memory_where.get(name, ())
        was, now = before.memory.get(name), after.memory.get(name)
        yield from _formula(f"bytes of {name}", was, now, *places, whys=_whys(f"memory: {name}", before, after))
    for name in dict.fromkeys((*before.arguments, *after.arguments)):
        was, now = before.arguments.get(name), after.arguments.get(name)
        yield from _formula(f"bytes of argument {name}", was, now)
    for name in dict.fromkeys((*before.memory_at_least, *after.memory_at_least)):
        was, now = before.memory_at_least.get(name), after.memory_at_least.get(name)
        yield from _formula(f"bytes of {name} at least", was, now)


def _formula(
    what: str,
    was: Polynomial | None,
    now: Polynomial | None,
    held: Sequence[Condition] = (),
    holds: Sequence[Condition] = (),
    whys: tuple[str, str] = (NO_LAW, NO_LAW),
) -> Iterator[FormulaDifference]:
    if was != now:
        old, new = (why if each is None else formula.text(each) for each, why in zip((was, now), whys, strict=True))
        yield FormulaDifference(what, "", old, new)
    elif _where(held) != _where(holds):
        yield FormulaDifference(what, "holds where", _where(held), _where(holds))


def _whys(what: str, before: Law, after: Law) -> tuple[str, str]:
    """Why the laws have none of it."""
    old, new = (
        next((f"{NO_LAW}: {each.reason}" for each in law.refused if each.what == what), NO_LAW)
        for law in (before, after)
    )
    return old, new


def _where(conditions: Iterable[Condition]) -> str:
    return " and ".join(each.text for each in conditions)


def _once(texts: Iterable[str]) -> str:
    return ", ".join(sorted(dict.fromkeys(filter(None, texts))))
