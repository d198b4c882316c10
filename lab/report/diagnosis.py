"""Findings as text: a sentence each, what it costs and where, what to try; the ledger after them."""

from __future__ import annotations

from lab.core.units import bytes_text, exact
from lab.diagnosis import Diagnosis, Finding
from lab.report.tables import ledger_text


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The findings first, then what `ledger_text` gives."""
    return f"{findings_text(diagnosis)}\n\n{ledger_text(diagnosis.ledger)}"


def findings_text(diagnosis: Diagnosis) -> str:
    found = diagnosis.findings
    if not found:
        read = "" if diagnosis.ledger.is_complete else " in what could be read of it, which is not all (see the notes)"
        return f"{diagnosis.ledger.source or 'the program'}: nothing found that it could do without{read}"
    heading = f"{len(found)} {'finding' if len(found) == 1 else 'findings'}, the worst first"
    return "\n".join([heading, *(f"\n{finding_text(number, finding)}" for number, finding in enumerate(found, 1))])


def finding_text(number: int, finding: Finding) -> str:
    lines = [f"{number}. {finding.kind}: {finding.sentence}", f"   {evidence(finding)}", f"   try: {finding.advice}"]
    return "\n".join(line for line in lines if line.strip())


def evidence(finding: Finding) -> str:
    """`model.py:88, over fsdp, 3 x a step, 786,432 B payload, 688,128 B on the wire, at least 1.5 us`."""
    totals, known = finding.totals, not any(t.executions is None for t in finding.transfers)
    told = [
        finding.origin,
        f"over {', '.join(finding.axes)}" if finding.axes else None,
        None
        if not finding.transfers
        else f"{totals.executions:,} x a step"
        if known
        else "as often as a loop runs, which is not known",
        f"{exact(totals.payload_bytes)} B payload, {exact(totals.wire_bytes)} B on the wire of a device"
        if finding.transfers and known
        else None,
        f"{bytes_text(finding.memory_bytes)} of memory" if finding.memory_bytes else None,
        f"at least {finding.seconds * 1e6:.3g} us" if finding.seconds else None,
    ]
    return ", ".join(part for part in told if part)
