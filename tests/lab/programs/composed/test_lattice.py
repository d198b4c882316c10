"""Strategies side by side: what they hold against the arguments of their programs, and by hand."""

from itertools import product
from math import prod

import jax
import pytest

from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.composed.lattice import MOVES, STYLE, Lattice, lattice, point
from lab.programs.composed.step import step
from lab.programs.models.shape import DecoderShape

SMALL = DecoderShape().shrunk(layers=16, batch=64, embed=64, vocab=128, dtype="bf16")
EXPERTS = DecoderShape(experts=8).shrunk(layers=16, batch=64, embed=64, vocab=128, dtype="bf16", experts=8)


@pytest.fixture(scope="module")
def dense() -> Lattice:
    return lattice(SMALL, 8)


@pytest.fixture(scope="module")
def mixture() -> Lattice:
    return lattice(EXPERTS, 8)


def named(found: Lattice, name: str):
    (one,) = [point for point in found.points if point.name == name]
    return one


@pytest.mark.parametrize("model", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_state_is_what_the_program_takes_as_arguments(model, request):
    for one in lattice(model, 8).points:
        mesh = make_mesh(parse_target("cpu:8"), one.configuration.axes)
        _, args = step(one.configuration, STYLE, model, mesh)
        taken = sum(prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(args))
        assert one.state == taken, one.name


def test_gradients_are_whole_but_for_zero_2_and_3_and_of_16_bits_where_weights_in_use_are_a_copy(dense):
    norms = (2 * 16 + 1) * 64
    whole, eighth = 4 * SMALL.parameters, 4 * ((SMALL.parameters - norms) // 8 + norms)
    assert [named(dense, f"{name} 8").gradients for name in ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "CP")] == [
        whole,
        whole // 2,
        eighth,
        eighth,
        whole,
    ]


def test_each_layers_input_is_kept_of_an_eighth_of_the_tokens_but_by_tensor_parallelism_of_all(dense):
    all_inputs = 16 * 64 * 32 * 64 * 2
    kept = {name: named(dense, f"{name} 8").activations for name in ("DP", "ZeRO-3", "CP", "TP+SP", "TP")}
    assert kept == dict.fromkeys(("DP", "ZeRO-3", "CP", "TP+SP"), all_inputs // 8) | {"TP": all_inputs}


def test_a_stage_keeps_two_layers_of_one_sequence_and_its_inputs_of_those_in_flight(dense):
    a_sequence = 32 * 64 * 2
    kept = named(dense, "PP 8").activations
    assert kept >= (2 + 8) * a_sequence and kept % a_sequence == 0
    assert kept <= (2 + 2 * 8) * a_sequence


def test_a_stage_sends_for_its_own_layers_and_micro_batches_and_not_in_every_tick(dense):
    """The last of four is the busiest: 4 layers forward, twice again, which no last sum needs, and back, the head, and a
    message in each of 134 ticks; of that all but 1 % once a step and in the loss."""
    a_half, in_layers, at_the_head, ticks = 32 * 64 * 2 // 2, 64 * 4 * (4 + 4 + 3 + 4), 64 * 3, 2 * (64 + 4 - 1)
    sent = named(dense, "PP 4 x TP+SP 2").sent
    assert sent == pytest.approx((in_layers + at_the_head + ticks) * a_half, rel=0.02)


def test_a_pair_is_joined_to_both_of_its_strategies(dense):
    into: dict[str, set[str]] = {}
    for one, other, what in dense.moves:
        if not what:
            into.setdefault(other.name, set()).add(one.parts[0])
    pairs = [each for each in dense.points if len(each.parts) == 2]
    assert into == {pair.name: set(pair.parts) for pair in pairs} and len(into) == len(pairs) > 10


def test_moves_of_experts_are_there_where_the_model_has_experts(dense, mixture):
    assert {(a.parts[0], b.parts[0]) for a, b, what in mixture.moves if what} == set(MOVES)
    assert {(a.parts[0], b.parts[0]) for a, b, what in dense.moves if what} == set(MOVES) - {("DP", "EP")}
    assert "set experts to a multiple of the axis" in dense.refused["EP 8"] and not mixture.refused


@pytest.mark.parametrize("which", ["dense", "mixture"])
def test_no_point_beats_one_of_the_frontier_and_one_beats_every_other(which, request):
    found = request.getfixturevalue(which)
    beaten = {
        b.name
        for a, b in product(found.points, repeat=2)
        if a.held <= b.held and a.sent <= b.sent and (a.held < b.held or a.sent < b.sent)
    }
    assert {each.name for each in found.points} - beaten == {each.name for each in found.frontier}
    held = [each.held for each in found.frontier]
    assert held == sorted(held)


def test_zero_shards_in_steps_and_sends_no_more_until_weights_are_gathered(dense):
    dp, *zero = (named(dense, f"{name} 8") for name in ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    assert dp.state > zero[0].state == zero[1].state > zero[2].state
    assert zero[0].gradients > zero[1].gradients == zero[2].gradients
    assert zero[0].sent == pytest.approx(dp.sent, rel=1e-3) and zero[2].sent > 1.2 * dp.sent


def test_pairs_of_64_devices_are_8_by_8_and_a_prime_number_has_none():
    assert {each.name for each in lattice(SMALL, 64).points if len(each.parts) == 2} >= {"DP 8 x TP+SP 8"}
    assert all(len(each.parts) == 1 for each in lattice(SMALL, 2).points)
    assert point(("ZeRO-3", "CP"), (4, 2), SMALL).name == "ZeRO-3 4 x CP 2"


def test_one_device_is_refused():
    with pytest.raises(UsageError, match="devices=1: expected 2 or more"):
        lattice(SMALL, 1)
    with pytest.raises(UsageError, match="devices=7: .* not divisible"):
        lattice(SMALL, 7)
