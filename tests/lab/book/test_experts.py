"""Chapter 18 decided by numbers: gradients of routers, losses of balance, drops of random routers, FLOP that XLA
counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.book.device_mesh import coordinates_of, groups
from lab.book.experts import (
    all_to_all_wire_bytes,
    balance_gradient,
    balance_loss,
    buffer_bytes,
    capacity,
    distinct_nodes,
    dropped_share,
    entropy_nats,
    gate_gradient,
    gini,
    token_flops,
    tokens_per_expert,
)

RNG = np.random.default_rng(0)
E, K, H = 6, 2, 5


def mixture(logits, outputs, k):
    """Top k of a softmax, normalised to 1."""
    gates = jax.nn.softmax(logits)
    chosen = jnp.argsort(-logits)[:k]
    return gates[chosen] / gates[chosen].sum() @ outputs[chosen]


@pytest.mark.compiles
def test_the_routers_gradient_is_that_of_jax():
    with jax.enable_x64(True):
        logits, outputs, upstream = (jnp.asarray(RNG.normal(size=size)) for size in (E, (E, H), H))
        found = np.asarray(jax.grad(lambda z: mixture(z, outputs, K) @ upstream)(logits))
        chosen = np.argsort(-np.asarray(logits))[:K]
        weights = np.exp(np.asarray(logits)[chosen])
        np.testing.assert_allclose(
            found[chosen], gate_gradient(weights / weights.sum(), np.asarray(outputs)[chosen], upstream), rtol=1e-10
        )
        assert np.abs(np.delete(found, chosen)).max() < 1e-15


@pytest.mark.compiles
def test_a_normalised_top_1_gives_its_router_no_gradient_and_the_plain_gate_does():
    logits, outputs = jnp.asarray(RNG.normal(size=E)), jnp.asarray(RNG.normal(size=(E, H)))
    best = int(jnp.argmax(logits))
    assert not jax.grad(lambda z: mixture(z, outputs, 1).sum())(logits).any()
    assert jax.grad(lambda z: (jax.nn.softmax(z)[best] * outputs[best]).sum())(logits).any()


def test_a_loss_below_that_of_perfect_balance_exists():
    gates = np.array([(0.51, 0.49)] * 3 + [(0.01, 0.99)] * 2)
    assigned = np.bincount(gates.argmax(1), minlength=2) / 5
    assert assigned.tolist() == [0.6, 0.4]
    assert balance_loss([0.5, 0.5], [0.5, 0.5]) == 1 and balance_loss(assigned, gates.mean(0)) == pytest.approx(0.924)


@pytest.mark.compiles
def test_the_gradient_of_balance_is_that_of_jax_with_shares_held_fixed_and_double_without():
    logits, f = jnp.asarray([0.3, -0.2, 0.9]), jnp.asarray([0.2, 0.3, 0.5])
    found = jax.grad(lambda z: 3 * (f * jax.nn.softmax(z)).sum())(logits)
    gates = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(found, balance_gradient(f, gates), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(
        jax.grad(lambda z: 3 * (jax.nn.softmax(z) ** 2).sum())(logits),
        2 * balance_gradient(gates, gates),
        rtol=1e-4,
        atol=1e-7,
    )
    np.testing.assert_allclose(balance_gradient([0.6, 0.4], [0.6, 0.4]) / 2, [0.048, -0.048])


def test_balancing_by_gradient_is_far_from_done_after_100_steps():
    z = np.log([0.6, 0.4])
    for _ in range(100):
        p = np.exp(z) / np.exp(z).sum()
        z = z - 0.1 * balance_gradient(p, p, weight=0.01) * 2
    assert np.exp(z)[0] / np.exp(z).sum() == pytest.approx(0.591, abs=2e-3)


def test_a_uniform_router_drops_1_4_percent_at_20_slots_not_10():
    picks = RNG.random((20_000, 64, 8)).argsort(2)[:, :, :2]
    loads = (picks == 0).any(2).sum(1)
    for slots, expected in ((16, 0.0859), (20, 0.0142), (22, 0.0043)):
        assert dropped_share(64, 2 / 8, slots) == pytest.approx(expected, rel=0.01)
        assert np.maximum(0, loads - slots).mean() / 16 == pytest.approx(expected, rel=0.1, abs=2e-4)


def test_expert_choice_gives_every_expert_16_tokens_and_some_tokens_none():
    scores = RNG.normal(size=(64, 8))
    count = int(tokens_per_expert(64, 8, 2))
    chosen = np.zeros((64, 8), bool)
    for expert in range(8):
        chosen[np.argsort(-scores[:, expert])[:count], expert] = True
    assert chosen.sum(0).tolist() == [16] * 8 and chosen.sum(1).min() == 0 and chosen.sum(1).max() > 2


def test_expert_choice_looks_into_the_future():
    scores = RNG.normal(size=16)
    later = np.append(scores, scores[:3] + np.abs(scores).max() * 3)
    assert not set(np.argsort(-scores)[:4]) <= set(np.argsort(-later)[:4])


def test_every_expert_gets_every_token_under_top_2_of_2():
    picks = RNG.normal(size=(100, 2)).argsort(1)[:, -2:]
    assert np.bincount(picks.ravel()).tolist() == [100, 100]


@pytest.mark.compiles
def test_xla_counts_as_many_flop_for_64_experts_as_for_8():
    def layer(chosen, x, router, up, down):
        return x @ router, [jnp.einsum("tf,tfd->td", jnp.einsum("td,tdf->tf", x, up[c]), down[c]) for c in chosen]

    def flops(experts):
        shapes = (16, 8), (8, experts), (experts, 8, 24), (experts, 24, 8)
        arrays = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        return (
            jax.jit(layer).lower(jax.ShapeDtypeStruct((2, 16), jnp.int32), *arrays).compile().cost_analysis()["flops"]
        )

    products = {experts: 16 * token_flops(2, 8, 24, 2, experts) for experts in (8, 64)}
    assert flops(64) - flops(8) == pytest.approx(products[64] - products[8], rel=0.05)
    assert flops(8) == pytest.approx(products[8], rel=0.05)


def test_skew_slows_one_receiver_and_not_the_average():
    whole, P = 1024 * 4096 * 2, 8
    share = np.full(P, 0.5 / 7)
    share[0] = 0.5
    sent, received = whole * (1 - share), whole * share * (P - 1)
    assert sent[0] == pytest.approx(4.194e6, rel=1e-3) and sent[1] == pytest.approx(7.79e6, rel=1e-3)
    assert sent.mean() == all_to_all_wire_bytes(whole, P, 1) == 7_340_032
    assert received[0] == 29_360_128 and received[0] / sent.mean() == 4


def test_static_capacity_sends_73_400_320_bytes_a_training_step():
    assert capacity(1024, 8, 2, 1.25) == 320
    assert all_to_all_wire_bytes(int(buffer_bytes(1024, 4096, 2, 2, 1.25)), 8) == 73_400_320


def test_rank_13_of_4_by_8_by_2_stands_in_the_groups_that_the_book_prints():
    assert coordinates_of(13, (2, 8, 4)) == (0, 3, 1)
    found = [next(set(map(int, g)) for g in groups((2, 8, 4), (axis,)) if 13 in g) for axis in (2, 1, 0)]
    assert found == [{12, 13, 14, 15}, {1, 5, 9, 13, 17, 21, 25, 29}, {13, 45}]


def test_loads_80_5_5_10_have_entropy_0_708_and_gini_0_575():
    assert entropy_nats([80, 5, 5, 10]) == pytest.approx(0.708, abs=1e-3)
    assert gini([80, 5, 5, 10]) == pytest.approx(0.575)


def test_a_token_of_6_experts_of_64_visits_4_54_of_8_nodes():
    picks = RNG.random((20_000, 64)).argsort(1)[:, :6] // 8
    visited = np.mean([len(set(row)) for row in picks])
    assert distinct_nodes(64, 6, 8) == pytest.approx(visited, rel=0.01) == pytest.approx(4.54, rel=0.01)


def test_chance_above_1_is_named():
    with pytest.raises(ValueError, match="chance=1.5"):
        dropped_share(64, 1.5, 20)
