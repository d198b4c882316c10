"""What JAX saves of a real layer, tensor by tensor, against the sums of named tensors."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from lab.book.activations import LLAMA_SAVED, gpt_tensors, llama_saved_bytes

# Pairwise different sizes, and no weight starts with the batch.
B, S, H, A, K, h, F = 3, 64, 128, 4, 2, 32, 448
SHAPE = {"tokens": B * S, "length": S, "embed": H, "heads": A, "kv_heads": K, "head_dim": h, "mlp": F}
BF16 = jnp.bfloat16
WEIGHTS = {
    name: jax.ShapeDtypeStruct(shape, BF16)
    for name, shape in {
        "n": (H,),
        "m": (H,),
        "q": (H, A * h),
        "k": (H, K * h),
        "v": (H, K * h),
        "o": (A * h, H),
        "g": (H, F),
        "u": (H, F),
        "d": (F, H),
    }.items()
}


def norm(x_BSH, w_H):
    x32_BSH = x_BSH.astype(jnp.float32)
    return (x32_BSH * jax.lax.rsqrt(jnp.mean(x32_BSH * x32_BSH, -1, keepdims=True))).astype(x_BSH.dtype) * w_H


def rope(x_BSAh):
    cos, sin = jnp.ones((S, 1, h // 2), BF16), jnp.ones((S, 1, h // 2), BF16)
    a, b = jnp.split(x_BSAh, 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@jax.custom_vjp
def softmax(scores):
    return jax.nn.softmax(scores, -1)


softmax.defvjp(lambda s: (softmax(s),) * 2, lambda p, g: (p * (g - jnp.sum(p * g, -1, keepdims=True)),))


def attend(q_BSAh, k_BSKh, v_BSKh):
    scores_BKGSS = jnp.einsum("bsKGh,btKh->bKGst", q_BSAh.reshape(B, S, K, A // K, h), k_BSKh).astype(jnp.float32)
    return jnp.einsum("bKGst,btKh->bsKGh", softmax(scores_BKGSS).astype(BF16), v_BSKh).reshape(B, S, A * h)


@jax.custom_vjp
def flash(q, k, v):
    return attend(q, k, v)


flash.defvjp(lambda *qkv: (attend(*qkv), qkv), lambda qkv, g: jax.vjp(attend, *qkv)[1](g))


def layer(x_BSH, w, attention=attend):
    y_BSH = norm(x_BSH, w["n"])
    q_BSAh, k_BSKh, v_BSKh = (
        ((y_BSH @ w[name]).reshape(B, S, heads, h)) for name, heads in (("q", A), ("k", K), ("v", K))
    )
    x_BSH = x_BSH + checkpoint_name(attention(rope(q_BSAh), rope(k_BSKh), v_BSKh) @ w["o"], "leaves")
    y_BSH = norm(x_BSH, w["m"])
    return x_BSH + checkpoint_name((jax.nn.silu(y_BSH @ w["g"]) * (y_BSH @ w["u"])) @ w["d"], "leaves")


LAYERS = {
    "full_remat": jax.checkpoint(layer),
    "names_saved": jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("leaves")),
    "dots_saved": jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "attention_recomputed": functools.partial(layer, attention=flash),
    "no_remat": layer,
}


def residual_bytes(function):
    """Bytes of what `jax.vjp` keeps of the activations, without the statistics of each row."""
    kept = jax.eval_shape(
        lambda x, w: jax.tree.leaves(jax.vjp(function, x, w)[1]), jax.ShapeDtypeStruct((B, S, H), BF16), WEIGHTS
    )
    return sum(a.size * a.dtype.itemsize for a in kept if a.ndim > 2 and a.shape[0] == B and a.shape[-1] > 1)


@pytest.mark.parametrize("policy", LLAMA_SAVED)
def test_jax_saves_the_named_tensors_and_no_others(policy):
    assert residual_bytes(LAYERS[policy]) == llama_saved_bytes(policy, **SHAPE)


def test_a_llama_3_8b_layer_saves_2_4_21_63_and_159_bytes_a_token_and_embed():
    shape = {"tokens": 2048, "length": 2048, "embed": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "mlp": 14336}
    assert [llama_saved_bytes(policy, **shape) / (2048 * 4096) for policy in LLAMA_SAVED] == [2, 4, 21, 63, 159]


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="policy='dots'"):
        llama_saved_bytes("dots", **SHAPE)


def test_a_gpt_layer_on_one_rank_saves_34_bytes_of_each_activation_and_5_of_each_score():
    assert sum(gpt_tensors(B * S, S, H, A).values()) == 34 * B * S * H + 5 * B * A * S * S
