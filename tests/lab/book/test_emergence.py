"""Chapter 9 against a fresh model's loss, answers that count only whole, and least squares beyond as many features as
examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.book.compute_optimal import compute_optimal_flops
from lab.book.emergence import (
    exact_match_share,
    loss_below_critical,
    reducible_after,
    success_share,
    uniform_loss,
)


@pytest.mark.compiles
@pytest.mark.parametrize("vocab", [512, 32000])
def test_a_fresh_model_s_loss_is_the_logarithm_of_its_vocabulary(vocab):
    keys = jax.random.split(jax.random.key(9), 4)
    table_VH, hidden_HH, head_HV = (
        0.02 * jax.random.normal(key, shape)
        for key, shape in zip(keys, [(vocab, 64), (64, 64), (64, vocab)], strict=False)
    )
    tokens_B, targets_B = jax.random.randint(keys[3], (2, 256), 0, vocab)
    log_p_BV = jax.nn.log_softmax(jnp.tanh(table_VH[tokens_B] @ hidden_HH) @ head_HV)
    loss = -jnp.mean(jnp.take_along_axis(log_p_BV, targets_B[:, None], 1))
    assert float(loss) == pytest.approx(uniform_loss(vocab), rel=1e-3)


def test_gpt_3_and_llama_start_from_10_83_10_37_and_11_76_nats():
    assert uniform_loss(np.array([50257, 32000, 128256])) == pytest.approx([10.825, 10.373, 11.762], abs=5e-4)


def test_answers_of_20_tokens_jump_from_1_percent_to_67_while_each_token_goes_from_80_to_98():
    right = np.random.default_rng(9).random((50_000, 20))
    for p in (0.8, 0.98):
        assert (right < p).all(axis=1).mean() == pytest.approx(exact_match_share(p, 20), abs=0.005)
    assert exact_match_share(np.array([0.8, 0.98]), 20) == pytest.approx([0.0115, 0.668], rel=5e-3)


def test_5_percent_at_10b_and_a_half_at_50b_put_the_critical_loss_at_2_094():
    drop = -loss_below_critical(0.05, 0.1)
    assert (drop, 5**0.34, reducible_after(drop, 5, 0.34)) == pytest.approx((0.29444, 1.728, 0.4042), rel=1e-3)
    assert 1.69 + reducible_after(drop, 5, 0.34) == pytest.approx(2.094, abs=5e-4)
    assert success_share(2.094 + drop, 2.094, 0.1) == pytest.approx(0.05)


def test_60b_need_4_32e23_flops_and_1e23_leaves_them_4_63_tokens_a_parameter():
    assert compute_optimal_flops(60e9) == pytest.approx(4.32e23)
    assert pytest.approx(4.63, rel=1e-3) == 1e23 / 6 / 60e9 / 60e9


def held_out_error(features, examples=60, inputs=20):
    """Least-norm fit of a noisy linear rule by random tanh features."""
    random = np.random.default_rng(90)
    rule_I, map_IF = random.normal(size=inputs), random.normal(size=(inputs, features)) / np.sqrt(inputs)
    x_NI, held_MI = random.normal(size=(examples, inputs)), random.normal(size=(2000, inputs))
    weights_F = np.linalg.pinv(np.tanh(x_NI @ map_IF)) @ (x_NI @ rule_I + random.normal(size=examples))
    return np.mean((np.tanh(held_MI @ map_IF) @ weights_F - held_MI @ rule_I) ** 2)


def test_a_model_that_sees_60_examples_over_and_over_is_worst_with_60_features_not_with_20_or_1000():
    few, as_many, more = (held_out_error(features) for features in (20, 60, 1000))
    assert as_many > 5 * max(few, more)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: success_share(2.1, 2.0, 0), "width=0"),
        (lambda: loss_below_critical(1, 0.1), "success_share=1: expected less than 1"),
        (lambda: uniform_loss(0), "vocab=0"),
        (lambda: reducible_after(0.3, 1, 0.34), "size_ratio=1: expected more than 1"),
        (lambda: exact_match_share(1.5, 4), "token_share=1.5"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
