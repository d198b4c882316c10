"""A law beside theory, where the program is one of the lab's: the formulas of both, and their settlement term by term
at sizes that nobody compiled. Imports no JAX but what the experiment does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any

from lab.core.ledger import Ledger, Transfer
from lab.harness.experiment import Experiment
from lab.laws.derive import About, Start, derived
from lab.laws.family import has_size, sized
from lab.laws.law import Beside, Law, Settled, Term, Theory
from lab.laws.measurement import Measurement, Refusal, sites
from lab.laws.polynomial import Polynomial, collected, value
from lab.laws.verify import LARGE, candidates
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.settle import Context, settle
from lab.settle.settlement import SETTLED, Status

MOST_PREDICTED = 2000
FAR = 16
"""How much larger the last sizes are that both are compared at."""
NO_LAW = "without a law"
"""Of what theory predicts along axes where the law refuses a transfer, and nothing answers it."""
INCOMPLETE = "incomplete"


def beside_theory(law: Law, experiment: Experiment, parameters: Any, start: Start) -> Law:
    """With what theory says in the same variables, and how the two are settled at each held-out size and beyond."""

    def predicted(sizes: Mapping[str, int]) -> Ledger:
        axes = Axes.of({name: sizes.get(name, size) for name, size in start.mesh.shape.items()})
        own = {name: size for name, size in sizes.items() if name not in axes.names}
        return experiment.predict(replace(parameters, **own), axes)

    def measure(some: Sequence[Mapping[str, int]]) -> list[Measurement | Refusal]:
        return [_measured(predicted, sizes) for sizes in some]

    about = About(f"theory of {law.source}", law.target, law.platform, law.style, law.compiler)
    theory, _ = derived(about, start, measure, most=MOST_PREDICTED)
    target, wish = parse_target(law.target), replace(LARGE, factor=Fraction(FAR))
    there = candidates(law, start.mesh, wish, lambda devices: has_size(target, devices))
    far = next((sizes for sizes in there if isinstance(_measured(predicted, sizes), Measurement)), None)
    places = [dict(check.sizes) for check in law.checks] + ([far] if far else [])
    return replace(
        law, theory=Theory(_beside(theory.terms, law.terms), tuple(_settled(law, predicted, s) for s in places))
    )


def _measured(predicted: Any, sizes: Mapping[str, int]) -> Measurement | Refusal:
    try:
        return Measurement(tuple(sites(predicted(sizes))), (), (), (), None, None, (), True)
    except UsageError as refusal:
        return Refusal(str(refusal))


def _beside(theory: Sequence[Term], law: Sequence[Term]) -> tuple[Beside, ...]:
    """By kind and axes, as payload of a step."""
    keys = dict.fromkeys((term.kind, term.axes) for term in (*theory, *law))

    def total(terms: Sequence[Term], key: object) -> Polynomial:
        return collected(m for term in terms if (term.kind, term.axes) == key for m in term.payload_of_step)

    rows = [(key, total(theory, key), total(law, key)) for key in keys]
    return tuple(Beside(*key, one, other, one == other) for key, one, other in rows)


def ledger_at(law: Law, sizes: Mapping[str, int]) -> Ledger:
    """What the law says of sizes, as a ledger; a term of several payloads as one transfer of them all."""
    axes = Axes.of({name: sizes.get(name, size) for name, size in law.mesh.items()})
    transfers = [_transfer(term, sizes, axes) for term in law.terms]
    target = sized(parse_target(law.target), axes.size)
    return Ledger(tuple(transfers), law.source, str(target), axes.size, axes.shape)


def _transfer(term: Term, sizes: Mapping[str, int], axes: Axes) -> Transfer:
    group = int(value(term.group, sizes))
    executions = int(value(term.executions, sizes))
    payload, often = (
        (int(value(term.payload_of_step, sizes)), 1)
        if term.payload is None
        else (int(value(term.payload, sizes)), executions)
    )
    return Transfer(
        term.kind,
        term.axes if set(term.axes) <= set(axes.names) else None,
        group,
        often,
        term.dtype,
        payload,
        shift=None if term.shift is None else term.shift % prod(axes.shape.get(name, 1) for name in term.axes),
        groups=axes.size // group,
        conditional=term.conditional,
        phase=term.phase,
        scope=term.scope,
        origin=term.origin,
        network_kind=term.network_kind,
        is_widened=term.is_widened,
        is_masked_gather=term.is_masked_gather,
    )


def _settled(law: Law, predicted: Any, sizes: Mapping[str, int]) -> Settled:
    found = ledger_at(law, sizes)
    target = parse_target(found.target or law.target)
    is_typed = law.style == "typed"
    context = Context(
        target.platform,
        "declared" if is_typed else law.style or "declared",
        dict(found.mesh or {}),
        is_typed=is_typed,
        target=target if target.chip else None,
    )
    settlement = settle(predicted(sizes), found, context)
    without_law = {frozenset(each.axes) for each in law.refused if each.kind}
    statuses = Counter[str]()
    findings = []
    for term in settlement.terms:
        axes = term.predicted.axes or ()
        is_refused = term.status is Status.MISSING and frozenset(axes) in without_law
        status = NO_LAW if is_refused else str(term.status)
        statuses[status] += 1
        if term.status not in SETTLED and not is_refused:
            why = f" ({term.explanation})" if term.explanation else ""
            findings.append(f"{term.predicted.kind} over {'+'.join(axes)}, {term.predicted.scope}: {status}{why}")
    # Theory's own may be one of those that the law lacks.
    open_kinds = {(each.kind, frozenset(each.axes)) for each in law.refused} if statuses[NO_LAW] else set()
    findings += [
        f"{t.kind} over {t.span}, {t.scope or t.origin or 'no name'}: unexplained"
        for t in settlement.unexplained
        if (t.kind, frozenset(t.axes or ())) not in open_kinds
    ]
    is_open = statuses[NO_LAW] > 0 and not findings
    return Settled(dict(sizes), INCOMPLETE if is_open else str(settlement.verdict), dict(statuses), tuple(findings))
