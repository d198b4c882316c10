"""Models as the shapes of their arrays; how many parameters they have follows from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.zoo import table


@dataclass(frozen=True)
class Experts:
    """The experts that replace a layer's MLP, `mlp` wide each.

    Attributes:
      routed, per_token: how many there are, and how many a token visits.
      shared: experts that every token visits besides.
      dense_layers: the first layers, which keep one MLP.
      nodes, node_limit: groups that experts lie in, and of how many of them those of a token are at most.
      routed_scale: by which what they give is multiplied, after their weights have come to sum to 1.
      bias: the router keeps a number for each expert that balances the load and is trained by no gradient.
    """

    routed: int
    per_token: int
    mlp: int
    shared: int = 0
    dense_layers: int = 0
    bias: bool = False
    nodes: int = 1
    node_limit: int = 1
    routed_scale: float = 1.0


@dataclass(frozen=True)
class Latent:
    """Latent attention (DeepSeek-V2, arXiv:2405.04434): queries, and keys with values, pass through vectors of these
    ranks.

    Attributes:
      rope_dim: dims that carry positions, beside `head_dim`: of each query head, and of one key for all heads.
    """

    query_rank: int
    kv_rank: int
    rope_dim: int


@dataclass(frozen=True)
class Published:
    """Counts as somebody printed them, digits and all; each a property of `ModelShape`.

    Attributes:
      cut: they are cut off after the last digit, where others round.
    """

    counts: Mapping[str, str]
    source: str
    cut: bool = False


@dataclass(frozen=True)
class ModelShape:
    """One decoder.

    Attributes:
      name, source: in the zoo, and where its numbers come from.
      layers, embed, heads, kv_heads, head_dim, mlp, vocab: sizes; `mlp` is the hidden dim, 0 where all layers have
        experts.
      length: context that it was trained or configured for [tokens].
      tied: output and input share the embeddings.
      activation: of the MLP: "swiglu", with a gate and so three matrices; "gelu"; or "relu2", the square of the ReLU.
      biased: layer norms with a bias, and a bias at every matrix but the embeddings.
      learned_positions: a table of [length, embed].
      normed_heads: queries and keys are normalised, with [head_dim] weights each.
    """

    name: str
    source: str
    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied: bool
    length: int
    activation: str = "swiglu"
    biased: bool = False
    learned_positions: bool = False
    normed_heads: bool = False
    latent: Latent | None = None
    experts: Experts | None = None
    published: tuple[Published, ...] = ()
    sources: Mapping[str, str] | None = None

    @property
    def is_gated(self) -> bool:
        """The MLP has a gate, so three matrices."""
        return self.activation == "swiglu"

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        if self.latent:
            return self._latent_parameters(self.latent)
        queries, keys_values = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        biases = queries + keys_values + self.embed if self.biased else 0
        return self.embed * (2 * queries + keys_values) + biases + 2 * self.head_dim * self.normed_heads

    def _latent_parameters(self, latent: Latent) -> int:
        queries = (self.embed + 1) * latent.query_rank + latent.query_rank * self.heads * (
            self.head_dim + latent.rope_dim
        )
        down = self.embed * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        up = latent.kv_rank * self.heads * 2 * self.head_dim
        return queries + down + up + self.heads * self.head_dim * self.embed

    def mlp_parameters(self, mlp: int) -> int:
        """Of one MLP of this hidden dim."""
        return (3 if self.is_gated else 2) * self.embed * mlp + (mlp + self.embed if self.biased else 0)

    @property
    def router_parameters(self) -> int:
        """Of one layer with experts."""
        return (self.embed + self.experts.bias) * self.experts.routed if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers with one MLP."""
        return self.experts.dense_layers if self.experts else self.layers

    @property
    def lookup_parameters(self) -> int:
        """Tables of which a token reads a row only: no matrix is multiplied with them on the way in."""
        return self.embed * ((0 if self.tied else self.vocab) + (self.length if self.learned_positions else 0))

    @property
    def embedding_parameters(self) -> int:
        """Of input, output and positions."""
        return self.lookup_parameters + self.vocab * self.embed

    @property
    def parameters(self) -> int:
        """All of them."""
        return self._with_experts(self.experts.routed + self.experts.shared if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: of the routed experts `per_token` a layer."""
        return self._with_experts(self.experts.per_token + self.experts.shared if self.experts else 0)

    @property
    def active_without_lookup(self) -> int:
        """`active_parameters` less the tables that are only looked up: what costs FLOPs."""
        return self.active_parameters - self.lookup_parameters

    @property
    def non_embedding(self) -> int:
        """All but the embeddings."""
        return self.parameters - self.embedding_parameters

    def _with_experts(self, experts: int) -> int:
        norm = self.embed * (2 if self.biased else 1)
        every_layer = self.layers * (self.attention_parameters + 2 * norm)
        dense = self.dense_layers * self.mlp_parameters(self.mlp)
        sparse = 0
        if self.experts:
            sparse = (self.layers - self.dense_layers) * (
                self.router_parameters + experts * self.mlp_parameters(self.experts.mlp)
            )
        return every_layer + dense + sparse + norm + self.embedding_parameters


def model_names() -> tuple[str, ...]:
    """In the table's order."""
    return tuple(table.read("models.toml")["models"])


def model(name: str) -> ModelShape:
    """One model of the table, such as `llama3-8b`.

    Raises:
      UsageError: the table lacks it.
    """
    everything = table.read("models.toml")
    return _model(name, everything["models"][table.known("model", name, model_names())], everything["sources"])


def _model(name: str, row: Mapping[str, Any], sources: Mapping[str, str]) -> ModelShape:
    parts = {key: kind(**row[key]) for key, kind in (("latent", Latent), ("experts", Experts)) if key in row}
    published = tuple(_published(each, sources) for each in row["published"])
    own = {number: sources[source] for number, source in row.get("sources", {}).items()}
    return ModelShape(
        **{**row, "name": name, "source": sources[row["source"]], "published": published, "sources": own, **parts}
    )


def _published(row: Mapping[str, Any], sources: Mapping[str, str]) -> Published:
    counts = {count: text for count, text in row.items() if count not in ("source", "cut")}
    return Published(counts, sources[row["source"]], row.get("cut", False))
