"""What was tried to make a step fit, as a table, and what did."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lab.core.known import known
from lab.core.units import bytes_text, count, listed, scaled, seconds_text, share_text
from lab.harness.fit.fitting import Fitting, words
from lab.harness.fit.search import Try
from lab.report.fitted import Column
from lab.report.tables import columns_text

TERMS = 4
"""The largest, where nothing fits."""


def fit_text(found: Fitting) -> str:
    """One line of a step that fits as it is; else the tries, and the one that fits with the command that runs it."""
    experiment, target, style, _ = found.run
    head = f"{experiment.name} {style} on {target}, mesh {found.axes}"
    if found.answer is found.asked:
        return f"{head}: {found.room.sentence(known(found.asked.peak))}"
    compiled = [one for one in found.tries if one.compiled]
    lines = [
        f"{head}: {_as_asked(found)}",
        "",
        columns_text(_columns(found, compiled)),
        *_refusals(compiled),
        *_passed_over(found),
        *(f"no {lever}: {why}" for lever, why in found.lacking.items()),
        "",
        *(_answer(found, found.answer) if found.answer else _nothing(found)),
    ]
    return "\n".join(lines)


def _as_asked(found: Fitting) -> str:
    asked = found.asked
    if asked.peak is not None:
        return found.room.sentence(asked.peak)
    theory = f"; theory's terms are {bytes_text(asked.predicted)}" if asked.predicted else ""
    return f"XLA refuses it{theory}, and the chip has {bytes_text(found.pool)}"


def _columns(found: Fitting, tries: Sequence[Try]) -> list[Column]:
    """Of the compiled tries: what they hold, and what they add to the step as asked."""
    added = [_added(one, found.asked) for one in tries]
    return [
        Column("try", tuple(words(one.changes) for one in tries)),
        Column("peak by\nXLA", tuple("refused" if one.peak is None else bytes_text(one.peak) for one in tries), True),
        Column("by\ntheory", tuple("-" if one.predicted is None else bytes_text(one.predicted) for one in tries), True),
        Column(
            f"of the\n{bytes_text(found.pool)}",
            tuple("-" if one.peak is None else share_text(one.peak / found.pool) for one in tries),
            True,
        ),
        Column("fits", tuple("yes" if one.fits(found.pool) else "no" for one in tries)),
        Column("FLOPs\nadded", tuple(_more(flops, "FLOP") for flops, _ in added), True),
        Column("wire bytes\nadded", tuple(_more(float(wire), "B") for _, wire in added), True),
        Column("host bytes\nadded", tuple(_more(one.extra.host_bytes, "B") for one in tries), True),
        Column("seconds added\nby data sheet", tuple(_seconds(one.extra.seconds) for one in tries), True),
        Column("ledger", tuple(one.compiled.verdict if one.compiled else "" for one in tries)),
    ]


def _added(one: Try, asked: Try) -> tuple[int, Fraction]:
    """By the compiled programs, where both are there; else by theory."""
    here, there = one.compiled, asked.compiled
    flops, wire = one.extra.recomputed_flops, one.extra.wire_bytes
    if here and there and here.flops is not None and there.flops is not None:
        flops = here.flops - there.flops
    if here and there and here.wire_bytes is not None and there.wire_bytes is not None:
        wire = here.wire_bytes - there.wire_bytes
    return flops, wire


def _more(amount: float, unit: str) -> str:
    """`+1.2 GB`, `-3 MB` or `0`."""
    if amount == 0:
        return "0"
    return f"{'+' if amount > 0 else '-'}{scaled(abs(amount), unit)}"


def _seconds(seconds: float) -> str:
    if seconds == 0:
        return "0"
    return f"{'+' if seconds > 0 else '-'}{seconds_text(abs(seconds))}"


def _refusals(tries: Sequence[Try]) -> list[str]:
    lines = [f"{words(one.changes)}: {one.compiled.failure}" for one in tries if one.compiled and one.compiled.failure]
    again = [one.compiled.flops_rematerialized if one.compiled else 0 for one in tries]
    if any(_added(one, tries[0])[0] < 0 and n < again[0] for one, n in zip(tries, again, strict=True)):
        lines.append("fewer FLOPs than as asked: XLA runs products again by itself in a step that has no room (G10)")
    if tries[0].peak is None:
        lines.append("what is added is by theory, since XLA refuses the step as asked")
    return lines


def _passed_over(found: Fitting) -> list[str]:
    peaks = [one.predicted for one in found.tries if one.compiled is None and one.predicted is not None]
    if not peaks:
        return []
    least, most = bytes_text(min(peaks)), bytes_text(max(peaks))
    span = least if least == most else f"{least} to {most}"
    return [
        f"{count(len(peaks), 'cheaper combination')} not compiled: peaks of {span} by theory, too much or no less than "
        "without one of the changes"
    ]


def _answer(found: Fitting, answer: Try) -> list[str]:
    return [f"with {words(answer.changes)} {found.room.sentence(known(answer.peak))}", f"  {found.command(answer)}"]


def _nothing(found: Fitting) -> list[str]:
    largest = listed(f"{name} {bytes_text(size)}" for name, size in found.largest_terms[:TERMS])
    terms = f"; the largest of it by theory: {largest}" if largest else ""
    smallest = found.smallest
    if smallest is None:
        least = found.least_predicted
        return [f"nothing made it fit: XLA refuses every try{_beyond(found, least.predicted, least)}{terms}"]
    return [f"nothing made it fit{_beyond(found, known(smallest.peak), smallest)}{terms}"]


def _beyond(found: Fitting, peak: int | None, smallest: Try) -> str:
    """How far a peak is above the pool."""
    if peak is None or peak <= found.pool:
        return ""
    whose = "by theory, " if smallest.peak is None else ""
    return (
        f": the smallest peak, {whose}with {words(smallest.changes)}, is {bytes_text(peak)}, "
        f"{bytes_text(peak - found.pool)} more than the {bytes_text(found.pool)} that JAX takes"
    )
