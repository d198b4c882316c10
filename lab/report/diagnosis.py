"""Findings as text: a sentence each, what it costs and where, what to try; the ledger after them."""

from __future__ import annotations

from collections.abc import Sequence

from lab.core.ledger import Totals
from lab.core.units import bytes_text, count, exact, listed, seconds_text
from lab.diagnosis import KINDS, Diagnosis, Finding, Findings
from lab.diagnosis.holding import MOMENTS
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
    if MOMENTS in state:
        kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, size in state.items())
        lines.append(f"arguments by their names: {kinds}")
    if held:
        each = (f"{bytes_text(b.bytes)} {' '.join(filter(None, (b.scope, b.origin))) or 'of no name'}" for b in held)
        lines.append(f"largest temporaries at the peak: {'; '.join(each)}")
    return lines


def findings_text(findings: Findings) -> str:
    """The findings alone."""
    folder = common_folder(findings.diagnosis.ledger, findings=findings)
    return "\n\n".join([_listed(short_diagnosis(findings.diagnosis, folder)), *folder_lines(folder)])


def _listed(diagnosis: Diagnosis) -> str:
    found, source = diagnosis.findings, diagnosis.ledger.source or "the program"
    if not found:
        return f"{source}: {verdict(diagnosis)}"
    listed = [f"\n{finding_text(number, finding)}" for number, finding in enumerate(found[:SHOWN], 1)]
    rest = [f"\n{line}" for line in (*not_shown(found), *gaps(diagnosis))]
    return "\n".join([f"{source}: {verdict(diagnosis)}{worst_first(found)}", *listed, *rest])


def verdict(diagnosis: Diagnosis) -> str:
    """`2 findings`; where there are none, what was looked for and in what."""
    if diagnosis.findings:
        return count(len(diagnosis.findings), "finding")
    if not diagnosis.is_of_whole_text:
        return "not diagnosed: the text is damaged (see the notes)"
    if diagnosis.unknown_axes:
        return f"not diagnosed: {diagnosis.unknown_axes}"
    return "; ".join([f"no finding ({len(KINDS)} kinds of waste were looked for)", *gaps(diagnosis)])


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
    lines = [f"{number}. {finding.kind}: {finding.sentence}", f"   {evidence(finding)}", f"   try: {finding.advice}"]
    return "\n".join(line for line in lines if line.strip())


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
