"""Sizes of a decoder and of the batch that it is trained on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import ceil, inf
from typing import Any, ClassVar, Self

import jax.numpy as jnp

from lab import zoo
from lab.attention.mask import Mask
from lab.meshes.errors import UsageError

DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}
ROUTERS = ("softmax", "sigmoid_bias", "expert_choice")
SMALL_LATENT = {"query_rank": 24, "kv_rank": 16, "rope_dim": 6}
DISPATCHES = ("slots", "padded", "ragged")
ACTIVATIONS = ("swiglu", "relu2", "gelu")
REMATS = ("none", "selective", "dots", "names", "full")
OFFLOAD = "offload"
"""Of `remat`: as "full", and the layers' inputs wait in the memory of the host."""


def indexable(**sizes: int) -> None:
    """Raises UsageError that names the first of the sizes whose entries int32 cannot number, as JAX's indices and XLA's
    dims have to."""
    for name, size in sizes.items():
        if size >= 2**31:
            raise UsageError(f"{name}={size}: expected less than 2^31, the range of int32 indices")


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a model, of its batch, and what its training step keeps.

    Attributes:
      layers: two or more: of a loop that runs once XLA leaves no loop, and merges the gathers of forward and backward
        pass.
      batch: sequences of one step, over all devices and micro-batches.
      length: tokens of a sequence.
      embed: width of the residual stream.
      kv_heads: heads of keys and values; each serves `queries` heads.
      queries: heads of queries for each of keys and values.
      head_dim: width of a head.
      mlp: width of an MLP, or of one expert.
      vocab: rows of the table of tokens.
      experts: of a layer, each `mlp` wide, in place of its one MLP; 0: a dense decoder.
      top_k: experts that a token visits.
      capacity_factor: slots of an expert for a sequence's tokens, relative to what balance would need; what finds none
        is dropped.
      shared: experts that every token visits besides.
      dense_layers: the first, which have one MLP in place of experts: a stack and a loop of their own.
      dense_mlp: its width; 0: as wide as all experts that a token visits elsewhere (DeepSeek-V2 and V3).
      router: "softmax": tokens choose by a softmax over experts; "sigmoid_bias": by sigmoids and a bias that each step
        moves towards balance (DeepSeek-V3); "expert_choice": each expert takes as many tokens as it has slots. That
        looks at tokens to come, so a causal model cannot generate with it.
      routed_scale: by which what chosen experts give is multiplied, after their weights have come to sum to 1
        (DeepSeek-V3: 2.5).
      nodes: that experts lie on, in order and equally many on each.
      node_limit: nodes that a token's experts lie on at most; its copy goes to a node once, in one of the node's own
        slots.
      dispatch: "slots": `capacity_factor` sets how many tokens an expert takes; "padded" or "ragged": all that come,
        sent in buffers for the worst case or, where the backend can, in as many rows as there are.
      balance: weight of the loss that keeps experts in balance; its gradient is added to that of the loss, itself it is
        not.
      z: the same of the loss that keeps a router's logits small.
      activation: of an MLP, and of each expert: "swiglu": silu(x gate) * x up, of three matrices; "relu2" and "gelu":
        the square of the ReLU, or the GELU, of x up, of two (So et al. 2021; Hendrycks & Gimpel 2016).
      normed_heads: queries and keys pass through an RMSNorm over each head before they are rotated, with [head_dim]
        weights each (Qwen3).
      query_rank, kv_rank: of the latent vectors of a token that queries, and keys with values, are made of
        (multi-head latent attention, DeepSeek-V2; arXiv:2405.04434); 0: of the token itself.
      rope_dim: dims that carry positions under latent attention, beside the `head_dim` others: of each query head, and
        of one key that all heads have.
      tied: the head multiplies with the embedding's table.
      mtp: 1: a further layer predicts the token after the next from the stream and the next token, with the embedding
        and the head of the first prediction (multi-token prediction, DeepSeek-V3, section 2.2); 0: none does.
      mtp_weight: of its loss, which is added to that of the next token.
      dtype: of activations and of weights in use, as XLA names it: "bf16", "f16" (losses are scaled) or "f32".
        Master weights and moments are float32.
      remat: what the backward pass computes again: "none": nothing; "selective": scores and softmax (Korthikanti et al.
        2022); "dots": all but products with weights; "names": all but what a block adds to the residual; "full": each
        layer from its input; "offload": the same, and the input waits in the host's memory.
      accumulation: micro-batches of one step, one after the other.
      causal: a token attends to none after it.
      window: it attends to this many tokens, its own the last; 0 for all.

    Raises:
      UsageError: a size below the least or beyond int32, an unknown dtype or remat, or sizes that do not divide.
    """

    layers: int = 4
    batch: int = 32
    length: int = 512
    embed: int = 2048
    kv_heads: int = 8
    queries: int = 2
    head_dim: int = 128
    mlp: int = 5632
    vocab: int = 32000
    tied: bool = False
    activation: str = "swiglu"
    normed_heads: bool = False
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    mtp: int = 0
    mtp_weight: float = 0.3
    dtype: str = "bf16"
    remat: str = "full"
    accumulation: int = 1
    causal: bool = True
    window: int = 0
    experts: int = 0
    top_k: int = 2
    capacity_factor: float = 1.25
    shared: int = 0
    dense_layers: int = 0
    dense_mlp: int = 0
    router: str = "softmax"
    routed_scale: float = 1.0
    nodes: int = 1
    node_limit: int = 1
    dispatch: str = "slots"
    balance: float = 0.01
    z: float = 0.0

    CHOICES: ClassVar[tuple[str, ...]] = (
        "tied",
        "activation",
        "normed_heads",
        "query_rank",
        "kv_rank",
        "rope_dim",
        "mtp",
        "mtp_weight",
        "remat",
        "accumulation",
        "causal",
        "window",
        "top_k",
        "shared",
        "dense_layers",
        "router",
        "routed_scale",
        "nodes",
        "node_limit",
        "dispatch",
        "balance",
        "z",
    )
    """What is no size: numbers are checked with the same at small sizes."""

    def __post_init__(self) -> None:
        for name, least in (
            # Without recomputation nothing is merged.
            ("layers", 1 if self.remat == "none" else 2),
            *(
                (name, 1)
                for name in ("batch", "length", "embed", "kv_heads", "queries", "mlp", "vocab", "accumulation")
            ),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)}: expected {least} or more")
        if self.head_dim < 2 or self.head_dim % 2:
            raise UsageError(f"head_dim={self.head_dim}: expected an even number, since rotary embeddings rotate pairs")
        self._check_latent()
        if self.mtp not in (0, 1) or not 0 < self.mtp_weight < inf:
            raise UsageError(f"mtp={self.mtp}, mtp_weight={self.mtp_weight}: expected mtp 0 or 1 and a weight above 0")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype}: expected one of {', '.join(DTYPES)}")
        for name, known in (
            ("activation", ACTIVATIONS),
            ("remat", (*REMATS, OFFLOAD)),
            ("router", ROUTERS),
            ("dispatch", DISPATCHES),
        ):
            if getattr(self, name) not in known:
                raise UsageError(f"{name}={getattr(self, name)}: expected one of {', '.join(known)}")
        if self.batch % self.accumulation:
            raise UsageError(
                f"batch={self.batch} is not divisible by accumulation={self.accumulation} micro-batches; make it a "
                "multiple"
            )
        Mask(self.causal, self.window)
        if self.experts < 0 or (self.experts and not 1 <= self.top_k <= self.experts):
            raise UsageError(
                f"top_k={self.top_k} of experts={self.experts}: expected top_k from 1 to experts, or experts=0"
            )
        if (
            not 0 < self.capacity_factor < inf
            or self.shared < 0
            or not 0 <= self.balance < inf
            or not 0 <= self.z < inf
        ):
            found = f"capacity_factor={self.capacity_factor}, shared={self.shared}, balance={self.balance}, z={self.z}"
            raise UsageError(f"{found}: expected capacity_factor above 0 and the others 0 or more, all finite")
        if self.dense_layers and not (self.experts and 2 <= self.dense_layers <= self.layers - 2):
            raise UsageError(
                f"dense_layers={self.dense_layers} of layers={self.layers} with experts={self.experts}: expected 0, or "
                "2 or more before 2 or more layers with experts, since of a loop that runs once XLA leaves no loop"
            )
        if not 0 < self.routed_scale < inf:
            raise UsageError(f"routed_scale={self.routed_scale}: expected a number above 0")
        if self.dense_mlp < 0:
            raise UsageError(f"dense_mlp={self.dense_mlp}: expected 1 or more, or 0 for what experts come to")
        if self.experts:
            self._check_routing()
        indexable(**{field.name: size for field in fields(self) if type(size := getattr(self, field.name)) is int})
        if self.experts and self.is_dropless:
            indexable(**{"batch * length * top_k": self.batch * self.length * self.top_k})
        indexable(
            **{"batch * length": self.batch * self.length, "kv_heads * queries * head_dim": self.heads * self.head_dim}
        )

    def _check_latent(self) -> None:
        sizes = self.query_rank, self.kv_rank, self.rope_dim
        if not any(sizes):
            return
        found = f"query_rank={self.query_rank}, kv_rank={self.kv_rank}, rope_dim={self.rope_dim}"
        if min(sizes) < 1 or self.rope_dim % 2:
            raise UsageError(f"{found}: expected all of them above 0 and rope_dim even, or all of them 0")
        if self.queries > 1 or self.normed_heads:
            raise UsageError(
                f"{found} with queries={self.queries}, normed_heads={self.normed_heads}: expected queries=1, since "
                "every head has keys of its own, and normed_heads=False, since the latents are normalised"
            )

    def _check_routing(self) -> None:
        if not 1 <= self.node_limit <= self.nodes or self.experts % self.nodes or self.top_k % self.node_limit:
            found = (
                f"experts={self.experts} on nodes={self.nodes}, top_k={self.top_k} on node_limit={self.node_limit} "
                "nodes"
            )
            raise UsageError(
                f"{found}: expected experts divisible by nodes, top_k divisible by node_limit, and "
                "node_limit from 1 to nodes"
            )
        if self.capacity_factor > self.experts:
            found = f"capacity_factor={self.capacity_factor:g} of experts={self.experts}"
            raise UsageError(
                f"{found}: expected {self.experts} at most, which gives every expert a slot for every copy of every "
                "token"
            )
        if self.top_k // self.node_limit > self.experts // self.nodes:
            raise UsageError(
                f"top_k={self.top_k} on node_limit={self.node_limit} nodes of {self.experts // self.nodes} experts: "
                "expected that many experts on these nodes"
            )
        if self.router == "expert_choice" and (self.nodes > 1 or self.dispatch != "slots" or self.slots > self.length):
            found = (
                f"router=expert_choice with nodes={self.nodes}, dispatch={self.dispatch} and {self.slots} slots "
                f"for {self.length} tokens"
            )
            raise UsageError(
                f"{found}: expected nodes=1, dispatch=slots and no more slots than tokens, since experts choose their "
                "tokens"
            )

    @property
    def heads(self) -> int:
        return self.kv_heads * self.queries

    @property
    def mask(self) -> Mask:
        return Mask(self.causal, self.window)

    @property
    def micro_batch(self) -> int:
        """Sequences that go through the model at once, over all devices."""
        return self.batch // self.accumulation

    @property
    def bytes_per_element(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize

    @classmethod
    def preset(cls, name: str) -> Self:
        """A model of the zoo at its real size, trained on 512 of its sequences a step: its matrices and the weights of
        its norms. Biases and a table of positions are left out (`left_out`); positions rotate.

        Raises:
          UsageError: no such model.
        """
        model = zoo.model(name)
        experts = model.experts
        sizes = {
            size: getattr(model, size)
            for size in (
                "layers",
                "length",
                "embed",
                "kv_heads",
                "head_dim",
                "mlp",
                "vocab",
                "tied",
                "activation",
                "normed_heads",
            )
        }
        routed = (
            {
                "experts": experts.routed,
                "top_k": experts.per_token,
                "shared": experts.shared,
                "mlp": experts.mlp,
                "dense_layers": experts.dense_layers,
                "dense_mlp": model.mlp if experts.dense_layers else 0,
                "router": "sigmoid_bias" if experts.bias else "softmax",
                **{size: getattr(experts, size) for size in ("routed_scale", "nodes", "node_limit")},
            }
            if experts
            else {}
        )
        latent = vars(model.latent) if model.latent else {}
        return cls(batch=512, queries=model.heads // model.kv_heads, **sizes | routed | latent)

    @classmethod
    def left_out(cls, name: str) -> int:
        """Parameters of a model of the zoo that its preset has not: biases, and a table of positions."""
        return zoo.model(name).parameters - cls.preset(name).parameters

    @cached_property
    def stacks(self) -> dict[str, Self]:
        """Layers that are alike, in order, by the name of their scope and of their weights: those of one loop each, and
        the one of `mtp`, which is computed once and keeps what its backward pass needs."""
        if not (self.dense_layers or self.mtp):
            return {"layers": self}
        rest = replace(self, layers=self.layers - self.dense_layers, dense_layers=0, mtp=0)
        found = {"layers": rest}
        if self.dense_layers:
            wide = self.dense_mlp or (self.top_k + self.shared) * self.mlp
            found = {"dense": replace(rest, layers=self.dense_layers, experts=0, shared=0, mlp=wide)} | found
        return found | ({"mtp": replace(rest, layers=1, remat="none")} if self.mtp else {})

    @property
    def loops(self) -> dict[str, Self]:
        """The stacks that the stream goes through one after the other."""
        return {name: stack for name, stack in self.stacks.items() if name != "mtp"}

    @property
    def predictions(self) -> int:
        """Of each token's stream."""
        return 1 + self.mtp

    @property
    def joined(self) -> int:
        """Entries of a token's stream and of the next token's embedding."""
        return 2 * self.embed

    @property
    def expert_layers(self) -> int:
        """In loops."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def is_gated(self) -> bool:
        """An MLP has a gate, so three matrices."""
        return self.activation == "swiglu"

    @property
    def mlp_matrices(self) -> int:
        """Of an MLP, or of an expert."""
        return 3 if self.is_gated else 2

    @property
    def norm(self) -> int:
        """Weights of the norm of a block's input."""
        return self.embed

    @property
    def is_latent(self) -> bool:
        """Queries, keys and values are made of latent vectors."""
        return self.kv_rank > 0

    @property
    def score_dim(self) -> int:
        """Of a query's and a key's head, whose product a score is."""
        return self.head_dim + self.rope_dim

    @property
    def query_latent(self) -> int:
        """Entries of the vector that queries are made of."""
        return self.query_rank

    @property
    def kv_latent(self) -> int:
        """Entries of the vector that keys and values are made of."""
        return self.kv_rank

    @property
    def query_latent_norm(self) -> int:
        return self.query_rank

    @property
    def kv_latent_norm(self) -> int:
        return self.kv_rank

    @property
    def head_norm(self) -> int:
        """Weights of the norm of a head."""
        return self.head_dim

    @property
    def expert_embed(self) -> int:
        """Entries of a token, as an expert reads and gives them: of experts, which ranks share, parts are others'."""
        return self.embed

    @property
    def choices(self) -> int:
        """Of a router."""
        return self.experts

    @property
    def bias(self) -> int:
        """Numbers by which a router's choice is moved."""
        return self.experts

    @property
    def rounds_micro_batches(self) -> bool:
        """Values are rounded to few bits micro-batch by micro-batch, so that other micro-batches give other numbers."""
        return False

    @property
    def is_dropless(self) -> bool:
        return self.dispatch != "slots"

    @property
    def node_slots(self) -> int:
        """Of a node for the tokens of one sequence; a node's token has one copy for all its experts there."""
        return min(self.length, ceil(self.capacity_factor * self.length * self.node_limit / self.nodes))

    @property
    def shared_mlp(self) -> int:
        """Width of all shared experts together."""
        return self.shared * self.mlp

    @property
    def slots(self) -> int:
        """Of an expert for the tokens of one sequence (Ch. 18, `ch18.capacity`)."""
        return ceil(self.capacity_factor * self.length * self.top_k / self.experts)

    @property
    def layer_matrices(self) -> int:
        """Parameters of all layers of loops, without their norms."""
        return sum(stack.layers * stack.matrices for stack in self.loops.values())

    @property
    def mtp_matrices(self) -> int:
        """Parameters of what predicts the token after the next, without norms."""
        return self.mtp and self.stacks["mtp"].matrices + self.joined * self.embed

    @property
    def matrices(self) -> int:
        """Parameters of one layer of the last stack, without its norms."""
        mlps = self.experts + self.shared if self.experts else 1
        attention = (
            self._latent_matrices if self.is_latent else 2 * self.embed * self.head_dim * (self.heads + self.kv_heads)
        )
        return attention + self.embed * (self.mlp_matrices * mlps * self.mlp + self.experts)

    @property
    def _latent_matrices(self) -> int:
        """Of one layer: down to the latents, up to the heads, and out of these."""
        down = self.embed * (self.query_rank + self.kv_rank + self.rope_dim)
        return down + self.heads * (
            self.query_rank * self.score_dim + 2 * self.kv_rank * self.head_dim + self.head_dim * self.embed
        )

    @property
    def norms(self) -> int:
        """Parameters of all norms."""
        of_heads = 2 * self.head_dim if self.normed_heads else 0
        of_layer = 2 * self.embed + of_heads + self.query_rank + self.kv_rank
        return self.embed + self.layers * of_layer + self.mtp * (of_layer + 3 * self.embed)

    @property
    def biases(self) -> int:
        """Parameters of all layers that no gradient trains."""
        layers = self.expert_layers + (self.mtp if self.experts else 0)
        return layers * self.experts if self.router == "sigmoid_bias" else 0

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return (
            self.layer_matrices
            + self.mtp_matrices
            + self.biases
            + self.norms
            + (1 if self.tied else 2) * self.vocab * self.embed
        )

    def choosing(self, **choices: Any) -> Self:
        """The same sizes with other `CHOICES`; a micro-batch has as many sequences, however many there are, and dense
        layers come before two others at least. Latents are small."""
        sizes: dict[str, Any] = {"batch": self.micro_batch * choices.get("accumulation", self.accumulation)}
        if choices.get("dense_layers"):
            sizes["layers"] = max(self.layers, choices["dense_layers"] + 2)
        if choices.get("kv_rank"):
            choices |= SMALL_LATENT | {"queries": 1}
        return replace(self, **sizes | choices)

    def shrunk(self, **sizes: Any) -> Self:
        """The same architecture at sizes for a test: two layers, narrow, short, in float32; heads keep their ratio."""
        small: dict[str, Any] = {
            "layers": 2,
            "batch": 16,
            "length": 32,
            "embed": 48,
            "kv_heads": 8,
            "head_dim": 4,
            "mlp": 80,
            "vocab": 96,
            "dtype": "f32",
        }
        return replace(self, **small | (SMALL_LATENT if self.is_latent else {}) | sizes)
