"""Chapter 21 decided by what XLA plans and counts, and by passes counted one by one."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.book.activations import gpt_saved_bytes
from lab.book.recomputation import (
    attention_cost_share,
    attention_saved_share,
    best_segment_layers,
    least_segmented_bytes,
    overhead,
    recomputed_layers,
    rounding_error,
    segmented_bytes,
)

LAYERS, ROWS, H, WIDE = 32, 4096, 32, 256


def layer(x_RH, w):
    return x_RH + jnp.tanh(x_RH @ w["up"]) @ w["down"], None


@cache
def planned_bytes(segment_layers):
    """Temporary bytes of a gradient through the chain, its segments recomputed; 0 recomputes nothing."""

    def loss(w, x):
        if not segment_layers:
            return jnp.sum(jax.lax.scan(layer, x, w)[0])
        cut = jax.tree.map(lambda a: a.reshape(-1, segment_layers, *a.shape[1:]), w)
        segment = jax.checkpoint(lambda x, w: (jax.lax.scan(layer, x, w)[0], None))
        return jnp.sum(jax.lax.scan(segment, x, cut)[0])

    w = {
        name: jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32)
        for name, shape in (("up", (H, WIDE)), ("down", (WIDE, H)))
    }
    return (
        jax.jit(jax.grad(loss))
        .lower(w, jax.ShapeDtypeStruct((ROWS, H), jnp.float32))
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )


@pytest.mark.compiles
def test_a_chain_recomputed_by_the_square_root_rule_needs_more_than_one_recomputed_layer_by_layer():
    assert (
        planned_bytes(1) < planned_bytes(2) < planned_bytes(4) < planned_bytes(8) < planned_bytes(16) < planned_bytes(0)
    )


@pytest.mark.compiles
def test_xla_plans_as_many_more_bytes_for_longer_segments_as_the_formula_says():
    saved = 4 * ROWS * (H + 2 * WIDE)
    formula = [segmented_bytes(LAYERS, k, 4 * ROWS * H, saved) for k in (4, 8, 16)]
    planned = [planned_bytes(k) for k in (4, 8, 16)]
    assert np.diff(planned) == pytest.approx(np.diff(formula), rel=0.05)


def test_the_best_segment_is_the_least_of_all_for_three_kinds_of_layers():
    for inputs, saved in ((1, 1), (1, 17), (3, 5)):
        k = np.linspace(0.1, 40, 40_000)
        sizes = segmented_bytes(32, k, inputs, saved)
        assert k[sizes.argmin()] == pytest.approx(best_segment_layers(32, inputs, saved), abs=1e-3)
        assert sizes.min() == pytest.approx(least_segmented_bytes(32, inputs, saved), rel=1e-6)


def test_recomputing_every_layer_from_the_input_takes_528_passes_and_halves_of_halves_160_with_5_kept():
    def recursive(layers):
        """(passes, most inputs kept at once) to have each layer's input once, last first."""
        if layers == 1:
            return 1, 0
        half = layers // 2
        (late, kept_late), (early, kept_early) = recursive(layers - half), recursive(half)
        return half + late + early, max(1 + kept_late, kept_early)

    assert sum(place + 1 for place in range(32)) == recomputed_layers(32) == 528
    passes, kept = recursive(32)
    assert passes <= 32 * 6 and kept == 5


def products(function, *arguments):
    return jax.jit(function).lower(*arguments).cost_analysis()["flops"]


@pytest.mark.compiles
def test_recomputing_half_of_8_layers_runs_a_sixth_of_a_step_more():
    def loss(recomputed):
        def run(ws, x):
            for i, w in enumerate(ws):
                step = jax.checkpoint(lambda x, w: jnp.tanh(x @ w)) if i < recomputed else lambda x, w: jnp.tanh(x @ w)
                x = step(x, w)
            return jnp.sum(x)

        square = jax.ShapeDtypeStruct((128, 128), jnp.float32)
        return products(jax.value_and_grad(run, argnums=(0, 1)), [square] * 8, square)

    assert loss(8) / loss(0) - 1 == pytest.approx(overhead(1), rel=0.01)
    assert loss(4) / loss(0) - 1 == pytest.approx(overhead(0.5), rel=0.01)


@pytest.mark.compiles
def test_scores_take_2_7_percent_of_a_gpt_3_layers_products():
    tokens, s, h = 64, 32, 16
    weights = products(
        lambda x, q, o, u, d: (x @ q, x @ o, (x @ u) @ d),
        *floats((tokens, h), (h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)),
    )
    scores = products(
        lambda q, k, v: jnp.einsum("bst,bth->bsh", jnp.einsum("bsh,bth->bst", q, k), v),
        *floats(*[(tokens // s, s, h)] * 3),
    )
    assert scores / (weights + scores) == pytest.approx(attention_cost_share(s, h))
    assert attention_cost_share(2048, 12288) == pytest.approx(1 / 37)


def floats(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def test_square_tensors_are_70_percent_of_what_a_gpt_3_layer_saves():
    shape = {"tokens": 2048, "length": 2048, "embed": 12288, "heads": 96}
    saved = 1 - gpt_saved_bytes(**shape, scores=False) / gpt_saved_bytes(**shape)
    assert float(saved) == pytest.approx(attention_saved_share(2048, 12288, 96)) == pytest.approx(0.702, rel=1e-3)


@pytest.mark.parametrize("dtype, mantissa_bits, largest", [(jnp.float8_e4m3fn, 3, 448), (jnp.float8_e5m2, 2, 57344)])
def test_eight_bits_round_by_up_to_6_25_and_12_5_percent(dtype, mantissa_bits, largest):
    values = np.linspace(1, 2, 4097, dtype=np.float32)
    error = np.abs(np.asarray(values.astype(dtype), np.float32) / values - 1).max()
    assert 0.85 * rounding_error(mantissa_bits) < error <= rounding_error(mantissa_bits)
    assert float(jnp.finfo(dtype).max) == largest and jnp.dtype(dtype).itemsize * 2 == jnp.dtype(jnp.bfloat16).itemsize
