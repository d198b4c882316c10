"""Results of experiments as tables: one run with its terms and claims, many runs in a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

from lab.core.ledger import Totals, Transfer
from lab.core.units import bytes_text, count, exact, listed, scaled, share_text
from lab.report.axis_lines import axis_lines
from lab.report.fitted import Column
from lab.report.memory import memory_text
from lab.report.pipelines import idle_lines
from lab.report.tables import columns_text, kind_text
from lab.settle import Settlement, Status, Term, Verdict

if TYPE_CHECKING:
    from lab.harness.claim import Claim
    from lab.harness.result import Computed, Numerics, Result


ERRATUM = "known erratum"


@dataclass(frozen=True)
class Line:
    """One line of the summary: the transfers of a run that span the same axes. The run is named in its first line
    only."""

    run: tuple[str, str, str, str, str]
    axes: str
    predicted: Totals
    measured: Totals


def summary_text(results: Sequence[Result]) -> str:
    """One line for each run and set of axes, those with the best verdict first, then what needs words, then a count of
    the verdicts."""
    parts = [
        columns_text(_summary_columns(sorted(results, key=lambda result: list(Verdict).index(result.verdict)))),
        *("\n".join(say(results)) for say in (explanations, did_not_happen, _troubles, _closing)),
    ]
    return "\n\n".join(part for part in parts if part)


def results_text(results: Sequence[Result]) -> str:
    """Each run in full."""
    return "\n\n\n".join(map(result_text, results))


def result_text(result: Result) -> str:
    """One run: its verdict, each term, what a device holds, what no term asked for, and the claims it decides."""
    mesh = ",".join(f"{name}={size}" for name, size in result.mesh.items())
    parameters = ", ".join(f"{name} {value}" for name, value in result.parameters.items())
    head = f"{result.verdict}: {result.experiment}, {result.style}, {result.target}, mesh {mesh}\n{parameters}"
    terms = columns_text(_term_columns(result.settlement.terms)) if result.settlement else ""
    words = [
        *on_the_wire(result),
        *(axis_lines(result.measured) if result.measured else ()),
        *in_branches(result),
        *by_schedule(result),
        *as_published(result),
        *explanations([result]),
        *did_not_happen([result]),
        *_troubles([result]),
        *_claims(result),
        *numerics_lines([result]),
    ]
    return "\n\n".join(part for part in (head, terms, memory_text(result), "\n".join(words)) if part)


def _summary_columns(results: Sequence[Result]) -> list[Column]:
    lines = [line for result in results for line in _lines(result)]
    verdict, experiment, style, target, devices = zip(*(line.run for line in lines), strict=True)
    return [
        Column("verdict", verdict),
        Column("experiment", experiment),
        Column("style", style),
        Column("target", target),
        Column("devices", devices, is_number=True),
        Column("axes", tuple(line.axes for line in lines)),
        *_compared([line.predicted for line in lines], [line.measured for line in lines]),
    ]


def _lines(result: Result) -> list[Line]:
    run = str(result.verdict), result.experiment, result.style, result.target, f"{prod(result.mesh.values()):,}"
    again = "", "", "", "", ""
    predicted, measured = _by_axes(predicted_transfers(result)), _by_axes(measured_transfers(result))
    nothing = Totals.of(())
    axes = list(dict.fromkeys([*predicted, *measured])) or ["none"]
    names = [run, *[again] * (len(axes) - 1)]
    return [
        Line(name, of, predicted.get(of, nothing), measured.get(of, nothing))
        for name, of in zip(names, axes, strict=True)
    ]


def predicted_transfers(result: Result) -> list[Transfer]:
    return [term.predicted for term in result.settlement.terms] if result.settlement else []


def measured_transfers(result: Result) -> list[Transfer]:
    settled = result.settlement
    return [t for term in settled.terms for t in term.measured] + list(settled.unexplained) if settled else []


def _by_axes(transfers: Sequence[Transfer]) -> dict[str, Totals]:
    names = dict.fromkeys(t.span for t in transfers)
    return {name: Totals.of(t for t in transfers if t.span == name) for name in names}


def _term_columns(terms: Sequence[Term]) -> list[Column]:
    return [
        Column("status", tuple(str(term.status) for term in terms)),
        Column("term", tuple(term.predicted.scope for term in terms)),
        Column("phase", tuple(term.predicted.phase or "" for term in terms)),
        Column("kind", tuple(map(term_kind, terms))),
        Column("axes", tuple(term.predicted.span for term in terms)),
        *_compared([Totals.of([term.predicted]) for term in terms], [Totals.of(term.measured) for term in terms]),
    ]


def term_kind(term: Term) -> str:
    """Of a transfer, and of what carries it out whether that stands in a branch."""
    return kind_text(term.predicted.kind, _found(term))


def _found(term: Term) -> tuple[Transfer, ...]:
    return term.measured or (term.predicted,)


def in_branches(result: Result) -> list[str]:
    """What the terms that are marked mean."""
    terms = result.settlement.terms if result.settlement else ()
    is_there = any(t.conditional for term in terms for t in _found(term))
    return [
        "if taken: the transfer is in a branch that need not run; its executions and bytes are those of a branch that "
        "runs every time, the most that a device can send"
    ] * is_there


def by_schedule(result: Result) -> list[str]:
    """How long stages wait, what their devices really send where they take different branches, and what is not repeated
    for micro-batches."""
    found, words = result.composition, idle_lines(result)
    if found is None:
        return words
    if sent := found.sent_by_stages:
        busiest = max(range(len(sent)), key=lambda stage: sent[stage])
        along = [f"{axes} {bytes_text(some[busiest])}" for axes, some in found.sent_by_axes.items() if some[busiest]]
        by_axes = f" ({', '.join(along)})" if along else ""
        words.append(
            f"by theory and the schedule, a device of the busiest stage ({busiest}) sends "
            f"{bytes_text(sent[busiest])} a step{by_axes}, "
            f"one of all stages {bytes_text(sum(sent) / len(sent))} on average"
        )
    if found.once_a_step:
        axes = _by_axes(found.once_a_step)
        most_first = sorted(axes.items(), key=lambda item: item[1].wire_bytes, reverse=True)
        each = ", ".join(f"{name} {bytes_text(total.wire_bytes)}" for name, total in most_first)
        transfers = count(len(found.once_a_step), "transfer")
        words.append(f"once a step, whatever the number of micro-batches: {transfers}, {each}")
    return words + (_flops(found.computed) if found.computed else [])


def as_published(result: Result) -> list[str]:
    """How long a step of the published run took on its own machine, its source, and what the lab's step is not."""
    if (run := result.published) is None:
        return []
    took = [f"{run.step_s:.4g} s a step"] if run.step_s else []
    took += [f"{share_text(run.mfu)} of the peak (MFU)"] if run.mfu else []
    return [
        f"published of {run.name}, on {run.target}, mesh {run.mesh}: {listed(took)}",
        f"  source: {run.source}",
        f"  what differs: {run.differs}",
    ]


def _flops(found: Computed) -> list[str]:
    """What a device computes, beside theory and by cause; of a pipeline by the schedule."""
    theory, compiled = found.by_stages[found.busiest], found.compiled_by_stages
    said = scaled(compiled[found.busiest] if compiled else theory, "FLOP")
    far = _off(compiled[found.busiest], theory) if compiled else "by theory alone"
    whose, mean = "a device", ""
    if len(found.by_stages) > 1:
        whose = f"by the schedule, a device of the busiest stage ({found.busiest})"
        of_all = compiled or found.by_stages
        mean = f", one of all stages {scaled(sum(of_all) / len(of_all), 'FLOP')} on average"
    causes = [f"  {_signed(n)} {cause}" for cause, n in found.by_cause.items()]
    return [f"{whose} computes {said} a step, {far}{mean}:", *causes]


def _off(compiled: Fraction, theory: Fraction) -> str:
    return "as theory says" if compiled == theory else f"{float(compiled / theory - 1):+.3%} of theory"


def _signed(flops: Fraction) -> str:
    return f"{'-' if flops < 0 else '+'} {scaled(abs(flops), 'FLOP')}"


def on_the_wire(result: Result) -> list[str]:
    """Wire bytes of the compiled program in three sums: of terms that are exact or explained, of attributed ones, and
    of none; and how many of its transfers carry no metadata."""
    if not (settled := result.settlement):
        return []
    settled_by_rules, *others = (
        settled.predicted_wire_bytes,
        settled.attributed_wire_bytes,
        settled.unexplained_wire_bytes,
    )
    attributed, unexplained = map(exact, others)
    by_rules = exact(settled_by_rules) if any(others) else "all"
    in_branches = any(t.conditional for t in measured_transfers(result))
    most, if_taken = ("at most ", ", if every branch runs") if in_branches else ("", "")
    steps = result.measured.steps if result.measured else 1
    often = "step" if steps == 1 else f"round of {steps:,} steps"
    sent = exact(settled_by_rules + sum(others))
    return [
        f"each device of the compiled program sends {most}{sent} B a {often}{if_taken}: "
        f"{by_rules} exact or explained, {attributed} attributed, {unexplained} unexplained",
        *taken_by_size([result]),
        *not_stated([result]),
    ]


def did_not_happen(results: Iterable[Result]) -> list[str]:
    """Each rule that was predicted and did not happen, and how often."""
    times: Counter[str] = Counter()
    for result in results:
        times += result.settlement.did_not_happen if result.settlement else Counter()
    return [f"rule {rule} did not happen here, {count(n, 'time')}" for rule, n in times.items()]


def taken_by_size(results: Iterable[Result]) -> list[str]:
    """How many transfers were matched to a term by their size alone."""
    some = sum(len(result.settlement.taken_by_size) for result in results if result.settlement)
    carry = "carries no metadata and was" if some == 1 else "carry no metadata and were"
    return [f"{count(some, 'transfer')} {carry} matched by size"] * (some > 0)


def not_stated(results: Iterable[Result]) -> list[str]:
    """Of how many transfers the text states no scope or no phase that could be compared."""
    settled = [result.settlement for result in results if result.settlement]
    scopes, phases = sum(s.scope_not_stated for s in settled), sum(s.phase_not_stated for s in settled)
    counts = f"no scope for {count(scopes, 'transfer')} and no phase for {count(phases, 'transfer')}"
    return [f"the compiled text states {counts}: these are not compared"] * (scopes + phases > 0)


def _compared(predicted: Sequence[Totals], measured: Sequence[Totals]) -> list[Column]:
    return [
        Column("executions\npredicted", tuple(f"{total.executions:,}" for total in predicted), is_number=True),
        Column("\nmeasured", tuple(f"{total.executions:,}" for total in measured), is_number=True),
        Column("wire bytes\npredicted", tuple(exact(total.wire_bytes) for total in predicted), is_number=True),
        Column("\nmeasured", tuple(exact(total.wire_bytes) for total in measured), is_number=True),
    ]


def explanations(results: Iterable[Result]) -> list[str]:
    """Each compiler behaviour that explains a term, and in how many terms it did."""
    said = Counter(
        (str(term.status), term.explanation)
        for result in results
        if result.settlement
        for term in result.settlement.terms
        if term.status in (Status.EXPLAINED, Status.ATTRIBUTED)
    )
    return [f"{status}, {count(terms, 'term')}: {why}" for (status, why), terms in said.items()]


def _troubles(results: Iterable[Result]) -> list[str]:
    """Every failure, every term that is not there as predicted, every transfer that no term asks for."""
    return [f"{_name(result)}: {trouble}" for result in results for trouble in troubles_of(result)]


def troubles_of(result: Result) -> list[str]:
    failure = [f"failed: {result.failure}"] if result.failure else []
    return failure + (unsettled(result.settlement) if result.settlement else [])


def unsettled(settlement: Settlement) -> list[str]:
    """Every term that is not there as predicted, every transfer that no term asks for, and what the prediction did not
    say."""
    terms = [
        f"{t.status} {t.predicted.scope}: {t.explanation}"
        for t in settlement.terms
        if t.status in ("refuted", "missing")
    ]
    hints = [f"{t.predicted.scope}: {t.hint}" for t in settlement.terms if t.hint]
    return [*terms, *(f"unexplained {_transfer_text(t)}" for t in settlement.unexplained), *hints]


def _transfer_text(transfer: Transfer) -> str:
    where = transfer.scope or transfer.instruction or "no scope"
    return (
        f"{transfer.executions} x {transfer.kind} over {transfer.span} of {transfer.payload_bytes:,} B "
        f"{transfer.dtype} ({where})"
    )


def _claims(result: Result) -> list[str]:
    return [claim_text(claim) for claim in result.claims]


def claim_text(claim: Claim) -> str:
    known = f" (known erratum {claim.disputed})" if outcome(claim) == ERRATUM else ""
    statement = f"{claim.statement}: " if claim.statement else ""
    structural = " (structural)" if claim.structural else ""
    return f"{claim.verdict}{known} {claim.id}{structural}: {statement}{claim.evidence}"


def _closing(results: Sequence[Result]) -> list[str]:
    claims = [claim for result in results for claim in result.claims]
    refuted = [
        f"{_name(result)}: {claim_text(claim)}"
        for result in results
        for claim in result.claims
        if claim.is_undisputed_refutation
    ]
    return [
        *refuted,
        *numerics_lines(results),
        *taken_by_size(results),
        *not_stated(results),
        f"claims of the book: {claims_text(claims)}",
        *errata_lines(claims),
        count_text(results),
    ]


def outcome(claim: Claim) -> str:
    """A refuted statement of the book that its errata list is no surprise."""
    return ERRATUM if claim.verdict == "refuted" and claim.disputed else str(claim.verdict)


def claims_text(claims: Iterable[Claim]) -> str:
    """`4 confirmed, 2 known errata, 3 calculated`."""
    counts = Counter(map(outcome, claims))
    words = {ERRATUM: "known errata"}
    return ", ".join(f"{n} {words.get(said, said) if n > 1 else said}" for said, n in counts.items()) or "none"


def errata_lines(claims: Sequence[Claim]) -> list[str]:
    """What a known erratum is, where there is one."""
    is_there = any(outcome(claim) == ERRATUM for claim in claims)
    return [
        "a known erratum is a statement of the book that is refuted here, and listed by lab book --errata"
    ] * is_there


def count_text(results: Sequence[Result]) -> str:
    settled = [result.settlement for result in results if result.settlement]
    unexplained, missing = sum(len(s.unexplained) for s in settled), sum(len(s.missing) for s in settled)
    verdicts = Counter(str(result.verdict) for result in results)
    return (
        f"{count(len(results), 'run')}: {tally(verdicts)}; {unexplained or 'nothing'} unexplained, "
        f"{missing or 'nothing'} missing"
    )


def numerics_lines(results: Iterable[Result]) -> list[str]:
    results = list(results)
    unchecked = [
        f"{_name(result)}: its numbers are not checked, since at the small sizes of the check {result.unchecked}"
        for result in results
        if result.unchecked
    ]
    checked: dict[str, list[Numerics]] = {}
    for result in results:
        if result.numerics:
            checked.setdefault(_compared_text(result.numerics), []).append(result.numerics)
    return [f"{what} equal those of one device: {_worst_text(some)}" for what, some in checked.items()] + unchecked


def _compared_text(found: Numerics) -> str:
    *others, last = found.compared
    what = f"{', '.join(others)} and {last}" if others else last
    return f"{found.steps} steps in float32: {what}" if found.steps else what


def _worst_text(some: list[Numerics]) -> str:
    worst = max(some, key=lambda n: n.worst_relative_error)
    if worst.worst_relative_error == 0:
        return "to the bit"
    return f"worst relative error {worst.worst_relative_error:.1e}, tolerance {worst.tolerance:.0e}"


def _name(result: Result) -> str:
    return f"{result.experiment} {result.style} {result.target}"


def tally(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
