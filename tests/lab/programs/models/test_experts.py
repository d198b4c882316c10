"""Experts on one device: a layer against all experts on all tokens, and the parts of routing against numbers worked out
by hand."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lab.programs.models import experts, routers
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.decoder import initial, routed_and_shared
from lab.programs.models.shape import DecoderShape
from tests.lab.programs.models import dense_mixture
from tests.long_tests import one_in

pytestmark = pytest.mark.compiles

TINY = DecoderShape(
    layers=2,
    batch=3,
    length=24,
    embed=8,
    kv_heads=2,
    queries=1,
    head_dim=4,
    mlp=12,
    vocab=17,
    dtype="f32",
    experts=4,
    shared=2,
)
FEW_SLOTS, ALL_SLOTS = 0.75, 4.0


def one_layer(shape: DecoderShape) -> dict[str, nnx.Variable]:
    """Of the first layer, its bias large enough to move some choices."""
    layer = jax.tree.map(lambda w: w[0], initial(shape)["layers"])
    names = (
        "router",
        "gate",
        "up",
        "down",
        "shared_gate",
        "shared_up",
        "shared_down",
        *(("bias",) if shape.biases else ()),
    )
    return {
        name: layer[name].replace(jnp.linspace(-0.2, 0.2, shape.experts)) if name == "bias" else layer[name]
        for name in names
    }


def plain(layer: dict) -> dict[str, jax.Array]:
    return {name: weight.get_value() for name, weight in layer.items()}


@pytest.mark.parametrize(
    ("sizes", "drops"),
    one_in(
        2,
        [
            ({"top_k": 1, "capacity_factor": FEW_SLOTS}, True),
            ({"top_k": 2, "capacity_factor": FEW_SLOTS}, True),
            ({"top_k": 3, "capacity_factor": ALL_SLOTS}, False),
            ({"router": "sigmoid_bias", "z": 0.3, "capacity_factor": FEW_SLOTS}, True),
            ({"router": "expert_choice", "z": 0.3, "capacity_factor": 1.0}, False),
            ({"experts": 8, "nodes": 2, "router": "sigmoid_bias", "capacity_factor": 1.4}, True),
            (
                {
                    "experts": 8,
                    "router": "sigmoid_bias",
                    "routed_scale": 2.5,
                    "nodes": 4,
                    "node_limit": 2,
                    "top_k": 4,
                    "capacity_factor": ALL_SLOTS,
                },
                False,
            ),
            ({"top_k": 3, "dispatch": "padded", "capacity_factor": FEW_SLOTS}, False),
        ],
    ),
    ids=[
        "one of four, drops",
        "drops",
        "no drops",
        "biased",
        "experts choose",
        "one node of two, drops",
        "two nodes of four",
        "dropless",
    ],
)
def test_a_layer_and_its_gradients_are_those_of_all_experts_on_all_tokens(sizes, drops):
    shape = replace(TINY, balance=0.5, **sizes)
    x, u = (jax.random.normal(jax.random.key(i), (3, 24, 8)) for i in (1, 2))
    layer = one_layer(shape)
    kept = int((dense_mixture.weights(x, plain(layer), shape) > 0).sum()) / (x[..., 0].size * shape.top_k)
    assert 0.5 < kept < 0.95 if drops else kept == 1

    def found(x, layer):
        return jnp.sum(u * routed_and_shared(x, x, layer, shape, CollectiveHooks()))

    def expected(x, w):
        loss = dense_mixture.losses(x, w, shape)
        return jnp.sum(u * dense_mixture.mixture(x, w, shape)) + loss - jax.lax.stop_gradient(loss)

    with jax.default_matmul_precision("highest"):
        value, (gx, gw) = jax.jit(jax.value_and_grad(found, (0, 1)))(x, layer)
        chex.assert_trees_all_close(
            (value, (gx, plain(gw))),
            jax.jit(jax.value_and_grad(expected, (0, 1)))(x, plain(layer)),
            rtol=1e-5,
            atol=1e-5,
        )


def test_a_token_takes_the_next_slot_of_each_of_its_experts():
    assert routers.slots(jnp.array([[0, 2], [2, 1], [2, 0], [0, 1]]), 3).tolist() == [[0, 0], [1, 0], [2, 1], [2, 1]]


def test_the_third_token_of_an_expert_with_two_slots_gets_nothing_back():
    routes = routers.Routes(jnp.array([[0], [0], [0], [1]]), jnp.array([[0], [1], [2], [0]]), jnp.full((4, 1), 0.5))
    x_TD = jnp.arange(8.0).reshape(4, 2) + 1
    y_ECD = experts.dispatched(x_TD, routes, 2, 2)
    assert y_ECD.tolist() == [[[1, 2], [3, 4]], [[7, 8], [0, 0]]]
    assert experts.combined(y_ECD, routes).tolist() == [[0.5, 1], [1.5, 2], [0, 0], [3.5, 4]]


def test_a_bias_moves_the_choice_and_not_the_weights():
    gates_TE = jnp.array([[0.6, 0.3, 0.2]])
    routes = routers.routes(gates_TE, 2, jnp.array([0.0, 0.0, 0.5]))
    assert routes.expert_Tk.tolist() == [[2, 0]]
    np.testing.assert_allclose(routes.weight_Tk, [[0.25, 0.75]])


def test_one_expert_a_token_keeps_its_gate():
    assert routers.weights(jnp.array([[0.3]])).tolist() == [[pytest.approx(0.3)]]
    assert routers.weights(jnp.array([[0.3, 0.1]])).tolist() == [[pytest.approx(0.75), pytest.approx(0.25)]]


def test_only_the_two_nodes_with_the_largest_sums_stay_open():
    # Sums of the two best of each node: 0.8, 1.1, 1.2, 0.9; of all: 1.2, 1.15, 1.7, 0.9.
    gates_TE = jnp.array([[0.4, 0.4, 0.4, 0.5, 0.6, 0.05, 0.6, 0.6, 0.5, 0.8, 0.1, 0.0]])
    open_TE = routers.within_nodes(gates_TE, nodes=4, limit=2, k=4) > 0
    assert np.flatnonzero(open_TE).tolist() == [3, 4, 5, 6, 7, 8]


def test_the_sums_of_nodes_have_the_bias():
    gates_TE, bias_E = jnp.array([[0.5, 0.4, 0.3, 0.2, 0.6, 0.1]]), jnp.array([0.0, 0.0, 0.3, 0.3, 0.0, 0.0])
    # Sums of the two best of each node: 0.9, 0.5 and 0.7; with the bias 0.9, 1.1 and 0.7.
    routes = routers.routes(gates_TE, 2, bias_E, nodes=3, limit=1)
    assert routes.expert_Tk.tolist() == [[2, 3]]
    np.testing.assert_allclose(routes.weight_Tk, [[0.6, 0.4]], rtol=1e-6)


def test_a_bias_opens_no_closed_node():
    open_TE = routers.within_nodes(jnp.array([[0.9, 0.8, 0.1, 0.2, 0.5, 0.4]]), nodes=3, limit=2, k=2)
    assert routers.chosen(open_TE, 2, jnp.array([0, 0, 1.5, 0, 0, 0])).tolist() == [[0, 1]]


def test_each_bias_moves_by_one_step_towards_the_mean_load():
    found = routers.rebalanced(jnp.zeros(3), jnp.array([10.0, 2.0, 6.0]), 0.001)
    assert found.tolist() == pytest.approx([-0.001, 0.001, 0.0])


def test_large_logits_cost_the_square_of_their_logsumexp():
    assert float(routers.z_loss(jnp.log(jnp.array([[1.0, 2.0, 1.0], [0.5, 0.25, 0.25]])))) == pytest.approx(
        np.log(4) ** 2 / 2
    )


@pytest.mark.parametrize(("router", "changes"), [("softmax", False), ("expert_choice", True)])
def test_later_tokens_change_no_earlier_token_but_where_experts_choose(router, changes):
    shape = replace(TINY, capacity_factor=FEW_SLOTS, router=router)
    x_BSD, layer = jax.random.normal(jax.random.key(3), (1, 24, 8)), one_layer(shape)
    run = jax.jit(lambda x, layer: routed_and_shared(x, x, layer, shape, CollectiveHooks()))
    is_changed = (run(x_BSD, layer)[:, :12] != run(x_BSD.at[:, 12:].multiply(-2), layer)[:, :12]).any(-1)
    assert bool(is_changed.any()) is changes
