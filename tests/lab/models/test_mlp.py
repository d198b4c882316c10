from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from lab.models.mlp import SMALL, MlpShape, Seams, Weights, loss
from meshes.errors import Unusable


def _inputs(shape: MlpShape):
    draw = np.random.default_rng(1).standard_normal
    L, B, D, F = shape.layers, shape.batch, shape.embed, shape.mlp
    sizes = ((L, D, F), (L, F, D), (B, D), (B, D))
    up_LDF, down_LFD, x_BD, y_BD = ((0.1 * draw(size)).astype("float32") for size in sizes)
    return Weights(up_LDF, down_LFD), x_BD, y_BD


def test_loss_equals_a_loop_in_numpy():
    weights, x_BD, y_BD = _inputs(SMALL)
    x = np.asarray(x_BD, np.float64)
    for up_DF, down_FD in zip(np.asarray(weights.up, np.float64), np.asarray(weights.down, np.float64)):
        h = x @ up_DF
        x = x + (0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))) @ down_FD
    assert jax.jit(partial(loss, shape=SMALL))(weights, x_BD, y_BD) == pytest.approx(np.mean((x - np.asarray(y_BD)) ** 2), rel=1e-5)


def test_recomputation_changes_no_gradient():
    inputs = _inputs(SMALL)
    kept, recomputed = (jax.jit(jax.grad(partial(loss, shape=replace(SMALL, remat=remat))))(*inputs) for remat in (False, True))
    np.testing.assert_allclose(kept.up, recomputed.up, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(kept.down, recomputed.down, rtol=1e-5, atol=1e-8)


def test_seams_join_first_to_last():
    joined = Seams(enter=lambda x: x + 1) | Seams(enter=lambda x: 10 * x, leave=lambda x: -x)
    assert (joined.enter(2), joined.leave(3), joined.up(4)) == (30, -3, 4)


def test_four_layers_of_two_matrices_have_eight_matrices_of_parameters():
    assert MlpShape(layers=4, embed=10, mlp=30).parameters == 8 * 300


def test_one_layer_which_is_no_loop_is_refused():
    with pytest.raises(Unusable, match="layers=1: expected 2 or more"):
        MlpShape(layers=1)


def test_an_unknown_dtype_is_refused():
    with pytest.raises(Unusable, match="dtype=f8: expected bf16 or f32"):
        MlpShape(dtype="f8")
