"""Claims of the chapters on collectives, decided by hand-made ledgers: what the kernels state, or something else."""

from dataclasses import replace

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.collectives.kernels import Buffer
from lab.harness.registry import load
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target

TWO_BY_FOUR = Axes.of({"data": 2, "fsdp": 4})


def ideal(name: str, axes: Axes = TWO_BY_FOUR) -> Ledger:
    return load(name).predict(Buffer(), axes)


def claims(name: str, measured: Ledger, axes: Axes = TWO_BY_FOUR) -> tuple[Claim, ...]:
    return load(name).claims(Buffer(), axes, measured)


def verdicts(name: str, measured: Ledger, axes: Axes = TWO_BY_FOUR) -> dict[str, str]:
    """By statement, or by id where a claim has none."""
    return {claim.statement or claim.id: str(claim.verdict) for claim in claims(name, measured, axes)}


def flipped(name: str, measured: Ledger, axes: Axes = TWO_BY_FOUR) -> set[str]:
    """The statements that another ledger decides otherwise than the ideal one does."""
    before, after = verdicts(name, ideal(name, axes), axes), verdicts(name, measured, axes)
    return {statement for statement, verdict in before.items() if after[statement] != verdict}


def disputed(some: tuple[Claim, ...]) -> set[str]:
    """The items that refuted statements name; none may be refuted without one."""
    assert not [claim for claim in some if claim.is_undisputed_refutation]
    return {claim.disputed for claim in some if claim.verdict == "refuted"}


def evidence(name: str, id: str) -> str:
    return "\n".join(claim.evidence for claim in claims(name, ideal(name)) if claim.id == id)


def with_more(ledger: Ledger, scope: str, more: int = 1, **change) -> Ledger:
    """The first transfer of a kernel executed so many times more, or changed."""
    place = next(i for i, t in enumerate(ledger.transfers) if t.scope == scope)
    rows = list(ledger.transfers)
    rows[place] = replace(rows[place], executions=rows[place].executions + more, **change)
    return replace(ledger, transfers=tuple(rows))


def compiled(name: str, target: str) -> Result:
    return run(load(name), target=parse_target(target), style="explicit")
