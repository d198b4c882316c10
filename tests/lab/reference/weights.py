"""Weights and tokens for tests of the reference."""

import numpy as np

from lab.programs.models.shape import DecoderShape


def drawn_weights(shape: DecoderShape, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal entries over the root of what a product sums over, norms about 1, and small biases; float64."""
    L, D, F, V, E = shape.layers, shape.embed, shape.mlp, shape.vocab, shape.experts
    K, G, H, shared = shape.kv_heads, shape.queries, shape.head_dim, shape.shared * shape.mlp
    draw = np.random.default_rng(seed)

    def normal(inputs: int, *sizes: int) -> np.ndarray:
        return draw.standard_normal(sizes) * inputs**-0.5

    def attention(L: int) -> dict[str, np.ndarray]:
        q, c, R = shape.query_rank, shape.kv_rank, shape.rope_dim
        if not c:
            return {
                "query": normal(D, L, D, K, G, H),
                "key": normal(D, L, D, K, H),
                "value": normal(D, L, D, K, H),
            }
        return {
            "query_latent": normal(D, L, D, q),
            "query_latent_norm": 1 + normal(100, L, q),
            "kv_latent": normal(D, L, D, c),
            "kv_latent_norm": 1 + normal(100, L, c),
            "rotary_key": normal(D, L, D, R),
            "query": normal(q, L, q, K, G, H + R),
            "key": normal(c, L, c, K, H),
            "value": normal(c, L, c, K, H),
        }

    def stack(name: str, L: int, E: int, F: int) -> dict[str, np.ndarray]:
        each = (L, E) if E else (L,)
        found = {
            "attention_norm": 1 + normal(100, L, D),
            **attention(L),
            "out": normal(K * G * H, L, K, G, H, D),
            "mlp_norm": 1 + normal(100, L, D),
            **({"gate": normal(D, *each, D, F)} if shape.activation == "swiglu" else {}),
            "up": normal(D, *each, D, F),
            "down": normal(F, *each, F, D),
        }
        if shape.normed_heads:
            found |= {f"{name}_norm": 1 + normal(100, L, H) for name in ("query", "key")}
        if E:
            found["router"] = normal(D, L, D, E)
        if E and shape.router == "sigmoid_bias":
            found["bias"] = normal(1000, L, E)
        if E and shared:
            gate = ["gate"] if shape.activation == "swiglu" else []
            found |= {f"shared_{name}": normal(D, L, D, shared) for name in (*gate, "up")}
            found["shared_down"] = normal(shared, L, shared, D)
        return {f"{name}/{weight}": x for weight, x in found.items()}

    dense = shape.dense_layers
    found = {"embedding": normal(1, V, D), "norm": 1 + normal(100, D)} | stack("layers", L - dense, E, F)
    if dense:
        found |= stack("dense", dense, 0, shape.dense_mlp or (shape.top_k + shape.shared) * F)
    if shape.mtp:
        found |= stack("mtp", 1, E, F)
        found |= {f"join/{name}": 1 + normal(100, D) for name in ("stream_norm", "token_norm", "norm")}
        found["join/projection"] = normal(2 * D, 2 * D, D)
    return found if shape.tied else found | {"head": normal(D, D, V)}


def drawn_tokens(shape: DecoderShape, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """No token twice in a sequence: two at its start would have equal gates, and a choice between them no gradient."""
    draw = np.random.default_rng(seed)
    tokens_BV = draw.permuted(np.tile(np.arange(shape.vocab), (shape.batch, 1)), axis=1)
    return tokens_BV[:, : shape.length], draw.integers(0, shape.vocab, (shape.batch, shape.length))
