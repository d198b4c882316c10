"""What a run decides of the book: claims by the measured ledger, but for what a compiler alone makes of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lab.core.ledger import Ledger, Transfer
from lab.harness.claim import Claim, ClaimVerdict, calculated
from lab.harness.experiment import Experiment
from lab.meshes.axes import Axes
from lab.settle import Settlement, Verdict

Key = tuple[str, str | None]


def claims_of(
    experiment: Experiment, parameters: Any, axes: Axes, predicted: Ledger, measured: Ledger, settlement: Settlement
) -> tuple[Claim, ...]:
    """Claims of a measured ledger that was settled with the predicted one.

    Where settling finds nothing wrong, a claim that only lost names refute is decided by those of the terms that its
    transfers carry out. A surprise that theory's own transfers do not give is left undecided where known behaviours of
    the compiler, and nothing else, stand between the two.
    """
    claims = experiment.claims(parameters, axes, measured)
    if not any(claim.is_undisputed_refutation for claim in claims) or settlement.verdict is Verdict.REFUTED:
        return claims

    def of(transfers: Iterable[Transfer]) -> tuple[Claim, ...]:
        return experiment.claims(parameters, axes, replace(measured, transfers=tuple(transfers)))

    by_theory, by_compiler, by_scope = (
        of(predicted.split().transfers),
        of(_named(settlement)),
        of(_with_scope(settlement)),
    )
    told_apart = {claim.id for claim in by_theory if claim.verdict is not ClaimVerdict.CALCULATED}
    made = {key for key in _surprises(by_compiler) - _surprises(by_theory) if key[0] in told_apart}
    held = {_key(claim): claim for claim in by_scope if _key(claim) not in _surprises(by_scope)}
    return tuple(_without_names(claim, made, held) if claim.is_undisputed_refutation else claim for claim in claims)


def _without_names(claim: Claim, made: set[Key], held: Mapping[Key, Claim]) -> Claim:
    """A surprise, unless it is what the compiler made of theory's transfers, or of their names."""
    if _key(claim) in made:
        return _undecided(claim)
    return _found_by_size(held[_key(claim)]) if _key(claim) in held else claim


def _named(settlement: Settlement) -> Iterable[Transfer]:
    """The measured transfers, each by the name of the term that it carries out."""
    return (
        replace(t, scope=term.predicted.scope, phase=term.predicted.phase)
        for term in settlement.terms
        for t in term.measured
    )


def _with_scope(settlement: Settlement) -> Iterable[Transfer]:
    """The same, each in the phase that the compiled program tells of it, if it tells one."""
    return (
        replace(t, scope=term.predicted.scope, phase=t.phase or term.predicted.phase)
        for term in settlement.terms
        for t in term.measured
    )


def _surprises(claims: Iterable[Claim]) -> set[Key]:
    return {_key(claim) for claim in claims if claim.is_undisputed_refutation}


def _key(claim: Claim) -> Key:
    return claim.id, claim.statement


def _undecided(claim: Claim) -> Claim:
    evidence = (
        f"{claim.evidence}; holds for the predicted transfers, and cannot be decided by the compiled ones: the "
        "compiler replaces some of them, as the behaviours of its terms say"
    )
    return calculated(claim.id, evidence, statement=claim.statement)


def _found_by_size(claim: Claim) -> Claim:
    return replace(
        claim,
        evidence=(
            f"{claim.evidence}; scopes are those of the settled terms, since the compiled program names some "
            "transfers differently"
        ),
    )
