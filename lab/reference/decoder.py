"""The whole decoder: the mean loss of a batch, and the gradient of every weight.

Dims: L layers, B sequences of S tokens, D embed, K key-value heads, G queries a key-value head, H head dim, V
vocabulary. Source: Touvron et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.programs.models.shape import DecoderShape
from lab.reference.attention import attention
from lab.reference.experts import Parts, mixture
from lab.reference.layers import Array, Tokens, linear, mean_cross_entropy, mlp, rms_norm, rotated

Weights = Mapping[str, Array]
"""Of the model, or their gradients, by name; `layers/...` of all layers, stacked along the first dim, but for
`dense/...` of those before the ones with experts, and `mtp/...` of the one that predicts the token after the next."""
DENSE, LAYERS, NEXT, SHARED = "dense/", "layers/", "mtp/", "shared_"
Pull = Callable[[Array], tuple[Array, dict[str, Array]]]
"""From the gradient of what a block adds to those of its input and of its weights."""


@dataclass(frozen=True)
class Forward:
    """
    Attributes:
      loss: the mean over all tokens.
      auxiliary: what is differentiated besides; see `Mixture`.
      margin_B: by how much the closest choice of experts in each sequence was decided; infinite without experts.
      gradients: works out those of loss and auxiliary losses by every weight.
    """

    loss: float
    auxiliary: float
    margin_B: Array
    gradients: Callable[[], dict[str, Array]]


def forward(
    weights: Weights, tokens_BS: Tokens, targets_BS: Tokens, shape: DecoderShape, parts_Ps: Parts | None = None
) -> Forward:
    """Args: parts_Ps: as `mixture`."""
    x_BSD = weights["embedding"][tokens_BS]
    auxiliary, margin_B, pulls = 0.0, np.full(len(tokens_BS), np.inf), []
    head_DV = weights["embedding"].T if shape.tied else weights["head"]

    def layer(stack: str, at: int, x_BSD: Array) -> Array:
        nonlocal auxiliary, margin_B
        w = {name.removeprefix(stack): x[at] for name, x in weights.items() if name.startswith(stack)}
        y_BSD, pull_attention = _attention_block(x_BSD, w, shape)
        x_BSD = x_BSD + y_BSD
        block = _expert_block(x_BSD, w, shape, parts_Ps) if "router" in w else _mlp_block(x_BSD, w, shape)
        auxiliary, margin_B = auxiliary + block.auxiliary, np.minimum(margin_B, block.margin_B)
        pulls.append((stack, at, (pull_attention, block.pull)))
        return x_BSD + block.y_BSD

    for stack, at in _places(shape):
        x_BSD = layer(stack, at, x_BSD)
    normed_BSD, pull_norm = rms_norm(x_BSD, weights["norm"])
    logits_BSV, pull_head = linear(normed_BSD, head_DV)
    loss, dlogits_BSV = mean_cross_entropy(logits_BSV, targets_BS)
    if shape.mtp:
        joined_BSD, pull_join = _join(x_BSD, weights["embedding"][targets_BS], weights)
        y_BSD, pull_next_norm = rms_norm(layer(NEXT, 0, joined_BSD), weights["join/norm"])
        next_BSV, pull_next_head = linear(y_BSD, head_DV)
        # Of the last token of a sequence nothing is predicted; the mean is over all tokens all the same.
        S = tokens_BS.shape[1]
        share = shape.mtp_weight * (S - 1) / S
        next_loss, dnext_BSV = mean_cross_entropy(next_BSV[:, :-1], targets_BS[:, 1:])
        loss += share * next_loss
        dnext_BSV = share * np.pad(dnext_BSV, ((0, 0), (0, 1), (0, 0)))

    def gradients() -> dict[str, Array]:
        found = {name: np.zeros_like(x) for name, x in weights.items()}
        of_layers = list(pulls)
        dnormed_BSD, dhead_DV = pull_head(dlogits_BSV)
        dx_BSD, found["norm"] = pull_norm(dnormed_BSD)
        if shape.mtp:
            dy_BSD, dnext_head_DV = pull_next_head(dnext_BSV)
            dhead_DV = dhead_DV + dnext_head_DV
            dy_BSD, found["join/norm"] = pull_next_norm(dy_BSD)
            djoined_BSD = _backwards([of_layers.pop()], dy_BSD, found)
            through_BSD, dnext_BSD, of_join = pull_join(djoined_BSD)
            dx_BSD = dx_BSD + through_BSD
            found |= of_join
            np.add.at(found["embedding"], targets_BS, dnext_BSD)
        if shape.tied:
            found["embedding"] += dhead_DV.T
        else:
            found["head"] = dhead_DV
        np.add.at(found["embedding"], tokens_BS, _backwards(of_layers, dx_BSD, found))
        return found

    return Forward(loss, auxiliary, margin_B, gradients)


def _backwards(
    of_layers: Sequence[tuple[str, int, tuple[Pull, Pull]]], dx_BSD: Array, found: dict[str, Array]
) -> Array:
    """The gradient of what these layers begin with; those of their weights are added to `found`."""
    for stack, layer, of_blocks in reversed(of_layers):
        for pull in reversed(of_blocks):
            through_BSD, of_weights = pull(dx_BSD)
            dx_BSD = dx_BSD + through_BSD
            for name, gradient in of_weights.items():
                found[stack + name][layer] = gradient
    return dx_BSD


def _join(
    x_BSD: Array, next_BSD: Array, weights: Weights
) -> tuple[Array, Callable[[Array], tuple[Array, Array, dict[str, Array]]]]:
    """One stream of that of the tokens and the embeddings of the next ones; its pullback gives the gradients of both
    and of the weights."""
    D = x_BSD.shape[-1]
    normed_BSD, pull_stream = rms_norm(x_BSD, weights["join/stream_norm"])
    token_BSD, pull_token = rms_norm(next_BSD, weights["join/token_norm"])
    y_BSD, pull_projection = linear(np.concatenate([normed_BSD, token_BSD], axis=-1), weights["join/projection"])

    def pull(dy_BSD: Array) -> tuple[Array, Array, dict[str, Array]]:
        dboth_BSE, dprojection_ED = pull_projection(dy_BSD)
        dx_BSD, dstream_D = pull_stream(dboth_BSE[..., :D])
        dnext_BSD, dtoken_D = pull_token(dboth_BSE[..., D:])
        found = {"join/projection": dprojection_ED, "join/stream_norm": dstream_D, "join/token_norm": dtoken_D}
        return dx_BSD, dnext_BSD, found

    return y_BSD, pull


def _places(shape: DecoderShape) -> list[tuple[str, int]]:
    """Of every layer in order, the stack that has its weights and where there."""
    dense = [(DENSE, layer) for layer in range(shape.dense_layers)]
    return dense + [(LAYERS, layer) for layer in range(shape.layers - shape.dense_layers)]


def _attention_block(x_BSD: Array, w: Weights, shape: DecoderShape) -> tuple[Array, Pull]:
    """What attention adds to the residual stream."""
    normed_BSD, pull_norm = rms_norm(x_BSD, w["attention_norm"])
    made = _of_latents if "kv_latent" in w else _of_stream
    q_BSKGH, k_BTKH, v_BTKH, pull_made = made(normed_BSD, w, shape)
    y_BSKGH, pull_core = attention(q_BSKGH, k_BTKH, v_BTKH, shape.causal, shape.window)
    B, S, _ = x_BSD.shape
    y_BSD, pull_out = linear(y_BSKGH.reshape(B, S, -1), w["out"].reshape(-1, shape.embed))

    def pull(dy_BSD: Array) -> tuple[Array, dict[str, Array]]:
        dy_BSN, dout_ND = pull_out(dy_BSD)
        dq_BSKGH, dk_BTKH, dv_BTKH = pull_core(dy_BSN.reshape(y_BSKGH.shape))
        dnormed_BSD, gradients = pull_made(dq_BSKGH, dk_BTKH, dv_BTKH)
        dx_BSD, gradients["attention_norm"] = pull_norm(dnormed_BSD)
        return dx_BSD, gradients | {"out": dout_ND.reshape(w["out"].shape)}

    return y_BSD, pull


PullHeads = Callable[[Array, Array, Array], tuple[Array, dict[str, Array]]]
"""From the gradients of queries, keys and values to those of what they were made of and of its weights."""


def _of_stream(x_BSD: Array, w: Weights, shape: DecoderShape) -> tuple[Array, Array, Array, PullHeads]:
    """Queries, keys and values of the normalised stream."""
    q_BSKGH, pull_query = _heads(x_BSD, w, "query", shape)
    k_BTKH, pull_key = _heads(x_BSD, w, "key", shape)
    v_BTKH, pull_value = linear(x_BSD, w["value"])

    def pull(dq_BSKGH: Array, dk_BTKH: Array, dv_BTKH: Array) -> tuple[Array, dict[str, Array]]:
        by_query_BSD, of_query = pull_query(rotated(dq_BSKGH, -1))
        by_key_BSD, of_key = pull_key(rotated(dk_BTKH, -1))
        by_value_BSD, dvalue_DKH = pull_value(dv_BTKH)
        return by_query_BSD + by_key_BSD + by_value_BSD, of_query | of_key | {"value": dvalue_DKH}

    return rotated(q_BSKGH), rotated(k_BTKH), v_BTKH, pull


def _of_latents(x_BSD: Array, w: Weights, shape: DecoderShape) -> tuple[Array, Array, Array, PullHeads]:
    """The same by way of latents (DeepSeek-V2): the last `rope_dim` dims of queries and keys rotate, and of keys all
    heads have the same there."""
    H, K = shape.head_dim, shape.kv_heads
    low_q_BSC, pull_query_latent = linear(x_BSD, w["query_latent"])
    low_q_BSC, pull_query_norm = rms_norm(low_q_BSC, w["query_latent_norm"])
    low_kv_BSC, pull_kv_latent = linear(x_BSD, w["kv_latent"])
    low_kv_BSC, pull_kv_norm = rms_norm(low_kv_BSC, w["kv_latent_norm"])
    q_BSKGH, pull_query = linear(low_q_BSC, w["query"])
    k_BTKH, pull_key = linear(low_kv_BSC, w["key"])
    v_BTKH, pull_value = linear(low_kv_BSC, w["value"])
    shared_BTR, pull_shared = linear(x_BSD, w["rotary_key"])
    q_BSKGH = np.concatenate([q_BSKGH[..., :H], rotated(q_BSKGH[..., H:])], axis=-1)
    k_BTKH = np.concatenate([k_BTKH, np.stack([rotated(shared_BTR[:, :, None])[:, :, 0]] * K, axis=2)], axis=-1)

    def pull(dq_BSKGH: Array, dk_BTKH: Array, dv_BTKH: Array) -> tuple[Array, dict[str, Array]]:
        found = {}
        dq_BSKGH = np.concatenate([dq_BSKGH[..., :H], rotated(dq_BSKGH[..., H:], -1)], axis=-1)
        dlow_q_BSC, found["query"] = pull_query(dq_BSKGH)
        by_key_BSC, found["key"] = pull_key(dk_BTKH[..., :H])
        by_value_BSC, found["value"] = pull_value(dv_BTKH)
        dlow_q_BSC, found["query_latent_norm"] = pull_query_norm(dlow_q_BSC)
        dlow_kv_BSC, found["kv_latent_norm"] = pull_kv_norm(by_key_BSC + by_value_BSC)
        by_query_BSD, found["query_latent"] = pull_query_latent(dlow_q_BSC)
        by_kv_BSD, found["kv_latent"] = pull_kv_latent(dlow_kv_BSC)
        dshared_BTR = rotated(np.sum(dk_BTKH[..., H:], axis=2, keepdims=True), -1)[:, :, 0]
        by_shared_BSD, found["rotary_key"] = pull_shared(dshared_BTR)
        return by_query_BSD + by_kv_BSD + by_shared_BSD, found

    return q_BSKGH, k_BTKH, v_BTKH, pull


def _heads(x_BSD: Array, w: Weights, name: str, shape: DecoderShape) -> tuple[Array, Pull]:
    """Queries or keys before they are rotated, each head normalised where it is asked for."""
    product, pull_product = linear(x_BSD, w[name])
    y, pull_norm = rms_norm(product, w[f"{name}_norm"]) if shape.normed_heads else (product, None)

    def pull(dy: Array) -> tuple[Array, dict[str, Array]]:
        gradients = {}
        if pull_norm:
            dy, gradients[f"{name}_norm"] = pull_norm(dy)
        dx_BSD, gradients[name] = pull_product(dy)
        return dx_BSD, gradients

    return y, pull


@dataclass(frozen=True)
class _Block:
    y_BSD: Array
    pull: Pull
    auxiliary: float = 0.0
    margin_B: Array | float = np.inf


def _mlp_block(x_BSD: Array, w: Weights, shape: DecoderShape) -> _Block:
    """What a dense MLP adds to the residual stream."""
    normed_BSD, pull_norm = rms_norm(x_BSD, w["mlp_norm"])
    y_BSD, pull_mlp = mlp(normed_BSD, w, shape.activation)

    def pull(dy_BSD: Array) -> tuple[Array, dict[str, Array]]:
        dnormed_BSD, gradients = pull_mlp(dy_BSD)
        dx_BSD, gradients["mlp_norm"] = pull_norm(dnormed_BSD)
        return dx_BSD, gradients

    return _Block(y_BSD, pull)


def _expert_block(x_BSD: Array, w: Weights, shape: DecoderShape, parts_Ps: Parts | None) -> _Block:
    """What chosen experts, and those that every token visits, add to the residual stream."""
    normed_BSD, pull_norm = rms_norm(x_BSD, w["mlp_norm"])
    chosen = mixture(normed_BSD, w, shape, parts_Ps)
    shared = {name.removeprefix(SHARED): x for name, x in w.items() if name.startswith(SHARED)}
    shared_BSD, pull_shared = (
        mlp(normed_BSD, shared, shape.activation) if shape.shared else (np.zeros_like(x_BSD), None)
    )

    def pull(dy_BSD: Array) -> tuple[Array, dict[str, Array]]:
        dnormed_BSD, gradients = chosen.pull(dy_BSD)
        if pull_shared:
            of_shared_BSD, of_weights = pull_shared(dy_BSD)
            dnormed_BSD += of_shared_BSD
            gradients |= {SHARED + name: gradient for name, gradient in of_weights.items()}
        dx_BSD, gradients["mlp_norm"] = pull_norm(dnormed_BSD)
        return dx_BSD, gradients

    return _Block(chosen.y_BSD + shared_BSD, pull, chosen.auxiliary, chosen.margin_B)
