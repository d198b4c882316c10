"""Chains: calls of a collective in a row, each on the result of the one before, with no pass over memory between them.

Where a result has another shape than what entered, its mirror stands beside it: a reduce_scatter and an all_gather are
one call of a chain. A barrier takes no array, so what it gives moves the rank that the next one begins with, by
nothing, which no compiler can know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import jax
import jax.numpy as jnp

from lab import collectives
from lab.collectives import ALGORITHMS, Cost
from lab.collectives.wires import Axis
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError, no_such

ALONE = ("permute", "all_reduce", "reduce", "broadcast", "all_to_all", "barrier")
IN_PAIRS = (("reduce_scatter", "all_gather"), ("scatter", "gather"))
MIRRORS = {"halving": "doubling"}
"""Algorithms whose mirror has another name."""

BYTES = 4
"""Of an element: unsigned integers, which wrap, so that no sum has to be scaled."""

EVEN = 16
"""Blocks are a multiple of so many elements, so that halves and slices of them need no padding."""


@dataclass(frozen=True)
class Chain:
    """What is called again and again.

    Attributes:
      primitives: one, or two that undo each other's shape.
      algorithms: of each.
    """

    primitives: tuple[str, ...]
    algorithms: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.primitive} by {self.algorithm}"

    @property
    def primitive(self) -> str:
        return "+".join(self.primitives)

    @property
    def algorithm(self) -> str:
        return "+".join(dict.fromkeys(self.algorithms))

    def elements(self, payload_bytes: int, ranks: int) -> int:
        """The nearest number that splits evenly; of a barrier one, whatever the payload."""
        a_block = EVEN * ranks
        return 1 if self.primitives == ("barrier",) else a_block * max(1, round(payload_bytes / (BYTES * a_block)))

    def call(self, x_N: jax.Array, axis: Axis) -> jax.Array:
        """[N] to [N], N a multiple of the ranks, or 1 for a barrier; inside `jax.shard_map`, beginning with ones."""
        for primitive, algorithm in zip(self.primitives, self.algorithms, strict=True):
            x_N = _run(primitive, algorithm, x_N, axis)
        return x_N

    def cost(self, axes: Axes, elements: int) -> Cost:
        """Of one call on [elements]."""
        costs = [
            collectives.cost(*step, axes, elements, BYTES)
            for step in zip(self.primitives, self.algorithms, strict=True)
        ]
        return reduce(Cost.__add__, costs)

    def bus_factor(self, ranks: int) -> Fraction:
        """Bus bandwidth over algorithm bandwidth, as nccl-tests has it; of two primitives the sum."""
        return sum((_bus_factor(primitive, ranks) for primitive in self.primitives), Fraction(0))


def _bus_factor(primitive: str, ranks: int) -> Fraction:
    if primitive in ("reduce", "broadcast", "permute", "barrier"):
        return Fraction(1)
    return Fraction((ranks - 1) * (2 if primitive == "all_reduce" else 1), ranks)


def chains(axes: Axes) -> tuple[Chain, ...]:
    """The whole catalogue, as far as these axes allow."""
    alone = [Chain((primitive,), (name,)) for primitive in ALONE for name in ALGORITHMS[primitive]]
    pairs = [Chain(pair, both) for pair in IN_PAIRS for both in _mirrored(*pair)]
    return tuple(chain for chain in [*alone, *pairs] if _serves(chain, axes))


def _mirrored(one: str, other: str) -> list[tuple[str, str]]:
    """Every algorithm of two primitives beside its mirror, or beside XLA's own where it has none."""
    names = {name: MIRRORS.get(name, name) for name in ALGORITHMS[one]}
    mirrored = [(name, mirror if mirror in ALGORITHMS[other] else "lax") for name, mirror in names.items()]
    return mirrored + [("lax", name) for name in ALGORITHMS[other] if name not in names.values()]


def chosen(known: Sequence[Chain], primitives: Sequence[str], algorithms: Sequence[str]) -> tuple[Chain, ...]:
    """Those of `known` that have one of the primitives and one of the algorithms; no names stand for all.

    Raises:
      UsageError: no chain has such a primitive, or none of these primitives such an algorithm.
    """
    _check("primitive", primitives, {name for chain in known for name in chain.primitives})
    _check(
        "algorithm",
        algorithms,
        {name for chain in known if _meets(chain.primitives, primitives) for name in chain.algorithms},
    )
    return tuple(
        chain for chain in known if _meets(chain.primitives, primitives) and _meets(chain.algorithms, algorithms)
    )


def _run(primitive: str, algorithm: str, x: jax.Array, axis: Axis) -> jax.Array:
    if primitive == "barrier":
        return _after(x, algorithm, axis)
    return getattr(collectives, primitive)(x, axis, algorithm=algorithm)


def _after(one_1: jax.Array, algorithm: str, axis: Axis) -> jax.Array:
    """A barrier that waits for the one which gave [1], and gives [1]."""
    rank = jax.lax.axis_index(axis) + one_1[0].astype(jnp.int32) - 1
    ranks = ALGORITHMS["barrier"][algorithm].run(rank, axis)
    return (ranks - jax.lax.axis_size(axis) + 1).astype(one_1.dtype)[None]


def _serves(chain: Chain, axes: Axes) -> bool:
    try:
        chain.cost(axes, axes.size)
    except UsageError:
        return False
    return True


def _check(what: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise no_such(what, name, sorted(known), where=" to time on this mesh")


def _meets(names: Sequence[str], wanted: Sequence[str]) -> bool:
    return not wanted or bool(set(names) & set(wanted))
