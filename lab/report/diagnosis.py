"""Findings as text: a sentence each, what it costs and where, what to try; the ledger after them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lab.core.ledger import Totals
from lab.core.units import bytes_text, count, exact, listed, scaled, seconds_text, share_text
from lab.diagnosis import KINDS, Diagnosis, Finding, Findings
from lab.diagnosis.finding import SMALLEST_SHARE, Cost
from lab.diagnosis.holding import CACHE, MOMENTS
from lab.report.origins import common_folder, folder_lines, short_diagnosis
from lab.report.tables import is_combined, tables_text

SHOWN = 200
"""More findings than anybody reads, and than a page opens with in seconds."""
LARGEST = 3


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The findings first, then what `ledger_text` gives."""
    folder = common_folder(diagnosis.ledger, findings=diagnosis.findings)
    short = short_diagnosis(diagnosis, folder)
    return "\n".join([f"{_listed(short)}\n\n{tables_text(short.ledger, folder)}", *holding_lines(short)])


def holding_lines(diagnosis: Diagnosis) -> list[str]:
    """State by kind, where there is any that a step keeps beside its parameters, and the largest temporaries."""
    state, held, lines = diagnosis.state, diagnosis.at_peak[:LARGEST], []
    if {MOMENTS, CACHE} & state.keys():
        kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in state.items())
        lines.append(f"arguments by kind: {kinds}")
    if held:
        each = (f"{bytes_text(b.bytes)} {' '.join(filter(None, (b.scope, b.origin))) or 'unnamed'}" for b in held)
        memory = diagnosis.ledger.memory
        where = ", in on-chip memory" * (memory is not None and memory.on_chip > 0)
        lines.append(f"largest temporaries at the peak{where}: {'; '.join(each)}")
    return lines


def findings_text(findings: Findings) -> str:
    """The findings alone."""
    folder = common_folder(findings.diagnosis.ledger, findings=findings)
    return "\n\n".join([_listed(short_diagnosis(findings.diagnosis, folder)), *folder_lines(folder)])


def _listed(diagnosis: Diagnosis) -> str:
    found, source = diagnosis.findings, diagnosis.ledger.source or "the program"
    if not found:
        return f"{source}: {verdict(diagnosis)}"
    findings, remarks = apart(found[:SHOWN])
    listed = [f"\n{finding_text(number, finding)}" for number, finding in enumerate(findings, 1)]
    noted = [
        f"\nremark: {line}" if not number else f"remark: {line}"
        for number, line in enumerate(map(remark_text, remarks))
    ]
    rest = [f"\n{line}" for line in (*not_shown(found), *gaps(diagnosis))]
    return "\n".join(
        [f"{source}: {verdict(diagnosis)}{worst_first(found)}", *step_lines(diagnosis), *listed, *noted, *rest]
    )


def verdict(diagnosis: Diagnosis) -> str:
    """`2 findings and 1 remark`; where there are none, what was looked for and in what, and whether it sends the least
    that it can."""
    if diagnosis.findings:
        return amounts(diagnosis.findings)
    if not diagnosis.is_of_whole_text:
        return "not diagnosed: the text is damaged (see the notes)"
    if diagnosis.unknown_axes:
        return f"not diagnosed: {diagnosis.unknown_axes}"
    looked = f"no finding ({len(KINDS)} kinds of waste were looked for)"
    return "; ".join([looked, *filter(None, [diagnosis.least]), *gaps(diagnosis)])


def amounts(found: Sequence[Finding]) -> str:
    findings, remarks = apart(found)
    if not remarks:
        return count(len(findings), "finding")
    noted = count(len(remarks), "remark")
    return f"{count(len(findings), 'finding')} and {noted}" if findings else f"no finding, {noted}"


def apart(found: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Findings, and remarks: what costs less than 1 % of the step and of the memory."""
    return [one for one in found if not one.is_remark], [one for one in found if one.is_remark]


def step_lines(diagnosis: Diagnosis) -> list[str]:
    """By whose rates findings are ordered, and what shares are of, where there is an order or a share."""
    step = diagnosis.step
    if step is None or not diagnosis.findings:
        return []
    if step.is_reference:
        ordered = f"ordered by the rates of a host of {step.chip}, for the target names no chip"
        return [ordered] * (len(diagnosis.findings) > 1)
    least = "the least that" if step.is_least else "what"
    most = "" if step.is_least else ", if every branch runs"
    return [
        f"percentages are of {seconds_text(step.least)}, {least} the step takes at the peak rates of {step.chip} "
        f"({step.busiest}){most}"
    ] * bool(step.least)


def worst_first(found: Sequence[Finding]) -> str:
    """How several are sorted."""
    return ", worst first" * (len(found) > 1)


def not_shown(found: Sequence[Finding]) -> list[str]:
    """How many findings are left out, if any."""
    more = len(found) - SHOWN
    return [f"{count(more, 'more finding')}, none of them worse; lab inspect --json lists all"] if more > 0 else []


def gaps(diagnosis: Diagnosis) -> list[str]:
    """Why waste may be there that nobody looked for."""
    ledger = diagnosis.ledger
    found = [] if ledger.is_complete else ["not all of the program could be read (see the notes)"]
    if diagnosis.unknown_axes:
        return [*found, f"most kinds of waste were not looked for: {diagnosis.unknown_axes}"]
    unknown = sum(t.axes is None for t in ledger.transfers)
    are, them = ("is", "it") if unknown == 1 else ("are", "them")
    return found + [
        f"{count(unknown, 'transfer')} {are} not over whole axes of this mesh: most kinds of waste were not looked for "
        f"in {them}"
    ] * (unknown > 0)


def finding_text(number: int, finding: Finding) -> str:
    lines = [
        f"{number}. {finding.kind}: {finding.sentence}",
        f"   {evidence(finding)}",
        f"   {waste_text(finding)}",
        f"   {advice_text(finding)}",
        f"   {edit_text(finding)}",
        f"   {proof_text(finding)}",
    ]
    return "\n".join(line for line in lines if line.strip())


def remark_text(finding: Finding) -> str:
    """`axis_order: ... (model.py:88, 0.3 % of the step)`."""
    where = ", ".join(filter(None, (finding.origin, *_shares(finding.cost))))
    return f"{finding.kind}: {finding.sentence} ({where})"


def waste_text(finding: Finding) -> str:
    """`waste: 15,728,640 B sent, 219.8 GFLOP of bf16, 315 us: 43 % of the step`; nothing where it is all that is sent,
    and no rates are known."""
    cost = finding.cost
    sent = sum(cost.wire_bytes.values(), Fraction(0))
    parts = [
        f"{'at most ' * cost.at_most}{'at least ' * cost.at_least}{exact(sent)} B sent" if sent else "",
        *(f"{scaled(flops, 'FLOP')} of {dtype}" for dtype, flops in finding.flops.items()),
        f"{bytes_text(finding.accessed_bytes)} read" if finding.accessed_bytes else "",
        seconds_text(cost.seconds) if cost.seconds else "",
    ]
    shares = _shares(cost)
    if cost.at_most and not shares:
        return ""
    told = ", ".join(filter(None, parts))
    return f"waste: {': '.join(filter(None, (told, ' and '.join(shares))))}" if told or shares else ""


def _shares(cost: Cost) -> list[str]:
    """The larger, and the other where it is no trifle."""
    shares = ((cost.share_of_step or 0.0, "the step"), (cost.share_of_memory or 0.0, "the memory that JAX takes"))
    least = min(SMALLEST_SHARE, max(share for share, _ in shares))
    return [f"{share_text(share)} of {what}" for share, what in shares if share >= least > 0]


def advice_text(finding: Finding) -> str:
    """`try: ...`; where nothing that was tried saves anything, just that."""
    return finding.advice if finding.is_in_vain else f"try: {finding.advice}"


def edit_text(finding: Finding) -> str:
    """`edit: w f32[8,8] P() at model.py:8: in_specs P() of w in jax.shard_map`, of advice that was not tried."""
    is_untried = finding.proof is not None and finding.proof.not_tried is not None
    return f"edit: {finding.edit.text}" if is_untried and finding.edit else ""


def proof_text(finding: Finding) -> str:
    """`tried: out_shardings P() of result 0: 43,008 B -> 14,336 B sent, ...`; where it was not, why, and what it comes
    to. Where it does not pay, the advice tells."""
    proof = finding.proof
    if proof is None or proof.is_in_vain:
        return ""
    if proof.not_tried is None:
        return f"tried: {proof.text}"
    told = finding.account.text if finding.account else ""
    account = f"; by calculation {told}" if told else "; what it spares is not calculated"
    return f"not tried: {proof.not_tried}{account}"


def evidence(finding: Finding) -> str:
    """`model.py:88, over fsdp and tensor, 8 executions a step that move 20 arrays in all, 786,432 B of payload,
    688,128 B sent by each device (at least 1.5 us), 16.78 MB of memory on every device`."""
    totals, known = finding.totals, not any(t.executions is None for t in finding.transfers)
    least = f" (at least {seconds_text(finding.seconds)})" if finding.seconds else ""
    told = [
        finding.origin,
        f"over {listed(finding.spans)}" if finding.spans else None,
        None
        if not finding.transfers
        else f"{_executions(totals)}, {exact(totals.payload_bytes)} B of payload, "
        f"{exact(totals.wire_bytes)} B sent by each device{least}"
        if known
        else "in a loop, of which the text does not say how often it runs",
        f"{bytes_text(finding.memory_bytes)} of memory on every device" if finding.memory_bytes else None,
    ]
    return ", ".join(part for part in told if part)


def _executions(totals: Totals) -> str:
    moves = "that moves" if totals.executions == 1 else "that move"
    arrays = f" {moves} {count(totals.arrays, 'array')} in all" if is_combined(totals) else ""
    return f"{count(totals.executions, 'execution')} a step{arrays}"
