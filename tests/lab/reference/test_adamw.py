"""The closed form against Optax, step by step, and by how much gradients that are off can move a weight."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lab.reference.adamw import (
    B1,
    B2,
    DECAY,
    EPSILON,
    LEARNING_RATE,
    clipped,
    first_moment,
    movable,
    norm,
    second_moment,
    weight_after,
)


def drawn(seed: int, scale: float = 1e-2) -> list[np.ndarray]:
    """Three gradients, with entries from nothing to `scale`."""
    draw = np.random.default_rng(seed)
    return [scale * draw.standard_normal(200) ** 5 for _ in range(3)]


@pytest.mark.compiles
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_weights_and_moments_are_those_of_optax(steps):
    start, (past, *rest) = np.random.default_rng(7).standard_normal(200), [*drawn(8), *drawn(9)]
    optimizer = optax.adamw(LEARNING_RATE, b1=B1, b2=B2, eps=EPSILON, weight_decay=DECAY)
    w = jnp.float32(start)
    _, state = optimizer.update(jnp.float32(past), optimizer.init(w), w)
    for g in rest[:steps]:
        change, state = optimizer.update(jnp.float32(g), state, w)
        w = optax.apply_updates(w, change)
    history = [past, *rest[:steps]]
    np.testing.assert_allclose(w, weight_after("w", start, history), rtol=0, atol=1e-6)
    for found, expected in ((state[0].mu, first_moment(history)), (state[0].nu, second_moment(history))):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_a_norm_of_5_is_clipped_to_1_and_one_of_a_half_stays():
    assert norm({"a": np.array([3.0]), "b": np.array([4.0]), "layers/bias": np.array([100.0])}) == 5
    assert list(clipped({"a": np.array([3.0, 4.0])})["a"]) == pytest.approx([3 / 5, 4 / 5])
    assert clipped({"a": np.array([0.5])}) == {"a": 0.5}


def test_a_bias_goes_against_the_sign_of_its_excess():
    excess = [np.zeros(3), np.array([2.0, -1.0, 0.0]), np.array([0.5, -3.0, 1.0])]
    np.testing.assert_allclose(weight_after("layers/bias", np.zeros(3), excess), [-2e-3, 2e-3, -1e-3])


@pytest.mark.parametrize("error", [1e-12, 1e-9, 1e-7, 1e-5])
def test_gradients_that_are_off_move_a_weight_by_no_more_than_is_said(error):
    past = np.random.default_rng(3).uniform(1e-3, 2e-3, 200)
    history, start = [past, *drawn(9)], np.zeros(200)
    bound = movable(history, [error] * 4)
    for seed in range(20):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], (4, 200))
        other = [g + error * sign for g, sign in zip(history, signs, strict=True)]
        moved = np.abs(weight_after("w", start, other) - weight_after("w", start, history))
        assert np.all(moved <= 1.01 * bound)


def test_gradients_a_hundred_times_their_error_leave_a_step_known_to_two_percent():
    assert movable([np.array([1e-3])] * 2, [1e-5] * 2)[0] == pytest.approx(0.02 * LEARNING_RATE, rel=1e-3)
