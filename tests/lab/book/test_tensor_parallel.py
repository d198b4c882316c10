"""Chapter 15 decided by numbers: split products, their biases and gradients, split LayerNorm, FLOP that XLA counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.book.tensor_parallel import (
    cross_entropy_wire_bytes,
    divisors,
    gpt_layer_forward_flops,
    kv_replicas,
    layer_forward_flops,
    merged_moments,
    sp_layer_wire_bytes,
    tp_compute_to_sync,
)

P, ROWS, D, F = 4, 6, 8, 16
RNG = np.random.default_rng(0)
X, UP, DOWN = (RNG.normal(size=size) for size in ((ROWS, D), (D, F), (F, D)))


def gelu(x):
    return np.asarray(jax.nn.gelu(x, approximate=False), np.float64)


def test_a_product_split_over_its_rows_sums_to_the_whole():
    np.testing.assert_allclose(sum(x @ w for x, w in zip(np.split(X, P, 1), np.split(UP, P, 0), strict=True)), X @ UP)


def test_a_bias_on_each_of_8_ranks_is_added_8_times():
    partial = [x @ w + np.ones(F) for x, w in zip(np.split(X, 8, 1), np.split(UP, 8, 0), strict=True)]
    np.testing.assert_allclose(sum(partial) - X @ UP - 1, 7)


@pytest.mark.compiles
def test_gelu_commutes_with_columns_and_not_with_partial_sums():
    by_columns = sum(gelu(X @ up) @ down for up, down in zip(np.split(UP, P, 1), np.split(DOWN, P, 0), strict=True))
    by_rows = sum(gelu(x @ up) for x, up in zip(np.split(X, P, 1), np.split(UP, P, 0), strict=True)) @ DOWN
    whole = gelu(X @ UP) @ DOWN
    np.testing.assert_allclose(by_columns, whole, rtol=1e-4, atol=1e-4)
    assert np.abs(by_rows - whole).max() > 0.1


def test_contiguous_slices_of_a_fused_qkv_do_not_split_by_heads():
    fused = np.concatenate([np.full((D, D), i) + np.arange(D) / 100 for i in range(3)], 1)
    naive = np.split(fused, P, 1)[0]
    by_rank = np.concatenate([np.split(part, P, 1)[0] for part in np.split(fused, 3, 1)], 1)
    assert naive.shape == by_rank.shape
    assert set(np.floor(by_rank[0])) == {0, 1, 2} and set(np.floor(naive[0])) == {0}


def test_float32_sums_of_squares_cancel_at_mean_1000_and_merged_moments_do_not():
    x = (1000 + RNG.normal(size=4096)).astype(np.float32)
    parts = [(np.float32(part.size), part.mean(), ((part - part.mean()) ** 2).sum()) for part in np.split(x, 8)]
    whole = parts[0]
    for part in parts[1:]:
        whole = merged_moments(*whole, *part)
    cancelled = np.float32(x @ x) / 4096 - np.float32(x.sum() / 4096) ** 2
    variance = x.astype(np.float64).var()
    assert whole[1] == pytest.approx(x.mean(), rel=1e-6) and whole[2] / 4096 == pytest.approx(variance, rel=1e-4)
    assert abs(cancelled / variance - 1) > 0.01


@pytest.mark.compiles
def test_one_key_on_split_heads_gives_every_rank_the_same_mask_and_folded_keys_do_not():
    def mask(key):
        return np.asarray(jax.random.bernoulli(key, 0.5, (64,)))

    key = jax.random.key(0)
    same, folded = [mask(key) for _ in range(P)], [mask(jax.random.fold_in(key, rank)) for rank in range(P)]
    assert all((m == same[0]).all() for m in same)
    assert not any((m == folded[0]).all() for m in folded[1:])


def products_of_a_layer(tokens, length, embed, heads, kv_heads, head_dim, mlp, gated):
    """FLOP that XLA counts of a layer's products alone."""

    def layer(x, q, k, v, o, ups, down):
        groups = x.reshape(tokens // length, length, embed)
        queries = (groups @ q).reshape(-1, length, kv_heads, heads // kv_heads, head_dim)
        keys, values = ((groups @ w).reshape(-1, length, kv_heads, head_dim) for w in (k, v))
        scores = jnp.einsum("bskgh,btkh->bkgst", queries, keys)
        attended = jnp.einsum("bkgst,btkh->bskgh", scores, values).reshape(tokens, heads * head_dim)
        return attended @ o, [x @ up for up in ups], jnp.zeros((tokens, mlp)) @ down

    sizes = [(tokens, embed), (embed, heads * head_dim), *[(embed, kv_heads * head_dim)] * 2, (heads * head_dim, embed)]
    arrays = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]
    ups, down = (
        [jax.ShapeDtypeStruct((embed, mlp), jnp.float32)] * (2 if gated else 1),
        jax.ShapeDtypeStruct((mlp, embed), jnp.float32),
    )
    return jax.jit(layer).lower(*arrays, ups, down).cost_analysis()["flops"]


@pytest.mark.compiles
def test_xla_counts_24bsd2_and_4bs2d_flop_in_a_layers_products():
    assert products_of_a_layer(64, 32, 16, 4, 4, 4, 64, gated=False) == gpt_layer_forward_flops(64, 32, 16)


@pytest.mark.compiles
def test_xla_counts_the_same_flop_with_grouped_queries_and_a_gated_mlp():
    found = products_of_a_layer(64, 32, 24, 4, 2, 8, 40, gated=True)
    assert found == layer_forward_flops(64, 32, 24, query_dim=32, kv_dim=16, mlp=40, mlp_matrices=3)


def test_a_llama_3_8b_layer_takes_2_06_tflop_for_4096_tokens():
    assert layer_forward_flops(4096, 4096, 4096, 4096, 1024, 14336, 3) == pytest.approx(2.0616e12, rel=1e-4)


def test_4_ranks_have_7_thirds_and_2_ranks_7_times_the_ratio_of_8():
    ratio = [tp_compute_to_sync(4096, ranks, 989e12, 450e9) for ranks in (8, 4, 2)]
    assert ratio[1] / ratio[0] == pytest.approx(7 / 3) and ratio[2] / ratio[0] == pytest.approx(7)


def test_exercise_3_has_ratio_1_73_with_attention_in():
    flops, wire_bytes = gpt_layer_forward_flops(8192, 2048, 4096), 234_881_024
    assert flops / 8 / 989e12 == pytest.approx(451.6e-6, rel=1e-3)
    assert (flops / 8 / 989e12) / (wire_bytes / 900e9) == pytest.approx(1.73, rel=1e-3)


def test_a_split_vocabulary_sends_86_016_bytes_for_4096_tokens():
    assert cross_entropy_wire_bytes(4096, 8) == 86_016


def test_sequence_parallelism_sends_10_eighths_of_tensor_parallelism_where_it_gathers_again():
    assert sp_layer_wire_bytes(64, 32, 2, 8) / sp_layer_wire_bytes(64, 32, 2, 8, regathers=0) == 1.25


def test_96_heads_have_12_divisors_and_6_ranks_no_cure_in_8_kv_heads():
    assert len(divisors(96)) == 12 and 96 in divisors(96) and 6 not in divisors(8)
    assert kv_replicas(8, 16) == 2


def test_one_rank_has_no_ratio():
    with pytest.raises(ValueError, match="ranks=1: expected 2 or above"):
        tp_compute_to_sync(4096, 1, 989e12, 450e9)


@pytest.mark.compiles
def test_two_pullbacks_give_what_one_gives():
    x, w, g = jnp.asarray(X), jnp.asarray(UP), jnp.ones((ROWS, F))
    both = jax.vjp(lambda x, w: jnp.tanh(x @ w), x, w)[1](g)
    alone = *jax.vjp(lambda x: jnp.tanh(x @ w), x)[1](g), *jax.vjp(lambda w: jnp.tanh(x @ w), w)[1](g)
    for one, other in zip(both, alone, strict=True):
        np.testing.assert_array_equal(one, other)
