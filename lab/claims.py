"""What a run decides of the book: claims by the measured ledger, but for what a compiler alone makes of a program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lab.experiment import Claim, ClaimVerdict, Experiment, calculated
from lab.ledger import Ledger, Transfer
from lab.settle import Settlement, Verdict
from meshes.axes import Axes


def claims_of(experiment: Experiment, parameters: Any, axes: Axes, predicted: Ledger, measured: Ledger, settlement: Settlement) -> tuple[Claim, ...]:
    """Claims of a measured ledger that was settled with the predicted one.

    A surprise that theory's own transfers do not give is left undecided where known behaviours of the compiler, and nothing else, stand between the
    two. It stays one where only the names are the compiler's: by those that settling gives its transfers the claim would hold.
    """
    claims = experiment.claims(parameters, axes, measured)
    if not any(claim.is_surprise for claim in claims) or settlement.verdict not in (Verdict.EXPLAINED, Verdict.ATTRIBUTED):
        return claims

    def of(transfers: Iterable[Transfer]) -> tuple[Claim, ...]:
        return experiment.claims(parameters, axes, replace(measured, transfers=tuple(transfers)))

    by_theory, by_compiler = of(predicted.split().transfers), of(_named(settlement))
    told_apart = {claim.id for claim in by_theory if claim.verdict is not ClaimVerdict.CALCULATED}
    made = _surprises(by_compiler) - _surprises(by_theory)
    return tuple(_undecided(claim) if _key(claim) in made and claim.is_surprise and claim.id in told_apart else claim for claim in claims)


def _named(settlement: Settlement) -> Iterable[Transfer]:
    """The measured transfers, each by the name of the term that it carries out."""
    return (replace(t, scope=term.predicted.scope, phase=term.predicted.phase) for term in settlement.terms for t in term.measured)


def _surprises(claims: Iterable[Claim]) -> set[tuple[str, str | None]]:
    return {_key(claim) for claim in claims if claim.is_surprise}


def _key(claim: Claim) -> tuple[str, str | None]:
    return claim.id, claim.statement


def _undecided(claim: Claim) -> Claim:
    evidence = f"{claim.evidence}; by theory's transfers it is not so: the compiler makes others of them, by the behaviours that explain its terms"
    return calculated(claim.id, evidence, statement=claim.statement)
