"""Tries remedies: compiles the changed program, and compares what both send, compute and hold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from lab.core.known import known
from lab.core.room import Room
from lab.diagnosis.cost import MEMORY, step_of
from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds.links import on_links
from lab.diagnosis.kinds.memory import closed_over
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import NotApplicable, Proof, Remedy, Sums, remedy_text

LEAST_S = 2.0
"""How long remedies of a small program may take; those of others as long as the program took to compile."""
A_TEXT = "a text has no function that could be changed"
TAKES_AN_EDIT = "no program can make this change by itself"
NO_TIME = "that would take longer than the program took to compile"
NO_USE = f"all remedies at once do not pay, and one by one {NO_TIME}"
_SLOWER = 0.01
_TRUE_IF_IT_PAYS = frozenset({"on_slow_link", "larger_side_gathered"})
"""Kinds that say what another way would send: they are true if it does."""


def proven(program: Program, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with what became of their remedies, the first ones tried first: alone where all of them can be tried
    in the time that the program took to compile, else together.

    A finding whose sentence is about the remedy, and which is not borne out, is left out.
    """
    if program.attempt is None:
        return untried(found, A_TEXT)
    remedies = {number: finding.remedy for number, finding in enumerate(found) if finding.remedy}
    proofs = _alone(program, found, remedies) if _have_time(program, remedies) else _together(program, found, remedies)
    judged = [
        _judged(finding, proofs.get(number, Proof(not_tried=TAKES_AN_EDIT))) for number, finding in enumerate(found)
    ]
    return tuple(finding for finding in judged if finding is not None)


def untried(found: Sequence[Finding], why: str) -> tuple[Finding, ...]:
    return tuple(replace(finding, proof=Proof(remedy_text(finding.remedy), not_tried=why)) for finding in found)


def _budget_s(program: Program) -> float:
    return max(program.seconds, LEAST_S)


def _have_time(program: Program, remedies: dict[int, Remedy]) -> bool:
    return len(remedies) * program.seconds <= _budget_s(program)


def _alone(program: Program, found: Sequence[Finding], remedies: dict[int, Remedy]) -> dict[int, Proof]:
    proofs: dict[int, Proof] = {}
    before, began = sums(program), time.perf_counter()
    for number, remedy in remedies.items():
        is_late = time.perf_counter() - began + program.seconds > _budget_s(program)
        late = Proof(remedy_text(remedy), not_tried=NO_TIME)
        proofs[number] = late if proofs and is_late else _tried(program, before, [found[number]], remedy)
    return proofs


def _together(program: Program, found: Sequence[Finding], remedies: dict[int, Remedy]) -> dict[int, Proof]:
    """One compile of all, and one of the worst alone where that does not pay and there is time."""
    before, began = sums(program), time.perf_counter()
    joint = tuple(dict.fromkeys(change for remedy in remedies.values() for change in remedy))
    proof = _tried(program, before, [found[number] for number in remedies], joint)
    if proof.pays:
        return {
            number: replace(proof, remedy=remedy_text(remedy), together=len(remedies) - 1)
            for number, remedy in remedies.items()
        }
    why = NO_TIME if proof.after is None else NO_USE
    late = {number: Proof(remedy_text(remedy), not_tried=why) for number, remedy in remedies.items()}
    if time.perf_counter() - began + program.seconds <= _budget_s(program):
        worst = next(iter(remedies))
        late[worst] = _tried(program, before, [found[worst]], remedies[worst])
    return late


def _tried(program: Program, before: Sums, of: Sequence[Finding], remedy: Remedy) -> Proof:
    try:
        changed = known(program.attempt)(remedy)
    except NotApplicable as refusal:
        return Proof(remedy_text(remedy), not_tried=str(refusal))
    after = sums(changed)
    now, then = _seconds(program, before), _seconds(changed, after)
    is_faster = sum(then.values()) < sum(now.values()) and _is_less_done(of, before, after)
    # What is held and no longer need be was also read, which is not counted of constants.
    beside = [sum(taken for part, taken in parts.items() if part != MEMORY) for parts in (now, then)]
    is_about_memory = any(finding.memory_bytes for finding in of)
    is_smaller = is_about_memory and _held(after, before) < 0 and beside[1] <= (1 + _SLOWER) * beside[0]
    pays = is_smaller or (is_faster and _has_room(program, before, after))
    return Proof(remedy_text(remedy), before, after, pays)


def _is_less_done(of: Sequence[Finding], before: Sums, after: Sums) -> bool:
    """Of what findings are about: less is sent on their links, or less is multiplied."""
    links = {str(t.link or "") for finding in of for t in finding.transfers}
    return (
        any(after.sent.get(link, 0) < before.sent.get(link, 0) for link in links)
        or (after.on_links or 0) < (before.on_links or 0)
        or (any(finding.flops for finding in of) and (after.flops or 0) < (before.flops or 0))
    )


def _held(one: Sums, other: Sums) -> int:
    """How much more memory one takes."""
    return (one.memory or 0) - (other.memory or 0)


def sums(program: Program) -> Sums:
    """What one device of a program does."""
    ledger = program.ledger
    by_link = ledger.totals_by(lambda t: str(t.link or ""))
    sent = {link: total.wire_bytes for link, total in by_link.items() if total.wire_bytes}
    return Sums(sent, ledger.flops, _memory(program), on_links(program))


def _memory(program: Program) -> int | None:
    memory = program.ledger.memory
    if memory is None:
        return None
    held = memory.arguments + memory.outputs + memory.temporaries - memory.aliased
    constants = sum(shape.bytes for _, shape in closed_over(program))
    return (held if memory.peak is None else memory.peak) + constants


def _seconds(program: Program, of: Sums) -> Mapping[str, float]:
    """What each part of a step takes at full rates: one that waits for another is waste all the same. Bytes pass every
    link of a torus between two devices."""
    parts = step_of(program).seconds
    torus = known(program.target).hardware.fast.name if of.on_links else None
    passed = of.on_links / of.wire_bytes if of.on_links and of.wire_bytes else 1
    return {part: float(passed) * taken if part == torus else taken for part, taken in parts.items()}


def _has_room(program: Program, before: Sums, after: Sums) -> bool:
    """Where the chip is not known, memory may grow by what is sent less, and by a trifle."""
    room = Room.of(program.target)
    if room is None or before.memory is None or after.memory is None:
        return _held(after, before) <= max(before.wire_bytes - after.wire_bytes, Fraction(before.memory or 0) / 100)
    return room.fits(after.memory) or not room.fits(before.memory)


def _judged(finding: Finding, proof: Proof) -> Finding | None:
    is_in_vain = proof.after is not None and not proof.pays
    if is_in_vain and finding.kind in _TRUE_IF_IT_PAYS:
        return None
    advice = f"nothing that is known to pay; tried: {proof.text}" if is_in_vain else finding.advice
    return replace(finding, advice=advice, proof=proof)
