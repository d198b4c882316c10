"""What theory puts on one device at the moment when it holds most: the arguments, what layers keep for the backward pass, gradients, one layer at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lab.attention.tiles import tile_size
from lab.book.activations import LLAMA_SAVED, SWIGLU, llama_tensors
from lab.models.shape import DecoderShape
from lab.strategies.memory import static_bytes
from lab.strategies.strategy import Strategy
from lab.strategies.terms import RECOMPUTING, Weight, elements, weights
from meshes.axes import Axes
from meshes.layouts import Layout

SAVED = {
    "full": LLAMA_SAVED["full_remat"],
    "names": LLAMA_SAVED["names_saved"],
    "dots": LLAMA_SAVED["dots_saved"],
    "selective": LLAMA_SAVED["attention_recomputed"],
    "none": LLAMA_SAVED["no_remat"],
}
"""What each of the decoder's policies keeps of a layer."""
STREAM = ("input", "attention_norm_in", "attention_normed", "attention_leaves", "mlp_norm_in", "mlp_normed")
SQUARE = ("softmax", "probabilities")
ATTENTION = ("attention_norm_in", "attention_normed", "attention_in", "q", "k", "v", *SQUARE)

Terms = dict[str, int]


def peak_terms(strategy: Strategy, style: str, shape: DecoderShape, axes: Axes) -> Terms:
    """Bytes of one device at the fullest moment of a step, by what they are; their sum is the peak.

    Copies into other layouts are those that XLA's GPU compiler makes of whole stacks; what else it keeps beside these terms is left out.
    Source: Ch. 19, `ch19.total`, with the activations of `lab.book.activations`.
    """
    return {"arguments": static_bytes(strategy, shape, axes)} | max(Device(strategy, style, shape, axes).moments, key=lambda terms: sum(terms.values()))


def saved_layer_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """What one layer keeps for its backward pass on one device."""
    return Device(strategy, "explicit", shape, axes).saved


@dataclass(frozen=True)
class Device:
    """One device's share of a step."""

    strategy: Strategy
    style: str
    shape: DecoderShape
    axes: Axes

    @property
    def moments(self) -> tuple[Terms, ...]:
        """The head, both ends of the backward pass of the layers, and what follows it; a step is fullest at one of them."""
        kept = {"activations kept": self.shape.layers * self.saved, "weights kept as used": self.kept_weights} | self.head
        # The layer that is peeled off the backward loop begins before the copy.
        copied = {"scores in a second layout": self.second_layout} | (self.layer_at_work if self.is_peeled else {})
        return (
            kept | {"logits": self.logits, "head as used": self.used(self.ends[-1:])},
            kept | self.gradients | copied,
            kept | self.gradients | self.layer_at_work,
            self.gradients | {"gradients of the ends, whole": self._in_products(self.ends)},
        )

    @property
    def head(self) -> Terms:
        """What the head leaves: its gradient, or, where that is to be scattered, the gradient of the logits until there is time for it.

        Where sequences are split its input is gathered for it, and it does not wait.
        """
        if self.is_scattered and not self.is_split_between_blocks:
            return {"gradient of the logits": self.logits}
        return {"gradient of the head": self.gradient_of(self.ends[-1:])}

    @cached_property
    def tensors(self) -> Terms:
        """Of one layer, as the book names them; the stream between blocks may be split further."""
        inside, between = map(self._tensors, (self.strategy.inside, self.strategy.residual))
        return inside | {name: between[name] for name in STREAM}

    @property
    def keys(self) -> int:
        """That meet a query at once: of the whole sequence, or of a tile of one block that goes round."""
        keys = self.strategy.meeting.local_shape(("keys",), (self.shape.length,), self.axes)[0]
        return tile_size(keys) if keys < self.shape.length else keys

    @property
    def remat(self) -> str:
        """Of blocks that go round no scores are kept, whatever else is."""
        return "selective" if self.keys < self.shape.length and self.shape.remat == "none" else self.shape.remat

    def _tensors(self, layout: Layout) -> Terms:
        shape = self.shape
        kv_heads, mlp = (self._local(self.strategy.inside, dim) for dim in ("kv_heads", "mlp"))
        dense = llama_tensors(self._tokens(layout), self.keys, shape.embed, kv_heads * shape.queries, kv_heads, shape.head_dim, mlp, shape.bytes_per_element)
        return dense | self._in_slots(dense) if shape.experts else dense

    def _in_slots(self, dense: Terms) -> Terms:
        """What experts have in place of the MLP's tensors: as many, of slots; beside a router's tokens what is sent to them and comes back."""
        shape = self.shape
        slots = self._tokens(self.strategy.inside) // shape.length * shape.experts * shape.slots
        size = slots * shape.bytes_per_element
        return dict.fromkeys(SWIGLU, size * shape.mlp) | {"mlp_in": dense["mlp_in"] + 2 * size * shape.embed}

    def _tokens(self, layout: Layout) -> int:
        return prod(layout.local_shape(("batch", "length"), (self.shape.micro_batch, self.shape.length), self.axes))

    def _local(self, layout: Layout, dim: str) -> int:
        return layout.local_shape((dim,), (getattr(self.shape, dim),), self.axes)[0]

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self.tensors[name] for name in names)

    @property
    def saved(self) -> int:
        return self._sum(SAVED[self.remat])

    @property
    def matrices(self) -> list[Weight]:
        return [weight for weight in weights(self.shape) if weight.is_matrix and weight.in_layers]

    @property
    def ends(self) -> list[Weight]:
        """The embedding, and the head where it has a matrix of its own."""
        return [weight for weight in weights(self.shape) if weight.is_matrix and not weight.in_layers]

    def used(self, some: Iterable[Weight]) -> int:
        """Copies in the dtype and the layout of the products, where weights are stored otherwise: one layer's."""
        return self._in_products(some) if self.strategy.state is None else 0

    def _in_products(self, some: Iterable[Weight]) -> int:
        return sum(self.shape.bytes_per_element * elements(weight, self.strategy.inside, self.shape, self.axes) for weight in some)

    @property
    def is_gathered(self) -> bool:
        """Weights are, for each layer (ZeRO-3)."""
        return self._is_parted(self.strategy.weights)

    @property
    def is_peeled(self) -> bool:
        """XLA's GPU compiler takes a layer out of the backward loop, to gather ahead (G2)."""
        return self.is_gathered and self.style == "explicit"

    @property
    def is_scattered(self) -> bool:
        """Gradients are (ZeRO)."""
        return self._is_parted(self.strategy.master)

    def _is_parted(self, layout: Layout) -> bool:
        return any(elements(w, layout, self.shape, self.axes) < elements(w, self.strategy.inside, self.shape, self.axes) for w in self.matrices)

    @property
    def is_split_between_blocks(self) -> bool:
        """The stream is, and gathered for each block (sequence parallelism)."""
        return self._tokens(self.strategy.residual) < self._tokens(self.strategy.inside)

    @property
    def is_recomputed(self) -> bool:
        return self.shape.remat in RECOMPUTING

    @property
    def kept_weights(self) -> int:
        """Without recomputation the backward pass uses the copies of the forward pass."""
        return 0 if self.is_recomputed else self.shape.layers * self.used(self.matrices)

    @property
    def held(self) -> Layout:
        """Of a gradient once its layer is done."""
        return self.strategy.master if self.strategy.is_anchored else self.strategy.weights

    def gradient_of(self, some: Iterable[Weight]) -> int:
        """In the dtype of the products, as the backward pass leaves it."""
        return sum(self.shape.bytes_per_element * weight.per_pass * elements(weight, self.held, self.shape, self.axes) for weight in some)

    @property
    def gradients(self) -> Terms:
        """Of all layers: those of float32 weights, and sums over micro-batches, are float32."""
        is_float32 = self.strategy.state is None or self.strategy.is_anchored
        layers = self.gradient_of(self.matrices) * (4 // self.shape.bytes_per_element if is_float32 else 1)
        added = 4 * sum(w.per_pass * elements(w, self.held, self.shape, self.axes) for w in weights(self.shape)) if self.shape.accumulation > 1 else 0
        return {"gradients of the layers": layers, "gradients added up over micro-batches": added}

    @property
    def logits(self) -> int:
        return self._tokens(self.strategy.inside) * self._local(self.strategy.inside, "vocab") * self.shape.bytes_per_element

    @property
    def second_layout(self) -> int:
        """XLA's GPU compiler copies the softmax of all layers before the backward pass."""
        return self.shape.layers * self.tensors["softmax"] if self.remat == "none" else 0

    @property
    def relaid(self) -> int:
        """XLA's GPU compiler copies two stacks of float32 masters for both loops, so that their split dim comes first."""
        some = [weight for weight in self.matrices if weight.scope.endswith(("gate", "query"))]
        return sum(4 * weight.per_pass * elements(weight, self.strategy.weights, self.shape, self.axes) for weight in some)

    @property
    def gathered_streams(self) -> int:
        """XLA's GPU compiler gathers with the split dim first, and copies: inputs of both blocks, and gradients of what they gave."""
        stream = self._tokens(self.strategy.inside) * self.shape.embed * self.shape.bytes_per_element
        return 4 * stream if self.is_split_between_blocks else 0

    @property
    def layer_at_work(self) -> Terms:
        """All tensors of the layer that is gone through backwards; or, where its scores are largest, attention's and the gradients of the square ones."""
        layer, attention = self._sum(SAVED["none"]), self._sum(ATTENTION) + self._sum(SQUARE)
        if not self.is_recomputed:
            # Of stacks that are kept, a layer that is peeled off the loop has slices of its own.
            layer, attention = self.saved if self.is_peeled else 0, self._sum(SQUARE) * (1 if self.remat == "none" else 2)
        used = self.used(self.matrices) if self.is_recomputed else 0
        return {
            "one layer's tensors": max(layer, attention),
            "gathered streams in a second layout": self.gathered_streams,
            "one layer's weights as used": used,
            "the next layer's, gathered ahead": used if self.is_peeled else 0,
            "gate and query as gathers read them": self.relaid if self.is_gathered and self.is_recomputed else 0,
            "one layer's gradients before they are scattered": self._in_products(self.matrices) if self.strategy.is_anchored else 0,
        }
