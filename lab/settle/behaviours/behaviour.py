"""What a compiler behaviour is, and what a rule may know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import version

from lab.core.ledger import Transfer
from lab.meshes.platforms import Platform
from lab.settle.unclaimed import Unclaimed

INSTALLED = tuple(map(int, version("jax").split(".")[:2]))
"""Release of jax."""


class Certainty(StrEnum):
    """Predictable: follows from the configuration alone. Readable: shows in the compiled text. Observed: has been seen,
    by no known rule."""

    PREDICTABLE = "predictable"
    READABLE = "readable"
    OBSERVED = "observed"


@dataclass(frozen=True)
class Context:
    """The configuration that a prediction may know; `jax`: the release whose XLA compiles."""

    platform: Platform
    style: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    jax: tuple[int, ...] = INSTALLED


# A predicted transfer to those that the compiler emits for it: itself where nothing changes, none where another one
# does its work.
Rewrite = Callable[[Transfer, Context], tuple[Transfer, ...]]
# Which of the measured transfers that no term has claimed carry out a predicted one; () where none do.
Recognise = Callable[[Transfer, Context, Unclaimed], Unclaimed]


@dataclass(frozen=True)
class Behaviour:
    """One compiler behaviour.

    Attributes:
      id: letter of the compiler (C CPU, G GPU, T TPU, X any) and number.
      platform: where it happens, None for all.
      certainty: whether a configuration predicts it.
      effect: what it does to a ledger.
      when: under which conditions, beside the platform.
      remedy: what to write instead, where there is something.
      rewrite: of a predictable one, where a layout needs it to settle.
      recognise: of one that only shows in the compiled text: what it finds is explained, and never counts as predicted.
    """

    id: str
    platform: Platform | None
    certainty: Certainty
    effect: str
    when: str = ""
    remedy: str = ""
    rewrite: Rewrite | None = None
    recognise: Recognise | None = None
