"""FLOPs that formulas of Ch. 32 and 35 give, against those counted in compiled programs."""

import jax
import jax.numpy as jnp
import pytest

import lab
from lab.book.deepseek import (
    absorbed_flops_per_key,
    decompression_flops_per_key,
    latent_flops_per_key,
)
from lab.book.profiling import forward_flops_per_token, hfu, training_flops_per_token

pytestmark = pytest.mark.compiles

L, B, S, H, A, F, V = 3, 2, 16, 32, 4, 48, 80


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def flops(function, *args):
    return lab.inspect(function, *args).flops


def layer(x_BSH, w, gated):
    q, k, v = (jnp.einsum("bsh,had->bsad", x_BSH, w[name]) for name in ("q", "k", "v"))
    p = jax.nn.softmax(jnp.einsum("bsad,btad->bast", q, k))
    x_BSH = x_BSH + jnp.einsum("bsad,adh->bsh", jnp.einsum("bast,btad->bsad", p, v), w["o"])
    hidden_BSF = jax.nn.silu(x_BSH @ w["up"])
    return x_BSH + (hidden_BSF * (x_BSH @ w["gate"]) if gated else hidden_BSF) @ w["down"]


def decoder(w, tokens_BS, gated):
    x_BSH = w["table"][tokens_BS]
    x_BSH, _ = jax.lax.scan(lambda x, one: (layer(x, one, gated), None), x_BSH, w["layers"])
    return x_BSH @ w["head"]


def decoder_arguments():
    d = H // A
    layers = {
        "q": floats(L, H, A, d),
        "k": floats(L, H, A, d),
        "v": floats(L, H, A, d),
        "o": floats(L, A, d, H),
        "up": floats(L, H, F),
        "gate": floats(L, H, F),
        "down": floats(L, F, H),
    }
    return {"layers": layers, "table": floats(V, H), "head": floats(H, V)}, jax.ShapeDtypeStruct((B, S), jnp.int32)


@pytest.mark.parametrize("gated", [False, True])
def test_a_decoder_runs_8HH_and_4SH_flops_a_layer_and_token_forward(gated):
    counted = flops(lambda w, tokens: decoder(w, tokens, gated), *decoder_arguments())
    assert counted == B * S * forward_flops_per_token(L, H, F, V, S, gated=gated)


def test_a_training_step_of_a_decoder_runs_3_forward_passes():
    def loss(w, tokens):
        return jnp.sum(jax.nn.log_softmax(decoder(w, tokens, True)) ** 2)

    counted = flops(jax.value_and_grad(loss), *decoder_arguments())
    assert counted == B * S * training_flops_per_token(L, H, F, V, S, gated=True)


def stack(recomputed):
    """tanh needs its own result for the gradient, so recomputation runs every product again."""
    wrap = jax.checkpoint if recomputed else lambda f: f

    def loss(w_LHH, x_BH):
        step = wrap(lambda x, w: (jnp.tanh(x @ w), None))
        return jnp.sum(jax.lax.scan(step, x_BH, w_LHH)[0])

    return flops(jax.value_and_grad(loss), floats(L, H, H), floats(B, H))


def test_a_training_step_runs_6_flops_a_parameter_and_token():
    assert stack(recomputed=False) == 6 * L * H * H * B


def test_full_recomputation_runs_a_third_more_flops():
    assert stack(recomputed=True) * 3 == stack(recomputed=False) * 4
    assert hfu(0.3) == pytest.approx(0.3 * stack(recomputed=True) / stack(recomputed=False))


HEADS, HEAD_DIM, LATENT, ROPE = 4, 8, 16, 6


def naive(q_AD, r_AR, k_TAD, v_TAD, k_TR):
    scores_AT = jnp.einsum("ad,tad->at", q_AD, k_TAD) + jnp.einsum("ar,tr->at", r_AR, k_TR)
    return jnp.einsum("at,tad->ad", jax.nn.softmax(scores_AT), v_TAD)


def absorbed(q_AC, r_AR, c_TC, k_TR):
    scores_AT = jnp.einsum("ac,tc->at", q_AC, c_TC) + jnp.einsum("ar,tr->at", r_AR, k_TR)
    return jnp.einsum("at,tc->ac", jax.nn.softmax(scores_AT), c_TC)


def test_a_decode_step_on_decompressed_keys_runs_what_the_formula_says_a_key():
    T = 64
    counted = flops(
        naive, floats(HEADS, HEAD_DIM), floats(HEADS, ROPE), *2 * [floats(T, HEADS, HEAD_DIM)], floats(T, ROPE)
    )
    assert counted == T * latent_flops_per_key(HEADS, HEAD_DIM, ROPE)


def test_a_decode_step_on_latents_runs_what_the_formula_says_a_key():
    T = 64
    counted = flops(absorbed, floats(HEADS, LATENT), floats(HEADS, ROPE), floats(T, LATENT), floats(T, ROPE))
    assert counted == T * absorbed_flops_per_key(HEADS, LATENT, ROPE)


def test_decompressing_keys_runs_2_latent_dims_times_all_heads():
    T = 64
    counted = flops(
        lambda c_TC, w_CAD: jnp.einsum("tc,cad->tad", c_TC, w_CAD), floats(T, LATENT), floats(LATENT, HEADS, HEAD_DIM)
    )
    assert counted == T * decompression_flops_per_key(HEADS, HEAD_DIM, LATENT)


def test_deepseek_v3_decompresses_at_256_times_and_absorbs_at_3_4_times_the_flops_of_a_key():
    assert decompression_flops_per_key(128, 128, 512) / latent_flops_per_key(128, 128, 0) == 256
    assert absorbed_flops_per_key(128, 512, 64) / latent_flops_per_key(128, 128, 64) == pytest.approx(3.4)
