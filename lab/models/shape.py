"""Sizes of a decoder and of the batch that it is trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import jax.numpy as jnp

from lab import zoo
from meshes.errors import Unusable

DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}
REMATS = ("none", "selective", "dots", "names", "full")


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a model, of its batch, and what its training step keeps.

    Attributes:
      layers: two or more: of a loop that runs once XLA leaves no loop, and merges the gathers of forward and backward pass.
      batch: sequences of one step, over all devices and micro-batches.
      length: tokens of a sequence.
      kv_heads: heads of keys and values; each serves `queries` heads.
      tied: the head multiplies with the embedding's table.
      dtype: of activations and of weights in use, as XLA names it: "bf16" or "f32". Master weights and moments are float32.
      remat: what the backward pass computes again. "none": nothing; "selective": scores and softmax (Korthikanti et al. 2022);
        "dots": all but products with weights; "names": all but what a block adds to the residual; "full": each layer from its input.
      accumulation: micro-batches of one step, one after the other.

    Raises:
      Unusable: a size below the least, an unknown dtype or remat, or sizes that do not divide.
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
    dtype: str = "bf16"
    remat: str = "full"
    accumulation: int = 1

    def __post_init__(self) -> None:
        for name, least in (("layers", 2), *((name, 1) for name in ("batch", "length", "embed", "kv_heads", "queries", "mlp", "vocab", "accumulation"))):
            if getattr(self, name) < least:
                raise Unusable(f"{name}={getattr(self, name)}: expected {least} or more")
        if self.head_dim < 2 or self.head_dim % 2:
            raise Unusable(f"head_dim={self.head_dim}: expected an even number, since positions rotate pairs")
        if self.dtype not in DTYPES:
            raise Unusable(f"dtype={self.dtype}: expected {' or '.join(DTYPES)}")
        if self.remat not in REMATS:
            raise Unusable(f"remat={self.remat}: expected one of {', '.join(REMATS)}")
        if self.batch % self.accumulation:
            raise Unusable(f"batch={self.batch} does not split into accumulation={self.accumulation} micro-batches; make it a multiple")

    @property
    def heads(self) -> int:
        return self.kv_heads * self.queries

    @property
    def micro_batch(self) -> int:
        """Sequences that go through the model at once, over all devices."""
        return self.batch // self.accumulation

    @property
    def bytes_per_element(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize

    @classmethod
    def preset(cls, name: str) -> Self:
        """A model of the zoo at its real size, trained on 2,048 of its sequences a step.

        Raises:
          Unusable: no such model, or one that is no plain decoder (experts, latent attention, biases).
        """
        model = zoo.model(name)
        if model.experts or model.latent or model.biased or not model.gated or model.learned_positions or model.normed_heads:
            raise Unusable(f"preset={name}: the decoder has RMSNorm, grouped queries and SwiGLU, without biases, experts or latent attention; take llama3-8b or the like")
        sizes = {size: getattr(model, size) for size in ("layers", "length", "embed", "kv_heads", "head_dim", "mlp", "vocab", "tied")}
        return cls(batch=2048, queries=model.heads // model.kv_heads, **sizes)

    @property
    def layer_matrices(self) -> int:
        """Parameters of all layers, without their norms."""
        return self.layers * self.embed * (2 * self.head_dim * (self.heads + self.kv_heads) + 3 * self.mlp)

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        norms = (2 * self.layers + 1) * self.embed
        return self.layer_matrices + norms + (1 if self.tied else 2) * self.vocab * self.embed

    def shrunk(self, **sizes: int | str | bool) -> Self:
        """The same architecture at sizes for a test: two layers, narrow, short, in float32; heads keep their ratio."""
        small = {"layers": 2, "batch": 16, "length": 32, "embed": 48, "kv_heads": 8, "head_dim": 4, "mlp": 80, "vocab": 96, "dtype": "f32"}
        return replace(self, **small | sizes)
