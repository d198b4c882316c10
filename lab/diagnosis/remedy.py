"""Changes of a program that a finding advises, as data, and what became of them: whatever compiles a program can make
them by itself.

Equations are named as compiled text names the instructions that JAX makes of them: `jit(step)/jvp()/dot_general`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from lab.core.codec import Count
from lab.core.units import count, exact, listed
from lab.diagnosis.specs import Dims, spec_text
from lab.meshes.platforms import LinkName


@dataclass(frozen=True)
class ShardArgument:
    """Another sharding of an argument."""

    name: str
    dims: Dims

    def __str__(self) -> str:
        return f"in_shardings {spec_text(self.dims)} of {self.name}"


@dataclass(frozen=True)
class PinArgument:
    """A constraint on an argument, before anything is done with it."""

    name: str
    dims: Dims

    def __str__(self) -> str:
        return f"{self.name} constrained to {spec_text(self.dims)} first"


@dataclass(frozen=True)
class ShardResult:
    """Another sharding of the result of this number, of all in their order."""

    number: int
    dims: Dims

    def __str__(self) -> str:
        return f"out_shardings {spec_text(self.dims)} of result {self.number}"


@dataclass(frozen=True)
class ShardResultsAlike:
    """Each result that has the shape of a split argument is split like it."""

    def __str__(self) -> str:
        return "out_shardings of the arguments of the same shape"


@dataclass(frozen=True)
class KeepDonated:
    """Each result that has the shape and dtype of a donated argument is sharded like it."""

    def __str__(self) -> str:
        return "out_shardings of the donated arguments"


@dataclass(frozen=True)
class PinOperand:
    """A constraint on what an equation takes (`operand`) or, without a number, gives; with `takes`, of its name those
    that take an array of that shape."""

    equation: str
    operand: int | None
    dims: Dims
    takes: tuple[int, ...] = ()

    def __str__(self) -> str:
        what = "the result" if self.operand is None else f"operand {self.operand}"
        return f"{what} of {_operation(self.equation)} constrained to {spec_text(self.dims)}"


@dataclass(frozen=True)
class PinBefore:
    """Constraints one after the other before the one that stands at an equation."""

    equation: str
    steps: tuple[Dims, ...]

    def __str__(self) -> str:
        return f"a constraint to {', then '.join(map(spec_text, self.steps))} before the one that is there"


@dataclass(frozen=True)
class PinInstead:
    """Another spec for the constraint that stands at an equation."""

    equation: str
    dims: Dims

    def __str__(self) -> str:
        return f"{spec_text(self.dims)} in the constraint"


@dataclass(frozen=True)
class FreeUnnamed:
    """`P.UNCONSTRAINED` for None in the constraint that stands at an equation; without a constraint where all are."""

    equation: str

    def __str__(self) -> str:
        return "P.UNCONSTRAINED for None in the constraint"


@dataclass(frozen=True)
class DropConstraint:
    """Without the constraint that stands at an equation."""

    equation: str

    def __str__(self) -> str:
        return "without the constraint"


@dataclass(frozen=True)
class OnEachDevice:
    """`jax.shard_map` around an equation, all that it takes and gives split alike."""

    equation: str
    dims: Dims

    def __str__(self) -> str:
        return f"{_operation(self.equation)} in jax.shard_map, with {spec_text(self.dims)}"


@dataclass(frozen=True)
class ThroughIndices:
    """A slice or an update by an array of indices along its dims."""

    equation: str

    def __str__(self) -> str:
        return f"an array of indices for {_operation(self.equation)}"


@dataclass(frozen=True)
class ReduceOverLess:
    """A psum without these axes, along which its operand is the same: that is multiplied by their sizes."""

    equation: str
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"a product with the size of {', '.join(self.axes)} for the sum over it"


@dataclass(frozen=True)
class Scatter:
    """A psum_scatter for a psum of which each device takes its part."""

    equation: str

    def __str__(self) -> str:
        return "jax.lax.psum_scatter"


@dataclass(frozen=True)
class Gather:
    """An all_gather of the part that each device adds to a psum of zeros."""

    equation: str

    def __str__(self) -> str:
        return "jax.lax.all_gather"


@dataclass(frozen=True)
class CastAfter:
    """A collective of a value before it is cast, its result cast instead."""

    equation: str

    def __str__(self) -> str:
        return f"the cast after {_operation(self.equation)}"


@dataclass(frozen=True)
class CastBefore:
    """A collective of what its result is cast to, cast back after it."""

    equation: str
    dtype: str

    def __str__(self) -> str:
        return f"the cast to {self.dtype} before {_operation(self.equation)}"


@dataclass(frozen=True)
class SendNarrow:
    """The values of 8 bits that an operand is made of are moved in its place, with their scales, and widened after
    that; for a sum they are exchanged, and each device sums its part.

    Attributes:
      dims: where a constraint moves them, how they are split before it, so that the compiler casts before the transfer;
        () says nothing.
    """

    equation: str
    dims: Dims = ()

    def __str__(self) -> str:
        if self.dims:
            return "the values of 8 bits constrained to how they are split, then as the program asks, widened after it"
        return f"the values of 8 bits and their scales through {_operation(self.equation)}, widened after it"


@dataclass(frozen=True)
class KeepLargeSide:
    """A product whose larger operand stays split over these axes: the smaller one is split alike along the dim that is
    summed over, or else is whole, and the result is split along the larger one's dim."""

    equation: str
    axes: tuple[str, ...]
    is_summed: bool

    def __str__(self) -> str:
        how = "split alike" if self.is_summed else "whole"
        return f"the small operand {how} over {', '.join(self.axes)}"


@dataclass(frozen=True)
class Donate:
    """Each argument of these names (`()`: of all) that has the shape and dtype of a result is given up for it."""

    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = count(len(self.names), "argument") if self.names else "the arguments that results can take over"
        return f"{what} donated"


@dataclass(frozen=True)
class PassConstants:
    """Arrays that the program closes over as arguments, split over an axis where a dim of theirs is a multiple."""

    axis: str

    def __str__(self) -> str:
        return f"the array as an argument, split over {self.axis}"


@dataclass(frozen=True)
class OrderDevices:
    """The devices of the mesh in another order: at each position, the position that its device had."""

    order: tuple[int, ...]
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class UnrollScans:
    """So many iterations of each `jax.lax.scan` that stands inside `depth` others written out in one."""

    depth: int
    times: int

    def __str__(self) -> str:
        where = f" inside {count(self.depth, 'other')}" * (self.depth > 0)
        return f"unroll={self.times} of jax.lax.scan{where}"


@dataclass(frozen=True)
class CompilerOption:
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


@dataclass(frozen=True)
class PartitionableKeys:
    """`jax_threefry_partitionable`."""

    def __str__(self) -> str:
        return "jax_threefry_partitionable=True"


Change = (
    ShardArgument
    | PinArgument
    | ShardResult
    | ShardResultsAlike
    | KeepDonated
    | PinOperand
    | PinBefore
    | PinInstead
    | FreeUnnamed
    | DropConstraint
    | OnEachDevice
    | ThroughIndices
    | ReduceOverLess
    | Scatter
    | Gather
    | CastAfter
    | CastBefore
    | SendNarrow
    | KeepLargeSide
    | Donate
    | PassConstants
    | OrderDevices
    | UnrollScans
    | CompilerOption
    | PartitionableKeys
)
Remedy = tuple[Change, ...]
"""Changes that are made together."""


_WHERE: Mapping[str, str] = {
    LinkName.HOST: "inside hosts",
    LinkName.NETWORK: "between hosts",
    LinkName.ICI: "inside slices",
    LinkName.DCN: "between slices",
}


def where(link: str) -> str:
    """`inside hosts`; "" of a link that is not known."""
    return _WHERE.get(link, "")


class NotApplicable(Exception):
    """Why no program can make a change, in a line."""


_SHOWN = 2


def remedy_text(remedy: Sequence[Change]) -> str:
    """The first of its changes, and how many more there are."""
    told = list(dict.fromkeys(map(str, remedy)))
    more = [f"{len(told) - _SHOWN} more changes like these"] * (len(told) > _SHOWN + 1)
    return " and ".join([*(told[:_SHOWN] if more else told), *more])


def _operation(equation: str) -> str:
    """As a program writes it: what JAX traces of `jax.lax.psum` is a `psum_invariant`."""
    return equation.rsplit("/", 1)[-1].replace("psum_invariant", "psum")


@dataclass(frozen=True)
class Sums:
    """Of one device in a step.

    Attributes:
      sent: wire bytes, by link; by "" where links are not known.
      flops: of products; None where they are not known.
      on_links: of the fast link of a torus of TPUs, each byte on every link that it passes; None elsewhere.
      memory: bytes at the peak, or, where the backend gives none, of arguments, results and temporaries together, with
        the arrays that the program closes over; None where the memory is not known.
    """

    sent: Mapping[str, Fraction] = field(default_factory=dict)
    flops: Count | None = None
    memory: Count | None = None
    on_links: Fraction | None = None

    @property
    def wire_bytes(self) -> Fraction:
        return sum(self.sent.values(), Fraction(0))


@dataclass(frozen=True)
class Proof:
    """What became of a finding's remedy.

    Attributes:
      remedy: what was changed; empty where nothing can be.
      before, after: what the program and the changed one do; None where it was not tried.
      pays: something that the finding is about is less, and nothing is more by as much.
      together: with how many remedies of other findings it was tried at once.
      others: these, each once, without those that are the same change.
      not_tried: why.
    """

    remedy: str = ""
    before: Sums | None = None
    after: Sums | None = None
    pays: bool = False
    together: Count = 0
    not_tried: str | None = None
    others: tuple[str, ...] = ()

    @property
    def is_in_vain(self) -> bool:
        """It was tried, and saves nothing."""
        return self.after is not None and not self.pays

    @property
    def text(self) -> str:
        """`out_shardings P('data') of result 0: 43,008 B -> 14,336 B sent, FLOPs as before, 38.91 kB -> 22.53 kB of
        memory`."""
        if self.before is None or self.after is None:
            return self.remedy
        return f"{self.remedy}{self._with_others}: {', '.join(_changes(self.before, self.after))}"

    @property
    def _with_others(self) -> str:
        if not self.others:
            return ""
        more = [f"{len(self.others) - _SHOWN} more"] * (len(self.others) > _SHOWN)
        return f" (at once with {listed([*self.others[:_SHOWN], *more])})"


def _changes(before: Sums, after: Sums) -> Iterator[str]:
    for link in dict.fromkeys((*before.sent, *after.sent)):
        pair = [sums.sent.get(link, Fraction(0)) for sums in (before, after)]
        yield _change([f"{exact(sent)} B" for sent in pair], f"sent {where(link)}".rstrip())
    if before.on_links is not None and after.on_links is not None and before.on_links != after.on_links:
        yield _change([f"{exact(sums)} B" for sums in (before.on_links, after.on_links)], "on all links of the torus")
    if before.flops is not None and after.flops is not None and (before.flops or after.flops):
        yield _change([f"{exact(flops)} FLOPs" for flops in (before.flops, after.flops)], "of products")
    if before.memory is not None and after.memory is not None:
        yield _change([f"{exact(memory)} B" for memory in (before.memory, after.memory)], "of memory")


def _change(pair: Sequence[str], what: str) -> str:
    before, after = pair
    return f"{before} {what} as before" if before == after else f"{before} -> {after} {what}"
