"""What a page tells of experiments: each run's terms, claims and program; answers of questions; trainings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from lab.core.codec import to_json
from lab.core.ledger import Totals, Transfer
from lab.core.units import bytes_text, count, exact
from lab.report import curves, losses, pipelines
from lab.report.answers import predicted_text, value_text
from lab.report.gantt import gantt
from lab.report.html import charts, ledgers
from lab.report.html.markup import element, joined, words
from lab.report.html.page import Part, Section, Verdict
from lab.report.html.tables import Column, bars, numbers, plain, table
from lab.report.origins import common_folder, folder_lines, short_ledger
from lab.report.verdicts import (
    as_published,
    by_schedule,
    claim_text,
    claims_text,
    count_text,
    did_not_happen,
    errata_lines,
    explanations,
    in_branches,
    measured_transfers,
    numerics_lines,
    on_the_wire,
    outcome,
    predicted_transfers,
    term_kind,
    troubles_of,
)
from lab.settle import Term
from lab.settle import Verdict as Settled

if TYPE_CHECKING:
    from lab.harness.claim import Claim
    from lab.harness.decoder.training import TrainingResult
    from lab.harness.question import Answer
    from lab.harness.result import Result


def verdict(results: Sequence[Result], trained: Sequence[TrainingResult], answers: Sequence[Answer]) -> Verdict:
    """The worst of all, and how often there is which."""
    every: list[Result | TrainingResult | Answer] = [*results, *trained, *answers]
    verdicts = [
        *(one.verdict for one in results),
        *(one.verdict for one in trained),
        *(Settled.FAILED for one in answers if one.failure),
    ]
    word = str(max(verdicts, key=list(Settled).index)) if verdicts else "answered"
    surprises = [claim for one in every for claim in one.claims if claim.is_undisputed_refutation]
    counts = {"training": len(trained), "question": len(answers)}
    sentences = [count_text(results)] if results else []
    sentences += [count(some, noun) for noun, some in counts.items() if some]
    claims = [claim for one in every for claim in one.claims]
    sentences += [f"claims of the book: {claims_text(claims)}", *errata_lines(claims)]
    sentences += numerics_lines(results) + [
        f"refuted, and no known erratum: {claim_text(claim)}" for claim in surprises
    ]
    tone = "good" if all(one.is_fine for one in every) else "bad"
    return Verdict(word.capitalize(), tuple(f"{said[0].upper()}{said[1:]}." for said in sentences), tone)


def summary(results: Sequence[Result]) -> Section:
    """A row a run, linked to its part."""
    totals = [(Totals.of(predicted_transfers(result)), Totals.of(measured_transfers(result))) for result in results]
    columns = [
        Column(
            "experiment",
            [link(result.experiment, "run", number) for number, result in enumerate(results, 1)],
            is_choice=True,
        ),
        Column("verdict", [status(result.verdict) for result in results], is_choice=True),
        Column("style", [result.style for result in results], is_choice=True),
        Column("target", [result.target for result in results], is_choice=True),
        *_compared(totals),
        numbers(
            "seconds", [f"{result.seconds.all:.1f}" for result in results], [result.seconds.all for result in results]
        ),
    ]
    return Section(
        "Runs",
        table("What was run; bytes and executions of one device in one step", columns, is_sortable=True)
        if results
        else Markup(""),
    )


def others(trained: Sequence[TrainingResult], answers: Sequence[Answer]) -> Section:
    """Trainings and questions, linked to their parts."""
    links = [link(one.training.name, "training", number) for number, one in enumerate(trained, 1)]
    links += [link(one.experiment, "question", number) for number, one in enumerate(answers, 1)]
    every: list[TrainingResult | Answer] = [*trained, *answers]
    columns = [
        Column("experiment", links),
        Column("verdict", [status(one.verdict) for one in every]),
        Column("question", [*(one.training.question for one in trained), *(one.question for one in answers)]),
        Column("claims of the book", [claims_text(one.claims) for one in every]),
    ]
    return Section(
        "Trainings and questions",
        table("Trainings, and questions that numbers answer", columns, is_sortable=True) if links else Markup(""),
    )


def claims(told: Sequence[tuple[str, Claim]]) -> Section:
    """Every claim with its evidence, once, and what decided it."""
    by: dict[Claim, list[str]] = {}
    for run, claim in told:
        by.setdefault(claim, []).append(run)
    columns = [
        Column("claim", [claim.id for claim in by]),
        Column("verdict", [status(outcome(claim)) for claim in by], is_choice=True),
        Column("statement", [claim.statement or "" for claim in by]),
        Column("evidence", [claim.evidence for claim in by]),
        Column("tests", ["a structure" if claim.structural else "a formula" for claim in by], is_choice=True),
        Column("disputed in", [claim.disputed or "" for claim in by]),
        Column("decided by", ["; ".join(runs) for runs in by.values()]),
    ]
    return Section("Claims of the book", table("Claims and their evidence", columns, is_sortable=True))


def result_part(result: Result, number: int, *, is_folded: bool, with_program: bool) -> Part:
    """One run, in full where the program is told too."""
    mesh = ",".join(f"{axis}={size}" for axis, size in result.mesh.items())
    parameters = ", ".join(f"{key} {value}" for key, value in result.parameters.items())
    own = [
        Section("Settlement", settled(result)),
        claims([(name(result), claim) for claim in result.claims]),
        Section("Pipeline", pipeline(result)),
    ]
    lead = [f"Mesh {mesh}; {parameters}"]
    program: tuple[Section, ...] = ()
    if with_program and result.measured:
        folder = common_folder(result.measured)
        lead += folder_lines(folder)
        program = ledgers.sections(short_ledger(result.measured, folder), result.held)
    return Part(f"{result.verdict}: {name(result)}", (*own, *program), "; ".join(lead), is_folded, f"run-{number}")


def settled(result: Result) -> Markup:
    """Terms, then in words what stands between prediction and program."""
    lines = [
        *on_the_wire(result),
        *in_branches(result),
        *by_schedule(result),
        *as_published(result),
        *explanations([result]),
        *did_not_happen([result]),
        *troubles_of(result),
        *numerics_lines([result]),
    ]
    terms = terms_table(result.settlement.terms) if result.settlement else Markup("")
    return joined((terms, words(lines) if lines else Markup("")))


def terms_table(terms: Sequence[Term]) -> Markup:
    predicted = [term.predicted for term in terms]
    columns = [
        Column("term", [t.scope for t in predicted]),
        Column("status", [status(term.status) for term in terms], is_choice=True),
        Column("phase", [t.phase or "" for t in predicted], is_choice=True),
        Column("kind", [term_kind(term) for term in terms], is_choice=True),
        Column("axes", [t.span for t in predicted], is_choice=True),
        *_compared([(Totals.of([term.predicted]), Totals.of(term.measured)) for term in terms]),
    ]
    return table("Predicted terms, and what was compiled for each", columns, is_sortable=True)


def left_over(transfers: Sequence[Transfer]) -> Markup:
    """What no term asks for."""
    totals = [Totals.of([t]) for t in transfers]
    columns = [
        Column("unexplained", [t.scope or t.instruction or "no scope" for t in transfers]),
        Column("kind", [str(t.kind) for t in transfers]),
        Column("axes", [t.span for t in transfers]),
        bars("wire a step", [bytes_text(total.wire_bytes) for total in totals], [total.wire_bytes for total in totals]),
    ]
    return table("Transfers that no term predicts", columns)


def _compared(totals: Sequence[tuple[Totals, Totals]]) -> list[Column]:
    both = list(zip(*totals, strict=True)) or [(), ()]
    names = ("predicted", "measured")
    executions = [
        numbers(f"executions {name}", [f"{t.executions:,}" for t in some], [t.executions for t in some])
        for name, some in zip(names, both, strict=True)
    ]
    return executions + [
        numbers(f"wire bytes {name}", [exact(t.wire_bytes) for t in some], [t.wire_bytes for t in some])
        for name, some in zip(names, both, strict=True)
    ]


def pipeline(result: Result) -> Markup:
    """The schedule that a run's parameters name, and what each stage sends and computes by it."""
    timeline, found = pipelines.timeline(result), result.composition
    if timeline is None:
        return Markup("")
    busy = [100 * float(seconds / timeline.makespan) for seconds in timeline.busy]
    columns = [
        Column("stage", [str(stage) for stage in range(len(busy))]),
        bars("busy", [f"{share:.1f} %" for share in busy], busy, 100),
    ]
    if found:
        sent = {"all": found.sent_by_stages, **found.sent_by_axes}
        columns += [numbers(f"wire bytes, {axes}", list(map(exact, some)), some) for axes, some in sent.items() if some]
    if found and found.computed:
        flops = {"by theory": found.computed.by_stages, "compiled": found.computed.compiled_by_stages}
        columns += [numbers(f"FLOPs {whose}", list(map(exact, some)), some) for whose, some in flops.items() if some]
    told = f"The schedule, {pipelines.EQUALLY_LONG}:"
    title = "Busy share of the time, by stage, and what one of its devices sends and computes by the schedule"
    return joined((element("p", told), charts.picture(gantt(timeline)), table(title, columns)))


def answer_part(answer: Answer, number: int, *, is_folded: bool) -> Part:
    assumed = ", ".join(f"{key} {value}" for key, value in answer.parameters.items())
    columns = [
        Column("what", [row.what for row in answer.rows]),
        numbers(
            "value",
            list(map(value_text, answer.rows)),
            [None if isinstance(row.value, str) else row.value for row in answer.rows],
        ),
        numbers("theory", list(map(predicted_text, answer.rows)), [row.predicted for row in answer.rows]),
    ]
    told = words([f"failed: {answer.failure}"]) if answer.failure else table(f"With {assumed}", columns)
    if answer.losses:
        told = joined((told, charts.picture(losses.overlaid(answer.losses), "losses")))
    sections = Section("Answer", told), claims([(answer.experiment, claim) for claim in answer.claims])
    return Part(f"{answer.verdict}: {answer.experiment}", sections, answer.question, is_folded, f"question-{number}")


def trained_part(trained: TrainingResult, number: int, *, is_folded: bool) -> Part:
    told = table(
        "Curves, a row a layout and style", list(map(plain, curves.curve_columns(trained.curves))), is_sortable=True
    )
    section = Section(
        "Losses",
        joined(
            (
                charts.picture(losses.picture(losses.losses(to_json(trained))), "losses"),
                told,
                words(curves.words(trained)),
            )
        ),
    )
    sections = section, claims([(trained.training.name, claim) for claim in trained.claims])
    return Part(
        f"{trained.verdict}: {trained.training.name}, {trained.target}",
        sections,
        trained.training.question,
        is_folded,
        f"training-{number}",
    )


def name(result: Result) -> str:
    return f"{result.experiment}, {result.style}, {result.target}"


def link(said: str, what: str, number: int) -> Markup:
    """To the part of a run, a training or a question."""
    return element("a", said, href=f"#{what}-{number}")


def status(word: str) -> Markup:
    return element("span", str(word), class_=f"status-{str(word).split()[0]}")
