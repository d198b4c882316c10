"""Tries remedies: compiles the changed program, and compares what both send, compute and hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lab.core.room import Room
from lab.diagnosis.cost import MEMORY, rated, step_of
from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds.links import on_links
from lab.diagnosis.kinds.memory import closed_over
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import NotApplicable, Proof, Remedy, Sums, remedy_text

LEAST_S = 2.0
"""How long remedies of a small program may take; those of others as long as the program took to compile."""
MOST_ALIKE = 3
"""Remedies that are tried in each of several processes, whose clocks differ."""
A_TEXT = "a text has no function that could be changed"
TAKES_AN_EDIT = "it takes an edit of the program"
NO_TIME = "that would take longer than the program took to compile"
NO_USE = f"all remedies at once do not pay, and one by one {NO_TIME}"
_SLOWER = 0.01
_TRUE_IF_IT_PAYS = frozenset({"on_slow_link", "larger_side_gathered", "not_donated", "batch_made_whole"})
"""Kinds that say what another way would send: they are true if it does."""


@dataclass(frozen=True)
class Measured:
    """What one device of a program does in a step, and what each part of that takes at full rates [s]."""

    sums: Sums
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, program: Program) -> Measured:
        found = sums(program)
        return cls(found, _seconds(program, found))


@dataclass(frozen=True)
class Trial:
    """What it takes to try remedies, wherever changed programs are compiled.

    Attributes:
      before: of the program as it is.
      compile_s: that it took to compile and to read.
      room: of its chip, or of the one by whose rates it is judged.
      is_of_several: see `lab.diagnosis.program.Program`; what is tried then does not depend on a clock.
    """

    before: Measured
    compile_s: float
    room: Room | None
    is_of_several: bool = False

    @classmethod
    def of(cls, program: Program) -> Trial:
        return cls(Measured.of(program), program.seconds, Room.of(rated(program)), program.is_of_several)

    @property
    def budget_s(self) -> float:
        return max(self.compile_s, LEAST_S)


Attempt = Callable[[Remedy], Measured]
"""What a changed program does; raises NotApplicable."""


def proven(found: Sequence[Finding], trial: Trial, attempt: Attempt) -> tuple[Finding, ...]:
    """The findings with what became of their remedies, the first ones tried first: alone where all of them can be tried
    in the time that the program took to compile, else together.

    A finding whose sentence is about the remedy, and which is not borne out, is left out; any other whose remedy saves
    nothing stands behind those with advice.
    """
    remedies = {number: finding.remedy for number, finding in enumerate(found) if finding.remedy}
    have_time = trial.is_of_several or len(remedies) * trial.compile_s <= trial.budget_s
    proofs = (_alone if have_time else _together)(found, remedies, trial, attempt)
    judged = [
        _judged(finding, proofs.get(number, Proof(not_tried=TAKES_AN_EDIT))) for number, finding in enumerate(found)
    ]
    kept = [finding for finding in judged if finding is not None]
    return tuple(sorted(kept, key=lambda finding: (finding.is_remark, finding.is_in_vain)))


def proven_here(program: Program, found: Sequence[Finding]) -> tuple[Finding, ...]:
    """With the compiler of this process, if it has one."""
    if program.attempt is None:
        return untried(found, A_TEXT)
    attempt = program.attempt
    return proven(found, Trial.of(program), lambda remedy: Measured.of(attempt(remedy)))


def untried(found: Sequence[Finding], why: str) -> tuple[Finding, ...]:
    return tuple(replace(finding, proof=Proof(remedy_text(finding.remedy), not_tried=why)) for finding in found)


def _alone(
    found: Sequence[Finding], remedies: Mapping[int, Remedy], trial: Trial, attempt: Attempt
) -> dict[int, Proof]:
    """As many as there is time for, the worst in any case."""
    proofs: dict[int, Proof] = {}
    began = time.perf_counter()
    for number, remedy in remedies.items():
        spent_s = time.perf_counter() - began
        is_late = len(proofs) == MOST_ALIKE if trial.is_of_several else spent_s + trial.compile_s > trial.budget_s
        late = Proof(remedy_text(remedy), not_tried=NO_TIME)
        proofs[number] = late if proofs and is_late else _tried([found[number]], remedy, trial, attempt)
    return proofs


def _together(
    found: Sequence[Finding], remedies: Mapping[int, Remedy], trial: Trial, attempt: Attempt
) -> dict[int, Proof]:
    """One compile of all; where they cannot be made at once, of the worst."""
    joint = tuple(dict.fromkeys(change for remedy in remedies.values() for change in remedy))
    proof = _tried([found[number] for number in remedies], joint, trial, attempt)
    if proof.after is None:
        return _alone(found, remedies, trial, attempt)
    texts = {number: remedy_text(remedy) for number, remedy in remedies.items()}
    if not proof.pays:
        return {number: Proof(text, not_tried=NO_USE) for number, text in texts.items()}
    return {
        number: replace(
            proof,
            remedy=text,
            together=len(remedies) - 1,
            others=tuple(dict.fromkeys(other for other in texts.values() if other != text)),
        )
        for number, text in texts.items()
    }


def _tried(of: Sequence[Finding], remedy: Remedy, trial: Trial, attempt: Attempt) -> Proof:
    try:
        changed = attempt(remedy)
    except NotApplicable as refusal:
        return Proof(remedy_text(remedy), not_tried=str(refusal))
    before, after = trial.before.sums, changed.sums
    now, then = trial.before.seconds, changed.seconds
    is_faster = sum(then.values()) < sum(now.values()) and _is_less_done(of, before, after)
    # What is held and no longer need be was also read, which is not counted of constants.
    beside = [sum(taken for part, taken in parts.items() if part != MEMORY) for parts in (now, then)]
    is_about_memory = any(finding.memory_bytes for finding in of)
    is_smaller = is_about_memory and _held(after, before) < 0 and beside[1] <= (1 + _SLOWER) * beside[0]
    pays = is_smaller or (is_faster and _has_room(trial.room, before, after))
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
    torus = rated(program).hardware.fast.name if of.on_links else None
    passed = of.on_links / of.wire_bytes if of.on_links and of.wire_bytes else 1
    return {part: float(passed) * taken if part == torus else taken for part, taken in parts.items()}


def _has_room(room: Room | None, before: Sums, after: Sums) -> bool:
    if room is None or before.memory is None or after.memory is None:
        return True
    return room.fits(after.memory) or not room.fits(before.memory)


def _judged(finding: Finding, proof: Proof) -> Finding | None:
    if proof.is_in_vain and finding.kind in _TRUE_IF_IT_PAYS:
        return None
    advice = f"a change was tried, and saved nothing with this compiler: {proof.text}"
    return replace(finding, advice=advice if proof.is_in_vain else finding.advice, proof=proof)
