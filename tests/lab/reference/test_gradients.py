"""The backward pass by hand against central differences of the forward pass, in float64."""

from dataclasses import replace

import numpy as np
import pytest

from lab.programs.models.shape import DecoderShape
from lab.reference.decoder import forward
from tests.lab.reference.weights import drawn_tokens, drawn_weights

DENSE = DecoderShape(layers=2, batch=3, length=6, embed=8, kv_heads=2, queries=3, head_dim=4, mlp=10, vocab=11)
EXPERTS = replace(DENSE, experts=8, z=0.3, balance=0.5)
SHAPES = {
    "dense": DENSE,
    "tied, a window of two": replace(DENSE, tied=True, window=2),
    "all keys": replace(DENSE, causal=False),
    "experts with a shared one": replace(EXPERTS, shared=2),
    "half dropped": replace(EXPERTS, capacity_factor=0.5),
    "one expert": replace(EXPERTS, top_k=1),
    "dropless": replace(EXPERTS, dispatch="padded", top_k=3),
    "biased, two nodes of four": replace(
        EXPERTS, router="sigmoid_bias", routed_scale=2.5, nodes=4, node_limit=2, top_k=4, capacity_factor=0.7
    ),
    "squared ReLU, normed heads": replace(DENSE, activation="relu2", normed_heads=True),
    "experts with GELU": replace(EXPERTS, activation="gelu", shared=1),
    "two dense layers before two with experts": replace(EXPERTS, layers=4, dense_layers=2, shared=1),
    "the token after the next": replace(DENSE, mtp=1, tied=True),
    "and with experts": replace(EXPERTS, layers=4, dense_layers=2, mtp=1, mtp_weight=0.7),
    "latent attention": replace(DENSE, queries=1, query_rank=6, kv_rank=5, rope_dim=2),
    "experts choose": replace(EXPERTS, router="expert_choice"),
}
H = 3e-6


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_gradient_is_the_slope_of_loss_and_auxiliary_losses(shape):
    weights, tokens = drawn_weights(shape), drawn_tokens(shape)
    gradients = forward(weights, *tokens, shape).gradients()
    draw = np.random.default_rng(1)

    def objective(name, change):
        found = forward(weights | {name: weights[name] + change}, *tokens, shape)
        return found.loss + found.auxiliary

    for name in sorted(set(weights) - {"layers/bias"}):
        for _ in range(2):
            along = draw.standard_normal(weights[name].shape)
            slope = (objective(name, H * along) - objective(name, -H * along)) / (2 * H)
            assert slope == pytest.approx(np.sum(gradients[name] * along), rel=1e-6, abs=1e-9), name


def test_what_stands_for_a_biases_gradient_are_the_assignments_beyond_the_mean():
    shape = SHAPES["biased, two nodes of four"]
    gradients = forward(drawn_weights(shape), *drawn_tokens(shape), shape).gradients()
    excess_LE = gradients["layers/bias"]
    assert np.all(excess_LE.sum(-1) == 0) and np.abs(excess_LE).max() > 1
    assert np.all(excess_LE + 3 * 6 * 4 / 8 == np.round(excess_LE + 3 * 6 * 4 / 8))
