"""What another release of JAX, or other flags of XLA, make of a program, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from lab.core.ledger import Ledger
from lab.core.units import bytes_text, count, exact, seconds_text
from lab.guard.differences import About, Difference
from lab.guard.upgrade import Compiled, Sets, Upgrade, setting
from lab.laws.comparison import Comparison
from lab.laws.law import Law
from lab.measure.prediction import Prediction
from lab.report.changes import changes_text, exceeded
from lab.report.law import holds_from
from lab.report.origins import common_folder, shortened
from lab.report.tables import rows_text


def upgrade_text(found: Upgrade, allowed: Fraction | None = None) -> str:
    """What changes of the communication, as `lab diff` says it; both compilations side by side; each difference with
    where it is and what it comes from; which flags were tried."""
    ledgers = found.before.sites.ledger, found.after.sites.ledger
    folder = common_folder(*ledgers)
    over = exceeded(*ledgers, allowed) if allowed is not None else []
    parts = [
        _headline(found),
        changes_text(*ledgers),
        rows_text(("", *_sides(found)), _summary(found.before, found.after)),
        *[_table(found, folder)] * bool(found.differences),
        *([_laws(found, found.laws, folder)] if found.laws else []),
        "\n".join([*_tried(found), *over]),
    ]
    return "\n\n".join(filter(None, parts))


def _headline(found: Upgrade) -> str:
    what = " -> ".join(dict.fromkeys(_sides(found)))
    laws = f"; {_laws_line(found.laws)}" if found.laws else ""
    if not found.differences:
        return f"{what}: no difference in communication, its schedule, FLOPs or memory{laws}"
    of = [each.about for each in found.differences]
    counts = [f"{of.count(about)} of {about}" for about in About if about in of]
    return f"{what}: {count(len(of), 'difference')}, {', '.join(counts)}{laws}"


def _laws_line(laws: Comparison) -> str:
    differences = count(len(laws.differences), "formula")
    return f"laws differ in {differences}" if laws.differences else "the same law"


def _sides(found: Upgrade) -> tuple[str, str]:
    before, after = (f"jax {side.release}" for side in (found.before, found.after))
    given = " ".join(f"--{setting(name, value)}" for name, value in found.after.flags.items())
    return before, " ".join(filter(None, (after, given)))


def _summary(before: Compiled, after: Compiled) -> Iterator[tuple[str, str, str]]:
    def row(name: str, *told: str | None) -> Iterator[tuple[str, str, str]]:
        if any(told):
            old, new = (text or "-" for text in told)
            yield name, old, new

    ledgers = before.sites.ledger, after.sites.ledger
    yield from row("sent a step", *(bytes_text(one.totals().wire_bytes) for one in ledgers))
    schedules = before.sites.schedule, after.sites.schedule
    for how in sorted({*schedules[0], *schedules[1]}):
        yield from row(f"{how} transfers", *(f"{one.get(how, 0):,}" for one in schedules))
    yield from row("FLOPs of products", *(None if one.flops is None else exact(one.flops) for one in ledgers))
    yield from row("memory", *map(_memory, ledgers))
    times = before.time, after.time
    yield from row("seconds a step", *map(_seconds, times))
    yield from row("waiting for communication", *map(_waiting, times))


def _memory(ledger: Ledger) -> str | None:
    memory = ledger.memory
    if memory is None:
        return None
    most = memory.stays + memory.temporaries if memory.peak is None else memory.peak
    return f"{bytes_text(most)}, of which {bytes_text(memory.arguments)} arguments"


def _seconds(time: Prediction | None) -> str | None:
    return None if time is None else f"{'' if time.is_known else 'at least '}{seconds_text(time.time.total)}"


def _waiting(time: Prediction | None) -> str | None:
    return None if time is None else seconds_text(time.time.exposed)


def _table(found: Upgrade, folder: str) -> str:
    rows = [
        (*_cells(each, folder), _since(found, sets)) for each, sets in zip(found.differences, found.flags, strict=True)
    ]
    heading = "comes from" if found.is_set_back else "since"
    return rows_text(("what", "where", "before", "after", "line", "instruction", heading), rows)


def _cells(each: Difference, folder: str) -> tuple[str, ...]:
    before, after = (", ".join(names) for names in each.instructions)
    instructions = before if before == after else f"{before or '-'} -> {after or '-'}"
    return (
        f"{each.about} {each.what}",
        " -> ".join(each.places),
        each.before or "-",
        each.after or "-",
        _lines(each.lines, folder),
        instructions or "-",
    )


def _lines(lines: Sequence[str], folder: str) -> str:
    return ", ".join(shortened(line, folder) for line in lines) or "-"


def _since(found: Upgrade, sets: Sets) -> str:
    none = f"no flag{' that could be tried' * bool(found.refused)} explains it" if found.tried or found.refused else "-"
    return " or ".join(" with ".join(some) for some in sets) or none


def _laws(found: Upgrade, laws: Comparison, folder: str) -> str:
    """What both were derived from and hold from, then formula by formula where they differ."""
    sides = _sides(found)
    lines = [f"{side}: {_derived(law)}" for side, law in zip(sides, (laws.before, laws.after), strict=True)]
    head = "\n".join([f"laws in {', '.join(laws.before.names)}:", *lines])
    if not laws.differences:
        return head
    rows = [
        (each.what, each.of, each.before or "-", each.after or "-", _lines(each.lines, folder))
        for each in laws.differences
    ]
    return f"{head}\n\n{rows_text(('law of', 'formula', *sides, 'line'), rows)}"


def _derived(law: Law) -> str:
    refuted = [check for check in law.checks if not check.is_equal]
    verdict = f"refuted at {len(refuted)} of" if refuted else "equal at"
    held = f"{verdict} {count(len(law.checks), 'held-out size')}"
    return f"{count(len(law.terms), 'term')} from {count(len(law.compiled), 'compile')}, {held}; {holds_from(law)}"


def _tried(found: Upgrade) -> Iterator[str]:
    told = [setting(name, value) for name, value in found.tried.items()]
    if told:
        how = "set back one by one" if found.is_set_back else "set one by one"
        yield f"{count(len(told), 'flag')} {how}: {', '.join(told)}"
    for name, why in found.refused.items():
        yield f"note: {name} could not be tried: {why}"
