"""A law as text: its formulas by term and by axes, where it holds, what it was held against, and how it grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lab.core.units import bytes_text, count, exact, scaled, seconds_text, share_text
from lab.laws import formula
from lab.laws.law import Check, Condition, Law, Term, Theory
from lab.laws.polynomial import collected
from lab.laws.scale import TIMES, Scale
from lab.report.fitted import Column
from lab.report.tables import columns_text

MOST_CONDITIONS = 12


def law_text(law: Law) -> str:
    shown = [columns_text(columns) for _, columns in tables(law)]
    return "\n\n".join(["\n".join(headlines(law)), *shown, "\n".join(facts(law))]).rstrip()


def headlines(law: Law) -> list[str]:
    style = f", {law.style}" if law.style else ""
    variables = ", ".join(law.names)
    return [
        f"law of {law.source} on {law.target.rpartition(':')[0] or law.target} devices{style} ({law.compiler}) in "
        f"{variables}",
        f"{count(len(law.terms), 'term')} derived from {count(len(law.compiled), 'compile')} in "
        f"{seconds_text(sum(each.seconds for each in law.compiled))}, every one reproduced to the byte",
        *map(_check_line, law.checks),
    ]


def _check_line(check: Check) -> str:
    shown = ", ".join(f"{name}={size}" for name, size in check.sizes.items())
    verdict = "equal" if check.is_equal else "refuted"
    under = check.under_law / check.wire_bytes if check.wire_bytes else 1.0
    return (
        f"{verdict} at {shown} ({count(check.devices, 'device')}, never compiled before): {check.equal} of "
        f"{count(check.terms, 'term')}, {bytes_text(check.wire_bytes)} a step, {share_text(under)} of it under the law"
    )


def tables(law: Law) -> list[tuple[str, list[Column]]]:
    """Each with its caption."""
    found = [("Transfers", _terms(law)), ("Wire bytes of a step by axes", _axes(law))]
    if law.theory:
        found.append(("Beside theory, payload of a step", _theory(law.theory)))
    if law.refused:
        found.append(("Without a law", _refused(law)))
    checks = [(check, each) for check in law.checks for each in check.differences]
    if checks:
        found.append(
            (
                "Refuted",
                [
                    Column("what", tuple(each.what for _, each in checks)),
                    Column("law", tuple(each.law for _, each in checks), is_number=True),
                    Column("compiled", tuple(each.compiled for _, each in checks), is_number=True),
                ],
            )
        )
    return found


def _terms(law: Law) -> list[Column]:
    terms = law.terms
    columns = [
        Column("kind", tuple(f"{t.kind} if taken" if t.conditional else str(t.kind) for t in terms)),
        Column("over", tuple("+".join(t.axes) for t in terms)),
        Column("phase", tuple(t.phase or "" for t in terms)),
        Column("scope", tuple(_scope(t.scope, t.function) for t in terms)),
        Column("executions", tuple(formula.text(t.executions) for t in terms)),
        Column(
            "payload each [B]",
            tuple("" if t.payload is None else formula.text(t.payload) for t in terms),
        ),
        Column("payload a step [B]", tuple(formula.text(t.payload_of_step) + _where(t.where) for t in terms)),
        Column("origin", tuple(t.origin or "" for t in terms)),
    ]
    return [column for column in columns if any(column.cells)]


def _scope(scope: str, function: str) -> str:
    return scope or (f"{function}()" if function else "")


def _where(conditions: Sequence[Condition]) -> str:
    return f" (where {' and '.join(each.text for each in conditions)})" if conditions else ""


def _axes(law: Law) -> list[Column]:
    sums: dict[tuple[str, str], list[Term]] = defaultdict(list)
    for term in law.terms:
        sums["+".join(term.axes), formula.share(term.kind, term.network_kind)].append(term)
    rows = [
        (axes, share, formula.text(collected(m for term in terms for m in term.payload_of_step)))
        for (axes, share), terms in sums.items()
    ]
    return [
        Column("over", tuple(axes for axes, _, _ in rows)),
        Column("wire bytes, groups of P", tuple(f"{share} of" if share != "1" else "all of" for _, share, _ in rows)),
        Column("payload a step [B]", tuple(text for _, _, text in rows)),
    ]


def _theory(theory: Theory) -> list[Column]:
    return [
        Column("over", tuple("+".join(each.axes) for each in theory.beside)),
        Column("kind", tuple(each.kind for each in theory.beside)),
        Column("theory [B]", tuple(formula.text(each.theory) for each in theory.beside)),
        Column(
            "compiler [B]",
            tuple("the same" if each.is_same else formula.text(each.law) for each in theory.beside),
        ),
    ]


def _settled_lines(theory: Theory) -> list[str]:
    lines = []
    for each in theory.settled:
        shown = ", ".join(f"{name}={size}" for name, size in each.sizes.items())
        counts = ", ".join(f"{number} {status}" for status, number in each.terms.items())
        lines.append(f"theory and law at {shown}: {each.verdict} ({counts})")
        lines += [f"finding: {finding}" for finding in each.findings]
    return lines


def _refused(law: Law) -> list[Column]:
    return [
        Column("no law", tuple(each.what for each in law.refused)),
        Column(
            "wire bytes", tuple(share_text(each.share) if each.kind else "" for each in law.refused), is_number=True
        ),
        Column("why", tuple(each.reason for each in law.refused)),
    ]


def facts(law: Law) -> list[str]:
    shown = law.conditions[:MOST_CONDITIONS]
    more = len(law.conditions) - len(shown)
    return [
        "FLOPs of a step: " + ("no law" if law.flops is None else formula.text(law.flops) + _where(law.flops_where)),
        *(
            f"bytes of {name}: {formula.text(of)}{_where(law.memory_where.get(name, ()))}"
            for name, of in law.memory.items()
        ),
        *(
            f"bytes of {name}: at least {formula.text(of)}"
            for name, of in law.memory_at_least.items()
            if name not in law.memory
        ),
        holds_from(law) + "; compiled up to " + ", ".join(f"{v.name}={v.most}" for v in law.variables),
        *(f"where {each.text} ({each.place})" for each in shown),
        *([f"and {count(more, 'condition')} more, see --json"] if more else []),
        *(["at " + ", ".join(f"{name}={size}" for name, size in law.fixed.items())] if law.fixed else []),
        *(_settled_lines(law.theory) if law.theory else []),
        *(f"note: {note}" for note in law.notes),
    ]


def holds_from(law: Law) -> str:
    return "holds from " + ", ".join(f"{v.name}={v.least}" for v in law.variables) + " on"


def value_text(law: Law, sizes: Mapping[str, int]) -> str:
    """What the law comes to at sizes."""
    found: dict[str, Any] = law.at(sizes)
    terms = sorted(found["terms"], key=lambda term: -term["wire_bytes"])
    rows = columns_text(
        [
            Column("kind", tuple(term["kind"] for term in terms)),
            Column("over", tuple("+".join(term["axes"]) for term in terms)),
            Column("phase", tuple(term["phase"] or "" for term in terms)),
            Column("scope", tuple(_scope(term["scope"], term["function"]) for term in terms)),
            Column("executions", tuple(f"{term['executions']:,}" for term in terms), is_number=True),
            Column("payload a step", tuple(f"{term['payload_bytes']:,}" for term in terms), is_number=True),
            Column("wire bytes a step", tuple(exact(term["wire_bytes"]) for term in terms), is_number=True),
            Column("origin", tuple(term["origin"] or "" for term in terms)),
        ]
    )
    shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
    whole = "" if found["is_whole"] else "; at least: some transfers have no law there"
    lines = [
        f"at {shown}: {exact(found['wire_bytes'])} wire bytes a step ({bytes_text(found['wire_bytes'])}{whole})",
        *(f"over {axes}: {exact(wire)} ({bytes_text(wire)})" for axes, wire in found["by_axes"].items()),
    ]
    if found["beyond"]:
        lines.append(f"larger than all that was compiled: {', '.join(found['beyond'])}")
    if found["flops"] is not None:
        lines.append(f"FLOPs: {found['flops']:,} ({scaled(found['flops'], 'FLOP')})")
    lines += [f"bytes of {name}: {held:,} ({bytes_text(held)})" for name, held in found["memory"].items()]
    lines += [
        f"bytes of {name}: at least {held:,} ({bytes_text(held)})" for name, held in found["memory_at_least"].items()
    ]
    return "\n\n".join([rows, "\n".join(lines)])


def scale_columns(scale: Scale) -> list[Column]:
    growths = sorted(scale.growths, key=lambda growth: -growth.wire_bytes[-1])
    return [
        Column("term", tuple(growth.what for growth in growths)),
        Column("origin", tuple(growth.origin or "" for growth in growths)),
        Column(
            f"with {scale.variable}",
            tuple(f"{g.does}" + (f" (power {g.power})" if g.power else "") for g in growths),
        ),
        *(
            Column(
                f"{scale.variable}={scale.sizes[scale.variable] * times:,}",
                tuple(bytes_text(g.wire_bytes[place]) for g in growths),
                is_number=True,
            )
            for place, times in enumerate(TIMES)
        ),
    ]


def scale_lines(scale: Scale) -> list[str]:
    name = scale.variable
    lines = [
        f"at {name}={scale.sizes[name] * w.times:,}: {w.what} sends most, {share_text(w.share)} of all"
        + (f", and {count(w.others, 'other term')} as much" if w.others else "")
        for w in scale.winners
    ]
    if scale.outside:
        lines.append(f"formulas alone where the law says nothing: {scale.outside}")
    crossing = scale.crossing
    if crossing is None:
        return [*lines, f"where communication passes the products is not told: {scale.no_crossing}"]
    if crossing.is_there:
        said = f"from {name}={crossing.at:,} on, and before,"
    elif crossing.at is not None:
        said = f"from {name}={crossing.at:,} on"
    else:
        said = "at no size up to a million times this one"
    return [*lines, f"{said} communication takes longer than the products, both at the {crossing.chip}'s data sheet"]


def scale_text(scale: Scale) -> str:
    return "\n\n".join([columns_text(scale_columns(scale)), "\n".join(scale_lines(scale))])
