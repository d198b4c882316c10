"""What a compiler behaviour is, and what a rule may know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import version

from lab.core.ledger import Transfer
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target
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
    """The configuration that a prediction may know.

    Attributes:
      is_typed: declared with shardings in types.
      jax: the release whose XLA compiles.
      target: the machine, where it is one of the table of hardware.
    """

    platform: Platform
    style: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    jax: tuple[int, ...] = INSTALLED
    is_typed: bool = False
    target: Target | None = None


# A predicted transfer to those that the compiler emits for it: itself where nothing changes, none where another one
# does its work.
Rewrite = Callable[[Transfer, Context], tuple[Transfer, ...]]
# Which of the measured transfers that no term has claimed carry out a predicted one; () where none do.
Recognise = Callable[[Transfer, Context, Unclaimed], Unclaimed]
# The same of several predicted transfers at once, by the place of each, with what carries out the settled ones; nothing
# of one that it does not explain.
RecogniseTogether = Callable[
    [Mapping[int, Transfer], Iterable[tuple[Transfer, Unclaimed]], Unclaimed, Context], Mapping[int, Unclaimed]
]
# Whether a predicted transfer that a rewrite leaves nothing of is part of another predicted one, which these behaviours
# explain.
AbsorbedBy = Callable[[Transfer, Transfer, tuple[str, ...]], bool]
# Which unclaimed transfers a compiler adds to those that carry out a settled one, and no term asks for.
RecogniseAdded = Callable[[Unclaimed, Unclaimed], Unclaimed]


@dataclass(frozen=True)
class CompilerNote:
    """What is known of a compiler and explains no term: it does not show in a ledger, or no layout here needs it.

    Attributes:
      id: letter of the compiler (C CPU, G GPU, T TPU, X any) and number.
      platform: where it happens, None for all.
      certainty: whether a configuration predicts it.
      effect: what it does to a ledger, to memory, or to a program.
      when: under which conditions, beside the platform.
      remedy: what to write instead, where there is something.
      not_on: where it does not happen, of one that is not bound to a platform.
      refusal: words of the compiler's error, of one that refuses a program.
    """

    id: str
    platform: Platform | None
    certainty: Certainty
    effect: str
    when: str = ""
    remedy: str = ""
    not_on: Platform | None = None
    refusal: str = ""


@dataclass(frozen=True)
class Behaviour(CompilerNote):
    """One compiler behaviour, with the code that decides where it explains a term.

    Attributes:
      rewrite: of a predictable one.
      absorbed_by: of a rewrite that may leave nothing: which other transfer then does the work, and has to be there.
      recognise: of one that only shows in the compiled text: what it finds is explained, and never counts as predicted.
      recognise_together: of such a one that makes one transfer of several.
      recognise_added: of such a one that sends more beside what is asked for.
    """

    rewrite: Rewrite | None = None
    absorbed_by: AbsorbedBy | None = None
    recognise: Recognise | None = None
    recognise_together: RecogniseTogether | None = None
    recognise_added: RecogniseAdded | None = None
