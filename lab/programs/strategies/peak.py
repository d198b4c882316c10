"""What theory puts on one device at the moment when it holds most: the arguments, what layers keep for the backward
pass, gradients, one layer at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from lab.book.activations import LLAMA_SAVED, SWIGLU, llama_tensors
from lab.book.context import kv_head_copies
from lab.book.memory import model_state_bytes
from lab.meshes.axes import Axes
from lab.meshes.layouts import Layout
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.memory import static_bytes
from lab.programs.strategies.memory_terms import MemoryTerm, Terms
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import RECOMPUTING, Weight, elements, weights

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
ATTENTION = ("attention_norm_in", "attention_normed", "attention_in", "q", "k", "v")
TILE = 512
"""Keys of a tile, at most, where scores are made tile by tile."""

Sizes = dict[str, int]
"""Bytes of one layer's tensors, as the book names them."""


def peak_terms(
    strategy: Strategy, style: str, shape: DecoderShape, axes: Axes, memory_bytes: int | None = None
) -> Terms:
    """Bytes of one device at the fullest moment of a step, by term; their sum is the peak.

    Copies into other layouts are those that XLA's GPU compiler makes of whole stacks; what else it keeps beside these
    terms is left out, and so is what its schedule moves (G11). Of a step that has no room in a chip of `memory_bytes`,
    where that is given, it makes again what it would else keep: probabilities, and the zeros that gradients begin with
    (G10).
    Source: Ch. 19, `ch19.total`, with the activations of `lab.book.activations`.
    """
    static = {MemoryTerm.ARGUMENTS: static_bytes(strategy, shape, axes)}
    terms = static | fullest(Device(strategy, style, shape, axes).moments)
    if memory_bytes is None or sum(terms.values()) <= budget(memory_bytes, static[MemoryTerm.ARGUMENTS]):
        return terms
    return static | fullest(Device(strategy, style, shape, axes, is_cramped=True).moments)


def fullest(moments: Iterable[Terms]) -> Terms:
    return max(moments, key=lambda terms: sum(terms.values()))


def budget(memory_bytes: int, arguments: int) -> int:
    """What XLA's GPU compiler lets a step hold: its arguments, and 95 % of what they leave of 80 % of the chip."""
    return int(0.95 * 0.8 * memory_bytes + 0.05 * arguments)


def saved_layer_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """What one layer keeps for its backward pass on one device."""
    return Device(strategy, "explicit", shape, axes).saved


@dataclass(frozen=True)
class Device:
    """One device's share of a step; `is_cramped` where the step has no room."""

    strategy: Strategy
    style: str
    shape: DecoderShape
    axes: Axes
    is_cramped: bool = False

    @property
    def moments(self) -> tuple[Terms, ...]:
        """A layer's scores, the head, both ends of the backward pass of the layers, what follows it, and the update; a
        step is fullest at one of them."""
        saved = {
            MemoryTerm.SAVED_ACTIVATIONS: self.shape.layers * self.saved,
            MemoryTerm.SAVED_WEIGHTS: self.kept_weights,
        }
        kept = saved | self.ends_waiting
        zeros = {} if self.is_cramped else self.gradients
        # The layer that is peeled off the backward loop begins before the copy, and what it gives is scattered after
        # the loop.
        copied = (
            {MemoryTerm.SCORES_RELAYOUT: self.second_layout} | zeros | (self.layer_at_work if self.is_peeled else {})
        )
        peeled = (
            {MemoryTerm.LAYER_GRADS_UNSCATTERED: self._in_products(self.matrices)} | self.head_later
            if self.is_peeled
            else {}
        )
        return (
            saved | self.going_forward,
            saved | self.at_head,
            kept | copied,
            kept | self.gradients | self.layer_at_work,
            self.gradients | {MemoryTerm.EMBEDDING_AND_HEAD_GRADS: self._in_products(self.ends)} | peeled,
            self.optimizer_update,
        )

    @property
    def ends_waiting(self) -> Terms:
        """Of head and embedding, through the backward pass of the layers: what the head's gradient is made of, or the
        gradient where that is smaller; and the zeros that the embedding's begins with, which wait for nothing."""
        zeros = {MemoryTerm.EMBEDDING_GRAD_ZEROS: 0 if self.is_cramped else self._in_products(self.ends[:1])}
        early = self._in_products(self.ends[-1:])
        if self.is_declared_zero3:
            return {MemoryTerm.HEAD_GRAD: early} | zeros
        # Where the stream is split, the scatter of what the head hands back is begun first, and its gradient left for
        # later.
        if not self.is_split_between_blocks and early < sum(self.head_later.values()):
            return {MemoryTerm.HEAD_GRAD: early}
        return (
            self.head_later
            if self.is_peeled or self.is_split_between_blocks or self.strategy.state
            else self.head_later | zeros
        )

    @property
    def at_head(self) -> Terms:
        """When the stream's gradient is made, of the head as it is used; where the head's is made before, what the
        layers' loop begins with waits, too."""
        early = {
            MemoryTerm.HEAD_GRAD: self._in_products(self.ends[-1:]),
            MemoryTerm.WEIGHTS_RELAYOUT: self.relaid,
        }
        waiting = early | ({} if self.is_cramped else self.gradients) if self.is_declared_zero3 else self.ends_waiting
        return waiting | {MemoryTerm.LOGITS: self.logits, MemoryTerm.HEAD_WEIGHTS_IN_USE: self.used(self.ends[-1:])}

    @property
    def head_later(self) -> Terms:
        """What the gradient of the head is made of."""
        return {MemoryTerm.LOGITS_GRAD: self.logits, MemoryTerm.HEAD_INPUT: self.stream}

    @property
    def is_declared_zero3(self) -> bool:
        """XLA's GPU compiler makes the head's gradient at once where nothing but a scatter over all devices follows it,
        and scatters it last."""
        return (
            self.is_gathered
            and self.style == "declared"
            and not self.strategy.copies(self.ends[-1].dims)
            and not self.is_vocab_split
        )

    @property
    def is_vocab_split(self) -> bool:
        return self._local(self.strategy.inside, "vocab") < self.shape.vocab

    @cached_property
    def tensors(self) -> Sizes:
        """Of one layer, as the book names them; the stream between blocks may be split further, and keys and values are
        those that queries meet."""
        inside, between = map(self._tensors, (self.strategy.inside, self.strategy.residual))
        return inside | {name: between[name] for name in STREAM} | dict.fromkeys(("k", "v"), self.keys_met)

    @property
    def is_tiled(self) -> bool:
        """Attention to a sequence that is split, where it is written out, makes scores tile by tile."""
        return bool(self.strategy.core.rules) and self.style == "explicit"

    @property
    def is_ring(self) -> bool:
        return bool(self.strategy.core.axes_of("keys", self.axes.names))

    @property
    def keys(self) -> int:
        """That meet a query at once: of the whole sequence, or of a tile of a piece of one block."""
        keys = self.strategy.meeting.local_shape(("keys",), (self.shape.length,), self.axes)[0] // self.strategy.pieces
        return max(size for size in range(1, min(keys, TILE) + 1) if keys % size == 0) if self.is_tiled else keys

    @property
    def remat(self) -> str:
        """Of tiles no scores are kept, whatever else is."""
        return "selective" if self.is_tiled and self.shape.remat == "none" else self.shape.remat

    def _tensors(self, layout: Layout) -> Sizes:
        shape = self.shape
        kv_heads, mlp = (self._local(self.strategy.inside, dim) for dim in ("kv_heads", "mlp"))
        dense = llama_tensors(
            self._tokens(layout),
            self.keys,
            shape.embed,
            kv_heads * shape.queries,
            kv_heads,
            shape.head_dim,
            mlp,
            shape.bytes_per_element,
        )
        return dense | self._in_slots(dense) if shape.experts else dense

    def _in_slots(self, dense: Sizes) -> Sizes:
        """What experts have in place of the MLP's tensors: as many, of slots, or of room for all tokens of all ranks;
        beside a router's tokens what is sent to them and comes back."""
        shape, tokens = self.shape, self._tokens(self.strategy.inside)
        ranks = shape.experts // self._local(self.strategy.weights, "experts")
        rows = (
            tokens * shape.top_k * ranks if shape.is_dropless else tokens // shape.length * shape.experts * shape.slots
        )
        size = rows * shape.bytes_per_element
        return dict.fromkeys(SWIGLU, size * shape.mlp) | {"mlp_in": dense["mlp_in"] + 2 * size * shape.embed}

    def _tokens(self, layout: Layout) -> int:
        return prod(layout.local_shape(("batch", "length"), (self.shape.micro_batch, self.shape.length), self.axes))

    def _local(self, layout: Layout, dim: str) -> int:
        return layout.local_shape((dim,), (getattr(self.shape, dim),), self.axes)[0]

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self.tensors[name] for name in names)

    @property
    def saved(self) -> int:
        return self._sum(SAVED[self.remat]) + (self.choices if self.shape.experts else 0)

    @property
    def choices(self) -> int:
        """What a router chose, in 4 bytes each: kept under every policy, lest the backward pass choose otherwise."""
        shape, tokens = self.shape, self._tokens(self.strategy.inside)
        by_experts = tokens // shape.length * shape.experts * shape.slots
        return 4 * (by_experts if shape.router == "expert_choice" else tokens * shape.top_k)

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
        return sum(
            self.shape.bytes_per_element * elements(weight, self.strategy.inside, self.shape, self.axes)
            for weight in some
        )

    @property
    def is_gathered(self) -> bool:
        """Weights are, for each layer (ZeRO-3)."""
        return self._splits(self.strategy.weights, self.strategy.inside)

    @property
    def is_peeled(self) -> bool:
        """XLA's GPU compiler takes a layer out of the backward loop, to gather ahead (G2)."""
        return self.is_gathered and self.style == "explicit"

    @property
    def is_anchored(self) -> bool:
        """Gradients are those of the parts from the start; declared, ZeRO-2 is ZeRO-1."""
        return self.strategy.is_anchored and self.style == "explicit"

    @property
    def is_scattered_in_layers(self) -> bool:
        """Gradients are, to parts that weights have not, from a whole that waits: ZeRO-2, and declared ZeRO-1 where
        micro-batches are added up."""
        return self.is_anchored or (
            self.style == "declared" and self.strategy.state is not None and self.shape.accumulation > 1
        )

    def _splits(self, layout: Layout, other: Layout) -> bool:
        """Of a layer's matrices, further than the other does."""
        return any(
            elements(w, layout, self.shape, self.axes) < elements(w, other, self.shape, self.axes)
            for w in self.matrices
        )

    @property
    def is_split_between_blocks(self) -> bool:
        """The stream is, and gathered for each block (sequence parallelism)."""
        return self._tokens(self.strategy.residual) < self._tokens(self.strategy.inside)

    @property
    def is_recomputed(self) -> bool:
        return self.shape.remat in RECOMPUTING

    @property
    def kept_weights(self) -> int:
        """Without recomputation the backward pass uses the copies of the forward pass; a weight that is held to a
        layout is one, too."""
        kept = self.used(self.matrices) if self.style == "explicit" else self._in_products(self.matrices)
        return 0 if self.is_recomputed else self.shape.layers * kept

    @property
    def held(self) -> Layout:
        """Of a gradient once its layer is done; declared, those of ZeRO-1 are scattered as they come, too (X7)."""
        return self.strategy.master if self.is_anchored or self.style == "declared" else self.strategy.weights

    @property
    def added(self) -> int:
        """Sums over micro-batches; declared, the embedding's are scattered last: else tokens and cotangents would be
        gathered instead (X2)."""
        late = self.ends[:1] if self.style == "declared" else []
        others = [weight for weight in weights(self.shape) if weight not in late]
        return 4 * (self._count(late, self.strategy.weights) + self._count(others, self.held))

    def gradient_of(self, some: Iterable[Weight]) -> int:
        """In the dtype of the products, as the backward pass leaves it."""
        return self.shape.bytes_per_element * self._count(some, self.held)

    @property
    def gradients(self) -> Terms:
        """Of all layers: those of float32 weights, and sums over micro-batches, are float32."""
        is_float32 = self.strategy.state is None or self.is_anchored
        layers = self.gradient_of(self.matrices) * (4 // self.shape.bytes_per_element if is_float32 else 1)
        return {
            MemoryTerm.LAYERS_GRADS: layers,
            MemoryTerm.ACCUMULATED_GRADS: self.added if self.shape.accumulation > 1 else 0,
        }

    @property
    def optimizer_update(self) -> Terms:
        """Where weights in use are a copy: the whole of one stack, gathered, and new states in the layout of gathers,
        their split dim first."""
        if self.strategy.state is None:
            return self.embedding_update if self.is_embedding_scattered_swapped else {}
        parts = [w for w in (*self.matrices, *self.ends) if self.strategy.splits_further(w.dims)]
        moved = [w for w in parts if not self.strategy.splits_further(w.dims[-1:])]
        state = model_state_bytes(self._count(moved, self.strategy.master), weight_bytes=0, gradient_bytes=0)
        return {
            MemoryTerm.GATHERED_NEW_WEIGHTS: self.shape.bytes_per_element
            * max(self._count([w], self.strategy.weights) for w in parts),
            MemoryTerm.OPTIMIZER_STATE_RELAYOUT: int(state),
        }

    @property
    def is_embedding_scattered_swapped(self) -> bool:
        """Typed, XLA's GPU compiler adds up the gradient of an embedding whose rows are all here with its dims swapped,
        and hands it to the update so."""
        is_own = len(self.ends) == 2 and not (self.is_gathered or self.is_vocab_split)
        return self.style == "typed" and self.shape.accumulation == 1 and is_own

    @property
    def embedding_update(self) -> Terms:
        """Read with its dims swapped, the embedding's state cannot be written in its place."""
        state = model_state_bytes(self._count(self.ends[:1], self.strategy.weights), weight_bytes=0, gradient_bytes=0)
        return self.gradients | {
            MemoryTerm.EMBEDDING_AND_HEAD_GRADS: self._in_products(self.ends),
            MemoryTerm.OPTIMIZER_STATE_RELAYOUT: int(state),
        }

    def _count(self, some: Iterable[Weight], layout: Layout) -> int:
        """Numbers of all their layers."""
        return sum(w.per_pass * elements(w, layout, self.shape, self.axes) for w in some)

    @property
    def logits(self) -> int:
        return (
            self._tokens(self.strategy.inside)
            * self._local(self.strategy.inside, "vocab")
            * self.shape.bytes_per_element
        )

    @property
    def second_layout(self) -> int:
        """XLA's GPU compiler copies the softmax of all layers before the backward pass."""
        return self.shape.layers * self.tensors["softmax"] if self.remat == "none" else 0

    @property
    def relaid(self) -> int:
        """XLA's GPU compiler copies two stacks of float32 masters for both loops: for gathers, so that their split dim
        comes first; for experts, whose products are batched, so that what these sum over comes last."""
        ends = ("gate", "query") if self.is_gathered else ("gate", "up") if self.shape.experts else ()
        some = [weight for weight in self.matrices if ends and weight.scope.endswith(ends)]
        return 4 * self._count(some, self.strategy.weights)

    @property
    def stream(self) -> int:
        """At the entrance of a block."""
        return self._tokens(self.strategy.inside) * self.shape.embed * self.shape.bytes_per_element

    @property
    def layer_at_work(self) -> Terms:
        """The layer that is gone through backwards, at its fullest."""
        return fullest(self.at_work) | {
            MemoryTerm.NEXT_LAYER_WEIGHTS: self.used(self.matrices) if self.is_peeled and self.is_recomputed else 0,
            MemoryTerm.WEIGHTS_RELAYOUT: self.relaid if self.is_recomputed else 0,
            MemoryTerm.LAYER_GRADS_UNSCATTERED: self._in_products(self.matrices) if self.is_scattered_in_layers else 0,
        }

    @property
    def at_work(self) -> list[Terms]:
        """Where it may be fullest."""
        if self.is_tiled:
            return [self.in_tiles]
        others = [self.in_gathers] if self.is_split_between_blocks else [self.in_mlp] if self.is_recomputed else []
        return [*others, self.in_attention]

    @property
    def in_mlp(self) -> Terms:
        """When its MLP's gradients are made: what attention will need, the MLP's tensors and the gradients of two, and
        streams with theirs."""
        streams = self._sum(("attention_in", "mlp_in")) + 3 * self.stream + 2 * self.tensors["input"]
        return {
            MemoryTerm.LAYER_ACTIVATIONS: self._sum(("q", "k", "v", "softmax", "attended"))
            + 4 * self.tensors["hidden"]
            + streams
        } | self.used_but("down")

    @property
    def in_attention(self) -> Terms:
        """When its attention's are, where scores are largest: what it keeps, the gradients of scores, and the MLP's
        tensors until its weights' are made."""
        if self.is_recomputed:
            inner = self._sum(ATTENTION) + 4 * self.tensors["hidden"]
            return (
                self.scores_and_gradients | {MemoryTerm.LAYER_ACTIVATIONS: inner} | self.used_but("down", "up", "gate")
            )
        # Of stacks that are kept, a layer that is peeled off the loop has slices of its own.
        slices = {MemoryTerm.LAYER_ACTIVATIONS: self.saved if self.is_peeled else 0}
        return fullest(
            [
                slices,
                self.scores_and_gradients
                if self.remat == "selective"
                else {MemoryTerm.LAYER_ACTIVATIONS: self._sum(SQUARE)},
            ]
        )

    @property
    def scores_and_gradients(self) -> Terms:
        """Of a layer whose attention is computed again. Through a softmax goes back what needs its scores, their
        gradients and those of the probabilities; these themselves wait until the gradients of values are made of
        them."""
        scores, probabilities = (self.tensors[name] for name in SQUARE)
        return {
            MemoryTerm.SCORES_AND_GRADS: 2 * scores + probabilities,
            MemoryTerm.SAVED_PROBABILITIES: probabilities if self.keeps_probabilities else 0,
        }

    @property
    def keeps_probabilities(self) -> bool:
        """Where a whole layer is computed again its attention comes first, since its MLP needs what that adds. XLA's
        GPU compiler makes the gradients of values at once where no transfer is to be hidden; declared, it makes the
        probabilities once more, and so it does where a step has no room."""
        return (
            self.shape.remat == "full" and self.style == "explicit" and self.is_moved_in_layers and not self.is_cramped
        )

    @property
    def is_moved_in_layers(self) -> bool:
        """Something is, as they are gone through backwards: weights, their gradients, or parts of products."""
        return self.is_gathered or self.is_anchored or self._splits(self.strategy.inside, Layout())

    @property
    def going_forward(self) -> Terms:
        """A layer's attention: scores and probabilities, and what is made before the loop: the mask of a byte a score,
        and in float32 what hides a score."""
        if self.is_tiled:
            return {}
        scores, probabilities = (self.tensors[name] for name in SQUARE)
        return {
            MemoryTerm.SCORES_AND_PROBABILITIES: scores + probabilities,
            MemoryTerm.ATTENTION_MASK: scores // 4 + scores if self.shape.causal else 0,
            MemoryTerm.WEIGHTS_RELAYOUT: self.relaid,
        }

    @property
    def in_gathers(self) -> Terms:
        """When gradients of queries, keys and values are, of a stream that is split between blocks: both blocks'
        inputs, unless they are kept, and gradients of what both gave are gathered; queries, keys and values each have a
        gradient of the whole, and their sum."""
        inner = (
            self._sum(("q", "k", "v", "attended")) + 4 * self.tensors["hidden"] + 4 * self.tensors["input"]
            if self.is_recomputed
            else 0
        )
        return {
            MemoryTerm.GATHERED_RESIDUALS_AND_GRADS: (8 if self.is_recomputed else 6) * self.stream,
            MemoryTerm.LAYER_ACTIVATIONS: inner,
        } | self.used_but("down")

    @property
    def in_tiles(self) -> Terms:
        """When attention's are, tile by tile. Scores and their gradients are float32 and, for products, rounded.
        Queries, and what comes back to them, stand in the layouts of products: of a tile, and of a block."""
        q, keys, float32 = self.tensors["q"], self.keys_met, 4 // self.shape.bytes_per_element
        around = self.is_ring
        return {
            MemoryTerm.TILE_SCORES_AND_GRADS: (2 * self.tensors["softmax"] + 3 * self.tensors["probabilities"])
            // self.strategy.pieces,
            MemoryTerm.QUERIES_AND_OUTPUTS_RELAYOUT: (7 if around else 6) * q,
            MemoryTerm.QUERY_GRADS_F32: (2 if around else 1) * q * float32,
            MemoryTerm.KEYS_AND_VALUES: 4 * keys,
            MemoryTerm.KEY_AND_VALUE_GRADS_F32: (6 if around else 2) * keys * float32,
            MemoryTerm.RESIDUALS_AND_MLP_ACTIVATIONS: 4 * self.stream + (4 if around else 1) * self.tensors["hidden"],
        } | self.used_but("down")

    def used_but(self, *done: str) -> Terms:
        """Weights that are made for this layer again, without those whose products are done."""
        return {
            MemoryTerm.LAYER_WEIGHTS_IN_USE: self.used(w for w in self.matrices if not w.scope.endswith(done))
            if self.is_recomputed
            else 0
        }

    @property
    def keys_met(self) -> int:
        """Of one block, for the heads that this rank has then."""
        tokens = prod(
            self.strategy.meeting.local_shape(("batch", "keys"), (self.shape.micro_batch, self.shape.length), self.axes)
        )
        heads, ranks = (
            self._local(self.strategy.inside, "kv_heads"),
            prod(self.axes[axis] for axis in self.strategy.core.axes_of("kv_heads", self.axes.names)),
        )
        return (
            tokens * heads * kv_head_copies(heads, ranks) // ranks * self.shape.head_dim * self.shape.bytes_per_element
        )
