"""The decoder on one device: its loss against loops in NumPy, its gradients against themselves, its sizes against
published ones."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend import core

from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.decoder import initial, layers, rms_norm, rotated, rotation, weights
from lab.programs.models.shape import REMATS, DecoderShape
from lab.programs.strategies.program import mean_loss
from tests.lab.programs.models import numpy_decoder

pytestmark = pytest.mark.compiles

TINY = DecoderShape(
    layers=2, batch=2, length=5, embed=12, kv_heads=2, queries=3, head_dim=4, mlp=20, vocab=17, dtype="f32"
)


def tokens(shape: DecoderShape) -> np.ndarray:
    """Tokens and targets, [2, B, S]."""
    return np.random.default_rng(1).integers(0, shape.vocab, (2, shape.batch, shape.length), dtype=np.int32)


def perturbed(shape: DecoderShape) -> nnx.State:
    """Initial weights with norms that are not all ones."""
    draw = np.random.default_rng(2)
    return jax.tree.map(lambda w: w * draw.uniform(0.5, 1.5, w.shape).astype(np.float32), initial(shape))


def arrays(state: nnx.State) -> dict[str, np.ndarray]:
    """Every weight by the last part of its name, in float64."""
    return {path[-1]: np.asarray(weight.get_value(), np.float64) for path, weight in nnx.to_flat_state(state)}


@pytest.mark.parametrize(
    "sizes", [{}, {"tied": True}, {"queries": 1, "kv_heads": 3}], ids=["grouped", "tied", "all heads"]
)
def test_the_loss_is_that_of_loops_over_tokens_and_heads_in_float64(sizes):
    shape = replace(TINY, **sizes)
    state = perturbed(shape)
    with jax.default_matmul_precision("highest"):
        loss = mean_loss(state, *tokens(shape), shape)
    assert float(loss) == pytest.approx(numpy_decoder.mean_loss(arrays(state), *tokens(shape)), rel=2e-6)


def test_a_tied_decoder_has_no_head_and_an_untied_one_has():
    assert "head" in weights(TINY) and "head" not in weights(replace(TINY, tied=True))


@pytest.mark.parametrize("remat", REMATS)
def test_recomputation_changes_no_gradient(remat):
    shape = replace(TINY, remat=remat)
    expected, found = (
        jax.jit(jax.grad(mean_loss), static_argnums=3)(perturbed(TINY), *tokens(TINY), s)
        for s in (replace(TINY, remat="none"), shape)
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("remat", "products"), [("none", 0), ("selective", 1), ("dots", 2), ("names", 7), ("full", 8)])
def test_the_backward_pass_repeats_the_products_that_its_policy_does_not_keep(remat, products):
    """Of a layer's nine: the scores; what the scores weigh; query, key, value, gate, up; out, which the MLP begins
    with; never down."""
    assert (
        _count("dot_general[", replace(TINY, remat=remat)) - _count("dot_general[", replace(TINY, remat="none"))
        == products
    )


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize(
    ("sizes", "choices"),
    [({}, 1), ({"router": "expert_choice"}, 1), ({"router": "sigmoid_bias", "nodes": 2, "node_limit": 1}, 3)],
    ids=["tokens choose", "experts choose", "tokens choose nodes, too"],
)
def test_the_backward_pass_takes_the_experts_that_the_forward_pass_chose(remat, sizes, choices):
    """Chosen again they may be others, by the last bit of a sum, and the gradient that of another loss. A node is
    chosen by the sorted gates of its experts."""
    assert _count("sort[", replace(TINY, experts=4, remat=remat, **sizes)) == choices


def _count(operation: str, shape: DecoderShape) -> int:
    """Of a step's gradients."""
    return str(jax.make_jaxpr(jax.grad(lambda state: mean_loss(state, *tokens(shape), shape)))(initial(shape))).count(
        operation
    )


@pytest.mark.parametrize("tied", [False, True])
def test_before_training_every_word_is_about_as_likely(tied):
    """Logits of scale one make the loss of uniform guesses, ln 512 = 6.24, and half a unit for their spread."""
    shape = replace(TINY, embed=256, vocab=512, batch=8, length=32, tied=tied)
    loss = float(mean_loss(initial(shape), *tokens(shape), shape))
    assert loss == pytest.approx(np.log(512) + 0.5, abs=0.25)


def test_initial_weights_are_ones_for_norms_and_else_keep_the_scale_of_their_input():
    shape = replace(TINY, embed=64, kv_heads=4, queries=2, head_dim=16, mlp=96, vocab=300)
    scales = {
        path[-1]: (float(w.get_value().std()), float(w.get_value().mean()))
        for path, w in nnx.to_flat_state(initial(shape))
    }
    assert {name: scales.pop(name) for name in ("norm", "attention_norm", "mlp_norm")} == dict.fromkeys(
        ("norm", "attention_norm", "mlp_norm"), (0.0, 1.0)
    )
    inputs = dict.fromkeys(scales, 64) | {"out": 4 * 2 * 16, "down": 96}
    for name, (spread, mean) in scales.items():
        assert spread * inputs[name] ** 0.5 == pytest.approx(1, rel=0.03), name
        assert abs(mean) < 0.1 * spread, name


def test_every_weight_names_each_of_its_dims():
    for path, weight in nnx.to_flat_state(initial(TINY)):
        per_layer = weight.get_value().ndim - (path[0] == "layers")
        assert len([dim for dim in weight.dims if dim != "layers"]) == per_layer


def test_products_are_bf16_and_scores_and_the_loss_are_f32():
    shape = replace(TINY, dtype="bf16")
    program = str(jax.make_jaxpr(lambda state: mean_loss(state, *tokens(shape), shape))(initial(shape)))
    assert mean_loss(initial(shape), *tokens(shape), shape).dtype == jnp.float32
    assert ":bf16[2,5,17] = dot_general" in program
    assert ":f32[2,2,5,5,3] = dot_general" in program


def test_a_rotation_keeps_lengths_and_sees_distances_alone():
    cos_SH, sin_SH = rotation(TINY, jnp.arange(9))
    q_BSnH, k_BSnH = (jnp.broadcast_to(jax.random.normal(jax.random.key(i), (4,)), (1, 9, 1, 4)) for i in (0, 1))
    q_SH, k_SH = (rotated(x, cos_SH, sin_SH)[0, :, 0] for x in (q_BSnH, k_BSnH))
    np.testing.assert_allclose(jnp.linalg.norm(q_SH, axis=-1), jnp.linalg.norm(q_BSnH[0, :, 0], axis=-1), rtol=1e-5)
    assert float(q_SH[7] @ k_SH[4]) == pytest.approx(float(q_SH[3] @ k_SH[0]), rel=1e-4)
    assert float(q_SH[7] @ k_SH[4]) != pytest.approx(float(q_SH[7] @ k_SH[3]), rel=1e-2)


def products_always_run(jaxpr) -> int:
    """Those that no branch can skip."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [] if equation.primitive.name == "cond" else core.jaxprs_in_params(equation.params)
        total += (equation.primitive.name == "dot_general") + sum(map(products_always_run, inner))
    return total


@pytest.mark.parametrize(("is_in_vain", "expected"), [(False, 0), (True, 9)], ids=["skipped", "in vain"])
def test_layers_that_a_stage_does_not_have_are_in_branches_of_their_own(is_in_vain, expected):
    x_BSD = jax.ShapeDtypeStruct((TINY.batch, TINY.length, TINY.embed), jnp.float32)
    found = jax.make_jaxpr(
        lambda state, x_BSD, count: layers(
            state["layers"], x_BSD, replace(TINY, remat="none"), CollectiveHooks(), count, is_in_vain
        )
    )(weights(TINY), x_BSD, jnp.int32(1))
    assert products_always_run(found.jaxpr) == expected


def test_a_norm_squares_and_averages_in_float32():
    """Which bytes and numbers of a float32 program do not tell."""
    x_BSD, norm_D = jnp.ones((2, 5, 12), jnp.bfloat16), jnp.ones(12, jnp.bfloat16)
    found = jax.make_jaxpr(rms_norm)(x_BSD, norm_D)
    made = {e.primitive.name: e.outvars[0].aval.dtype for e in found.jaxpr.eqns}
    assert made["rsqrt"] == jnp.float32 and found.out_avals[0].dtype == jnp.bfloat16
    assert all(e.invars[0].aval.dtype == jnp.float32 for e in found.jaxpr.eqns if e.primitive.name == "reduce_sum")
