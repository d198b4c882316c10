"""One change of a step that could pay, as data: whatever compiles the step makes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lab.diagnosis.remedy import CompilerOption, Remedy, UnrollScans
from lab.meshes.axes import Axes


class Lever(StrEnum):
    FLAG = "flag"
    BUCKETS = "bucket size"
    REMAT = "recomputation"
    UNROLLING = "unrolling"
    AXIS_ORDER = "axis order"
    PLACEMENT = "placement"
    """Of an argument, a result or a value, or its dtype where it is sent: what a finding advises."""
    PARAMETER = "parameter"


class Wrap(StrEnum):
    """Where `jax.checkpoint` stands, beside policies by name."""

    REMOVED = "removed"
    AROUND_SCANS = "around scans"


@dataclass(frozen=True)
class Intervention:
    """One change.

    Attributes:
      remedy: changes of the traced program, and options of the compiler.
      policy: of `jax.checkpoint`, by its name in `jax.checkpoint_policies`, or a `Wrap`; "" leaves it.
      mesh: the axes in another order.
      settings: parameters of an experiment, or of a builder.
      mathematics: what it makes of the result beyond another order of sums; "" where that is all.
      label: for people, where its changes are many of a kind.
    """

    lever: Lever
    remedy: Remedy = ()
    policy: str = ""
    mesh: Axes | None = None
    settings: tuple[tuple[str, str], ...] = ()
    mathematics: str = ""
    label: str = ""

    def __str__(self) -> str:
        parts = [
            *(str(change) for change in self.remedy),
            *(f"jax.checkpoint {self.policy}" for _ in [0] if self.policy),
            *(f"--mesh {self.mesh}" for _ in [0] if self.mesh),
            *("=".join(setting) for setting in self.settings),
        ]
        return self.label or " ".join(dict.fromkeys(parts))

    @property
    def options(self) -> dict[str, str]:
        """Of the compiler, by name."""
        return {change.name: change.value for change in self.remedy if isinstance(change, CompilerOption)}

    def concerns(self) -> frozenset[str]:
        """What it decides: two of a variant decide nothing alike."""
        changes = [
            f"scans at {change.depth}" if isinstance(change, UnrollScans) else str(change)
            for change in self.remedy
            if not isinstance(change, CompilerOption)
        ]
        of_the_step = [name for name, is_set in (("policy", self.policy), ("mesh", self.mesh)) if is_set]
        return frozenset([*self.options, *changes, *of_the_step, *(name for name, _ in self.settings)])


Variant = tuple[Intervention, ...]
"""Interventions that are made together; () is the step as it is."""


def goes_with(variant: Variant, one: Intervention) -> bool:
    return all(other.concerns().isdisjoint(one.concerns()) for other in variant)


def text(variant: Variant) -> str:
    return " + ".join(map(str, variant)) or "as it is"
