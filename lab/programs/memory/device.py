"""One device's share of a step in sizes: layers' tensors, weights, tokens, and what of them is whole where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lab.attention import tiles
from lab.attention.tiles import tile_size
from lab.book.activations import SWIGLU, llama_tensors
from lab.book.context import kv_head_copies
from lab.meshes.axes import Axes
from lab.meshes.layouts import Layout
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import RECOMPUTING, Weight, elements, weights

STREAM = ("input", "attention_norm_in", "attention_normed", "attention_leaves", "mlp_norm_in", "mlp_normed")
OF_GATE = ("gate", "sigmoid", "sigmoid_slope", "silu")

Sizes = dict[str, int]
"""Bytes of one layer's tensors, as the book names them."""


@dataclass(frozen=True)
class Device:
    """One device's share of a step.

    Attributes:
      is_cramped: the step has no room (G10).
      is_in_branch: it is a job of a pipeline, one branch of a conditional.
    """

    strategy: Strategy
    style: str
    shape: DecoderShape
    axes: Axes
    is_cramped: bool = False
    is_in_branch: bool = False

    @property
    def stacks(self) -> list[Device]:
        """The same of each stack of layers alone."""
        return [replace(self, shape=stack) for stack in self.shape.stacks.values()]

    @cached_property
    def tensors(self) -> Sizes:
        """Of one layer, as the book names them; the stream between blocks may be split further, and keys and values are
        those that queries meet."""
        inside, between = map(self._tensors, (self.strategy.inside, self.strategy.residual))
        return inside | {name: between[name] for name in STREAM} | dict.fromkeys(("k", "v"), self.keys_met)

    def _tensors(self, layout: Layout) -> Sizes:
        shape = self.shape
        kv_heads, mlp = (self.local(self.strategy.inside, dim) for dim in ("kv_heads", "mlp"))
        dense = llama_tensors(
            self.tokens(layout),
            self.keys,
            shape.embed,
            kv_heads * shape.queries,
            kv_heads,
            shape.head_dim,
            mlp,
            shape.bytes_per_element,
        )
        dense["q"] = dense["q"] * shape.score_dim // shape.head_dim
        sizes = dense | self._in_slots(dense) if shape.experts else dense
        return sizes if shape.is_gated else sizes | dict.fromkeys(OF_GATE, 0)

    def _in_slots(self, dense: Sizes) -> Sizes:
        """What experts have in place of the MLP's tensors: as many, of slots, or of room for all tokens of all ranks;
        beside a router's tokens what is sent to them and comes back."""
        shape, tokens = self.shape, self.tokens(self.strategy.inside)
        ranks = shape.experts // self.local(self.strategy.weights, "experts")
        rows = (
            tokens * shape.top_k * ranks if shape.is_dropless else tokens // shape.length * shape.experts * shape.slots
        )
        size = rows * shape.bytes_per_element
        return dict.fromkeys(SWIGLU, size * shape.mlp) | {"mlp_in": dense["mlp_in"] + 2 * size * shape.embed}

    def total(self, names: Iterable[str]) -> int:
        return sum(self.tensors[name] for name in names)

    def tokens(self, layout: Layout) -> int:
        """Of one micro-batch."""
        return prod(layout.local_shape(("batch", "length"), (self.shape.micro_batch, self.shape.length), self.axes))

    @property
    def sequences(self) -> int:
        """Of one micro-batch."""
        return self.strategy.inside.local_shape(("batch",), (self.shape.micro_batch,), self.axes)[0]

    def local(self, layout: Layout, dim: str) -> int:
        return layout.local_shape((dim,), (getattr(self.shape, dim),), self.axes)[0]

    @property
    def stream(self) -> int:
        """At the entrance of a block."""
        return self.tokens(self.strategy.inside) * self.shape.embed * self.shape.bytes_per_element

    @property
    def logits(self) -> int:
        """Of all predictions of every token."""
        return self.shape.predictions * (
            self.tokens(self.strategy.inside) * self.local(self.strategy.inside, "vocab") * self.shape.bytes_per_element
        )

    @property
    def is_split_between_blocks(self) -> bool:
        """The stream is, and gathered for each block (sequence parallelism)."""
        return self.tokens(self.strategy.residual) < self.tokens(self.strategy.inside)

    @property
    def is_vocab_split(self) -> bool:
        return self.local(self.strategy.inside, "vocab") < self.shape.vocab

    @property
    def is_recomputed(self) -> bool:
        return self.shape.remat in RECOMPUTING

    # Attention.

    @property
    def is_tiled(self) -> bool:
        """Attention to a sequence that is split, where it is written out, makes scores tile by tile."""
        return self.style == "explicit" and (
            bool(self.strategy.core.rules) or self.strategy.hooks.attend is tiles.attend
        )

    @property
    def remat(self) -> str:
        """Of tiles no scores are kept, whatever else is."""
        return "selective" if self.is_tiled and self.shape.remat == "none" else self.shape.remat

    @property
    def is_ring(self) -> bool:
        return bool(self.strategy.core.axes_of("keys", self.axes.names))

    @property
    def keys(self) -> int:
        """That meet a query at once: of the whole sequence, or of a tile of a piece of one block."""
        keys = self.strategy.meeting.local_shape(("keys",), (self.shape.length,), self.axes)[0] // self.strategy.pieces
        return tile_size(keys) if self.is_tiled else keys

    @property
    def keys_met(self) -> int:
        """Bytes of the keys of one block, for the heads that this rank has then."""
        tokens = prod(
            self.strategy.meeting.local_shape(("batch", "keys"), (self.shape.micro_batch, self.shape.length), self.axes)
        )
        heads, ranks = (
            self.local(self.strategy.inside, "kv_heads"),
            prod(self.axes[axis] for axis in self.strategy.core.axes_of("kv_heads", self.axes.names)),
        )
        return (
            tokens * heads * kv_head_copies(heads, ranks) // ranks * self.shape.head_dim * self.shape.bytes_per_element
        )

    # Weights.

    @property
    def matrices(self) -> list[Weight]:
        return [weight for weight in weights(self.shape) if weight.is_matrix and weight.in_layers]

    @property
    def mtp_matrices(self) -> list[Weight]:
        """Of what predicts the token after the next."""
        return [weight for weight in weights(self.shape) if weight.is_matrix and weight.stack in ("mtp", "join")]

    @property
    def ends(self) -> list[Weight]:
        """The embedding, and the head where it has a matrix of its own."""
        return [weight for weight in weights(self.shape) if weight.scope in ("embedding", "head")]

    def used(self, some: Iterable[Weight]) -> int:
        """Copies in the dtype and the layout of the products, where weights are stored otherwise: one layer's."""
        return self.in_products(some) if self.strategy.state is None else 0

    def in_products(self, some: Iterable[Weight]) -> int:
        return sum(
            self.shape.bytes_per_element * elements(weight, self.strategy.inside, self.shape, self.axes)
            for weight in some
        )

    def count(self, some: Iterable[Weight], layout: Layout) -> int:
        """Numbers of all their layers."""
        return sum(w.per_pass * elements(w, layout, self.shape, self.axes) for w in some)

    @property
    def is_anchored(self) -> bool:
        """Gradients are those of the parts from the start; declared, ZeRO-2 is ZeRO-1."""
        return self.strategy.is_anchored and self.style == "explicit"

    @property
    def is_gathered(self) -> bool:
        """Weights are, for each layer (ZeRO-3)."""
        return self.splits(self.strategy.weights, self.strategy.inside)

    def is_gathered_along(self, dims: Dims) -> bool:
        """Of a weight, parts along one of these dims."""
        stored, used = self.strategy.weights, self.strategy.inside
        names = self.axes.names
        return any(set(stored.axes_of(dim, names)) - set(used.axes_of(dim, names)) for dim in dims)

    def splits(self, layout: Layout, other: Layout) -> bool:
        """Of a layer's matrices, further than the other does."""
        return any(
            elements(w, layout, self.shape, self.axes) < elements(w, other, self.shape, self.axes)
            for w in self.matrices
        )
