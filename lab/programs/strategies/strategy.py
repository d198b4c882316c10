"""What a strategy is: where arrays lie, where values change hands, and what theory says that costs. Strategies compose
with `|`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import jax

from lab.core.ledger import Ledger, Transfer
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.exchange import Exchange
from lab.programs.strategies.wire import AS_IT_IS, Narrow, Wire, on_wire, one_of

STYLES = ("declared", "typed", "explicit")
"""Ways to write one step: the compiler inserts the collectives, it does where the types of arrays say so, or they are
written out."""
RESIDUAL = ("batch", "length", "embed")
TABLE = ("vocab", "embed")
SPLIT = ("embed", "expert_embed", "query_rank", "kv_rank")
"""Dims of matrices, one of each, that sharded data parallelism splits."""
# Of what a device may hold a part of, each with the field of the shape that it must divide.
CHECKED = ("kv_heads", "mlp", "vocab", "length", "experts", "nodes", *SPLIT)


class Pair(NamedTuple):
    """A weight's whole copy, which the products use, and this device's part of the master, to which its gradient
    belongs (ZeRO-2)."""

    copy: jax.Array
    master: jax.Array


def is_split(dims: Dims) -> bool:
    """A weight with these dims is a matrix that sharded data parallelism splits; norms and biases are too small."""
    return any(dim in SPLIT for dim in dims)


def split_dim(dims: Dims) -> int:
    """Which of the dims it splits."""
    return next(place for place, dim in enumerate(dims) if dim in SPLIT)


Terms = Callable[["Strategy", DecoderShape, Axes], tuple[Transfer, ...]]
Copies = Callable[[Dims], frozenset[str]]


def no_copies(dims: Dims) -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True)
class Strategy:
    """A way to spread a training step over a mesh.

    `a | b` does both: layouts unite, hooks follow each other, copies unite, and so do terms; what both ask for is asked
    for once. It has the styles that both have. One of them at most exchanges gradients.

    Attributes:
      weights: layout of the weights that a step begins with.
      state: layout of the master weights and moments where it differs from `weights` (ZeRO-1 and 2), which then are a
        copy in the dtype of the products.
      inside: layout inside a block, of activations and of weights in use.
      core: how sequences are split where queries (`length`) meet keys (`keys`); of all else `inside` tells.
      pieces: of a rank's tokens, of which one at a time meets one of another's.
      residual: layout of the stream between blocks.
      copies: of a weight with these dims, the axes along which ranks use equal copies for different tokens: their
        gradients are summed.
      hooks: the collectives, written out; their transposes are those of the backward pass.
      is_anchored: weights are used as `Pair`s, so that gradients belong to the parts of `state` from the start
        (ZeRO-2).
      wire: formats in which gathered weights and their gradients travel.
      moments: the format in which both moments of matrices are kept between steps; None: float32.
      exchange: how ranks come to sums of whole gradients, where that is not by an all-reduce of each.
      terms: (the whole composition, shape, axes) to the transfers that theory asks for.
      styles: in which a compiled step sends what `terms` ask for, of `STYLES`.
    """

    terms: tuple[Terms, ...]
    weights: Layout = Layout()
    state: Layout | None = None
    inside: Layout = Layout()
    core: Layout = Layout()
    pieces: int = 1
    residual: Layout = Layout()
    copies: Copies = no_copies
    hooks: CollectiveHooks = field(default_factory=CollectiveHooks)
    is_anchored: bool = False
    wire: Wire = AS_IT_IS
    moments: Narrow | None = None
    exchange: Exchange | None = None
    styles: tuple[str, ...] = STYLES

    def __or__(self, other: Strategy) -> Strategy:
        if self.exchange and other.exchange and self.exchange != other.exchange:
            raise UsageError("two strategies both exchange gradients in a way of their own; compose only one of them")
        states = [s for s in (self.state, other.state) if s is not None]
        return Strategy(
            terms=self.terms + other.terms,
            weights=self.weights | other.weights,
            state=self.master | other.master if states else None,
            inside=self.inside | other.inside,
            core=self.core | other.core,
            pieces=max(self.pieces, other.pieces),
            residual=self.residual | other.residual,
            copies=lambda dims: self.copies(dims) | other.copies(dims),
            hooks=self.hooks | other.hooks,
            is_anchored=self.is_anchored or other.is_anchored,
            wire=self.wire | other.wire,
            moments=one_of("moments", self.moments, other.moments),
            exchange=self.exchange or other.exchange,
            styles=tuple(style for style in self.styles if style in other.styles),
        )

    @property
    def master(self) -> Layout:
        """Layout of the master weights, their gradients and moments."""
        return self.weights if self.state is None else self.state

    def splits_further(self, dims: Dims) -> bool:
        """The master of a weight with these dims has parts that the weight in `weights` has not."""
        return bool(self.scattered_over(dims))

    def scattered_over(self, dims: Dims) -> set[str]:
        """The axes over which gradients of a weight with these dims are scattered, and its new value is gathered."""
        return {axis for dim in dims for axis in set(self.master.axes_of(dim)) - set(self.weights.axes_of(dim))}

    def summed_apart(self, dims: Dims) -> frozenset[str]:
        """Of a weight with these dims, the axes over which gradients are summed as a device keeps them: all those of
        its copies, but for those over which they are scattered."""
        return self.copies(dims) - self.scattered_over(dims)

    def gathered_over(self, dims: Dims) -> tuple[str, ...]:
        """The axes whose parts of a stored weight are gathered for use, and its gradients scattered."""
        return tuple(axis for dim in dims for axis in self.weights.axes_of(dim) if axis not in self.inside.axes_of(dim))

    @property
    def in_formats(self) -> Strategy:
        """With hooks that move matrices in the wire's formats."""
        gather, wire = self.hooks.weight, self.wire

        def weight(w: jax.Array, dims: Dims) -> jax.Array:
            over = self.gathered_over(dims)
            return on_wire(gather, wire, over, split_dim(dims), dims, w) if over else gather(w, dims)

        return self if wire == AS_IT_IS else replace(self, hooks=replace(self.hooks, weight=weight))

    def exchanged_over(self, dims: Dims) -> frozenset[str]:
        """Of these axes those over which its exchange sums them."""
        return self.summed_apart(dims) if self.exchange and self.exchange.takes(dims) else frozenset()

    @property
    def sums_late(self) -> bool:
        """Gradients are those of a rank's own tokens until the backward pass is done, whatever is accumulated."""
        return self.state is not None or self.exchange is not None

    @property
    def meeting(self) -> Layout:
        """Layout of queries and keys where they meet."""
        return Layout(frozenset((dim, axis) for dim, axis in self.inside.rules if dim != "length")) | self.core

    def token_axes(self, axes: Axes) -> tuple[str, ...]:
        """Axes along which ranks have different tokens inside a block."""
        return axes.ordered(axis for dim in ("batch", "length") for axis in self.inside.axes_of(dim, axes.names))

    def predict(self, shape: DecoderShape, axes: Axes) -> Ledger:
        """The ledger of one step that theory asks for; equal terms of two strategies are one.

        Raises:
          UsageError: a dim does not split over its axes, or the mesh lacks an axis.
        """
        self.check(shape, axes)
        found: dict[Transfer, int] = {}
        for terms in dict.fromkeys(self.terms):
            found |= {t: n for t, n in Counter(terms(self, shape, axes)).items() if t not in found}
        return Ledger(tuple(Counter(found).elements()), devices=axes.size, mesh=axes.shape)

    def check(self, shape: DecoderShape, axes: Axes) -> None:
        """Raises UsageError where a dim does not split over its axes, the mesh lacks an axis, or nothing is gathered in
        the formats of the wire."""
        if self.wire != AS_IT_IS and not any(self.gathered_over((dim,)) for dim in SPLIT):
            raise UsageError(
                "this strategy gathers no weights, so there are none to send in a format of 8 bits; compose with ZERO3"
            )
        if not shape.experts and (split := self.weights.axes_of("experts", axes.names)):
            raise UsageError(
                f"experts=0 and experts are sharded over {', '.join(split)}; set experts to a multiple of the axis, "
                "or drop the axis"
            )
        if shape.mtp and (split := self.inside.axes_of("length", axes.names)):
            raise UsageError(
                f"mtp=1 with sequences sharded over {', '.join(split)}: the token after the next may be another "
                "rank's; set mtp=0, or drop the axis"
            )
        stored, kept = (layout.axes_of("embed", axes.names) for layout in (self.weights, self.master))
        if kept[: len(stored)] != stored:
            further = [axis for axis in kept if axis not in stored]
            order = [axis for axis in axes.names if axis not in further] + further
            raise UsageError(
                f"mesh {axes}: ZeRO-1 or 2 shards over {', '.join(further)} what {', '.join(stored)} shards first; put "
                f"{', '.join(further)} last, as in {','.join(f'{axis}={axes[axis]}' for axis in order)}"
            )
        for layout, stack in product((self.master, self.weights, self.inside, self.residual), shape.stacks.values()):
            layout.local_shape(("batch",), (shape.micro_batch,), axes)
            for dim in CHECKED:
                layout.local_shape((dim,), (getattr(stack, dim),), axes)
