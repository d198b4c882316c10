"""The law of a program: what `lab law --json` prints, and `lab.laws.evaluate` evaluates. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from lab.core import codec
from lab.core.codec import Size
from lab.core.ledger import Kind, Phase
from lab.laws.evaluate import evaluate
from lab.laws.polynomial import Polynomial

SCHEMA: Final = "sharding-lab/law/1"


@dataclass(frozen=True)
class Variable:
    """A degree of the mesh, or a size.

    Attributes:
      least: the smallest that was compiled: the law holds from there on. One degree of 1 at a time is compiled.
      most: the largest that was compiled, held-out sizes included.
      unit: what all that was compiled are multiples of: the law holds for such.
    """

    name: str
    is_axis: bool
    least: Size
    most: Size
    unit: Size = 1


@dataclass(frozen=True)
class Condition:
    """What has to divide for a law to hold: the program splits a dim into as many parts, or the compiler pads.

    Attributes:
      text: `embed % (fsdp * tensor) == 0`.
      place: what splits it.
    """

    dim: Polynomial
    parts: Polynomial
    text: str
    place: str


@dataclass(frozen=True)
class Term:
    """Transfers that are alike in all that has a name.

    Attributes:
      axes: that its groups span, or parts of axes.
      is_widened, is_masked_gather: see `lab.core.ledger.Transfer`.
      payload: bytes of one execution; null where its transfers move different ones.
      executions: a step.
      payload_of_step: bytes of all executions.
      group: devices of one group.
      where: what has to divide for this term to hold, beside the conditions of the whole.
      level: how few of their names are alike: 0: all, with operation, line, and the place of their payload among others
        of these names; 1: all but that place; 2: kind, axes, dtype, phase and scope; 3: all but the scope; 4: kind and
        axes.
      sites: transfers of the compiled text at the first size.
      shift: of a permute along one axis, how far it sends, negative where backwards; null where it has several.
    """

    kind: Kind
    axes: tuple[str, ...]
    phase: Phase | None
    scope: str
    function: str
    origin: str | None
    dtype: str
    conditional: bool
    network_kind: Kind | None
    is_widened: bool
    is_masked_gather: bool
    payload: Polynomial | None
    executions: Polynomial
    payload_of_step: Polynomial
    group: Polynomial
    where: tuple[Condition, ...]
    level: int
    sites: int
    shift: int | None = None


@dataclass(frozen=True)
class Refused:
    """What has no law, and why.

    Attributes:
      kind: of transfers; null of what is no transfer.
      what: `all_gather over fsdp, layers/mlp/up`, or what of the program.
      share: of all wire bytes of a step, at the sizes at which it is most of them.
    """

    kind: Kind | None
    axes: tuple[str, ...]
    what: str
    reason: str
    share: float


@dataclass(frozen=True)
class Products:
    """Matrix products of one phase and scope, as FLOPs of a step of one device."""

    phase: Phase | None
    scope: str
    flops: Polynomial


@dataclass(frozen=True)
class Difference:
    """Where a held-out compile and the law disagree."""

    what: str
    law: str
    compiled: str


@dataclass(frozen=True)
class Check:
    """The law at sizes that it was not derived from.

    Attributes:
      terms: how many of the law were compared; `equal` of them to the byte.
      wire_bytes: compiled, of a step, and what of them is under the law's terms.
    """

    sizes: Mapping[str, Size]
    devices: Size
    terms: int
    equal: int
    wire_bytes: float
    under_law: float
    differences: tuple[Difference, ...]
    seconds: float

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclass(frozen=True)
class Compiled:
    """Sizes that the law was derived from, every one of which it reproduces."""

    sizes: Mapping[str, Size]
    seconds: float


@dataclass(frozen=True)
class Beside:
    """Payload of a step by kind and axes: by theory, and by the law."""

    kind: Kind
    axes: tuple[str, ...]
    theory: Polynomial
    law: Polynomial
    is_same: bool


@dataclass(frozen=True)
class Settled:
    """The ledger of theory and that of the law at sizes, settled as `lab run` settles theory with a compiled program.

    Attributes:
      verdict: `exact`, `explained` by named behaviours of the compiler, `attributed`, `refuted`, or `incomplete` where
        all that is open are transfers without a law.
      terms: of theory, how many by status.
      findings: what is not settled: about one of both.
    """

    sizes: Mapping[str, Size]
    verdict: str
    terms: Mapping[str, int]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Theory:
    """What theory says of the same program, in the same variables; the last settlement is of sizes beyond what was
    compiled."""

    beside: tuple[Beside, ...]
    settled: tuple[Settled, ...]


@dataclass(frozen=True)
class Law:
    """Exact formulas of one program.

    Attributes:
      mesh: all axes in the order of `mesh.devices`, with the degrees of the first compile.
      fixed: sizes that were not varied, as far as they were set.
      flops: of matrix products, a step of one device; null where they have no law. `products` tells them apart.
      flops_where: what has to divide for them to hold, beside the conditions of the whole.
      memory: of one device, what has a law of `arguments`, `outputs`, `temporaries` and `peak`.
      memory_where: what has to divide for it, beside the conditions of the whole.
      memory_at_least: bounds: what stays for a whole step is there at its peak.
      arguments: bytes of each array that the step takes, on one device; of a list under one name together.
      notes: what of the compiled texts was not read, or with an assumption.
      theory: of an experiment of the lab.
    """

    source: str
    target: str
    platform: str
    style: str | None
    compiler: str
    variables: tuple[Variable, ...]
    mesh: Mapping[str, Size]
    fixed: Mapping[str, int | str]
    conditions: tuple[Condition, ...]
    terms: tuple[Term, ...]
    products: tuple[Products, ...]
    flops: Polynomial | None
    flops_where: tuple[Condition, ...]
    arguments: Mapping[str, Polynomial]
    memory: Mapping[str, Polynomial]
    refused: tuple[Refused, ...]
    compiled: tuple[Compiled, ...]
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    theory: Theory | None = None
    memory_where: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    memory_at_least: Mapping[str, Polynomial] = field(default_factory=dict)
    schema: Literal["sharding-lab/law/1"] = field(default=SCHEMA)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variable.name for variable in self.variables)

    def at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """See `lab.laws.evaluate.evaluate`."""
        return evaluate(codec.to_json(self), sizes)
