"""Claims of experiments in parts, by statement, where a ledger differs from the one that theory asks for."""

from collections.abc import Callable
from dataclasses import replace

from lab.core.ledger import Ledger, Transfer
from lab.harness.claim import Claim
from lab.harness.registry import load
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target

Change = Callable[[Transfer], Transfer]


def ideal(name: str, axes: Axes) -> Ledger:
    return load(name).predict(load(name).parameters, axes)


def claims(name: str, axes: Axes, change: Change = lambda t: t) -> tuple[Claim, ...]:
    asked = ideal(name, axes)
    measured = replace(asked, transfers=tuple(map(change, asked.transfers)))
    return load(name).claims(load(name).parameters, axes, measured)


def verdicts(name: str, axes: Axes, change: Change = lambda t: t) -> dict[str, str]:
    return {claim.statement or claim.id: str(claim.verdict) for claim in claims(name, axes, change)}


def flipped(name: str, axes: Axes, change: Change) -> set[str]:
    """The statements that this change decides otherwise."""
    before, after = verdicts(name, axes), verdicts(name, axes, change)
    return {statement for statement, verdict in before.items() if after[statement] != verdict}


def more(scope: str, executions: int = 1, payload_bytes: int = 0) -> Change:
    """Every transfer of a part runs so many times more, or carries so many bytes more."""

    def changed(t: Transfer) -> Transfer:
        return replace(t, executions=t.executions + executions, payload_bytes=t.payload_bytes + payload_bytes)

    return lambda t: changed(t) if t.scope == scope else t


def on_8_devices(name: str) -> Result:
    """At small sizes, with numbers."""
    return run(load(name), target=parse_target("cpu:8"), style="explicit", parameters=load(name).numeric_parameters)
