"""Products that a decoder's backward pass runs again, by policy of recomputation (Ch. 21)."""

from __future__ import annotations

from lab.programs.models.shape import DecoderShape

AGAIN = {
    "none": (),
    "selective": ("scores",),
    "dots": ("scores", "values"),
    "names": ("query", "key", "value", "scores", "values", "gate", "up"),
    "full": ("query", "key", "value", "scores", "values", "out", "gate", "up"),
}
"""By `remat`. None runs the last one, of the MLP: what it gives is wanted by nobody."""


def recomputed_flops(shape: DecoderShape) -> int:
    """Of a step, over all devices, to first order: all scores at once, routers left out."""
    return sum(
        stack.layers * sum(layer_products(stack)[name] for name in AGAIN[stack.remat])
        for stack in shape.stacks.values()
        if stack.remat != "none"
    )


def layer_products(shape: DecoderShape) -> dict[str, int]:
    """FLOPs of one layer's products in a forward pass of all tokens of a step; of experts, for every slot."""
    tokens = shape.batch * shape.length
    copies = tokens
    if shape.experts:
        chosen = shape.top_k * tokens if shape.is_dropless else shape.batch * shape.slots * shape.experts
        copies = chosen + shape.shared * tokens
    mlp = dict.fromkeys(("gate", "up", "down"), 2 * copies * shape.embed * shape.mlp)
    square = {"scores": shape.score_dim, "values": shape.head_dim}
    return (
        {name: 2 * tokens * size for name, size in _projections(shape).items()}
        | {name: 2 * tokens * shape.length * shape.heads * size for name, size in square.items()}
        | (mlp if shape.is_gated else mlp | {"gate": 0})
    )


def _projections(shape: DecoderShape) -> dict[str, int]:
    """Parameters between the stream and attention; of latent attention down to the latents and up to the heads."""
    heads, out = shape.heads * shape.head_dim, shape.heads * shape.head_dim * shape.embed
    if not shape.is_latent:
        keys = shape.embed * shape.kv_heads * shape.head_dim
        return {"query": shape.embed * heads, "key": keys, "value": keys, "out": out}
    return {
        "query": shape.query_rank * (shape.embed + shape.heads * shape.score_dim),
        "key": shape.embed * (shape.kv_rank + shape.rope_dim) + shape.kv_rank * heads,
        "value": shape.kv_rank * heads,
        "out": out,
    }
