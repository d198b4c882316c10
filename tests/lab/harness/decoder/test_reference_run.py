"""What one device's curve allows, and where a choice of experts that rounding decides explains another."""

from dataclasses import dataclass, replace
from functools import cache

import jax
import numpy as np
import pytest

from lab.experiments.ch18_training import EXPERIMENT
from lab.harness.decoder import reference_run as module
from lab.harness.decoder.reference_run import (
    EPS,
    NUDGES,
    STILL,
    ReferenceRun,
    RouterPerturbation,
    RoutingTie,
    first_divergence,
    losses,
    nudged,
    relative_error,
    replayed_with_same_routing,
    train_reference,
)
from lab.harness.decoder.step import random_tokens
from lab.programs.models import decoder
from lab.programs.strategies.program import TrainState

SHAPE = replace(
    EXPERIMENT.parameters, batch=4, length=16, embed=16, kv_heads=2, head_dim=4, mlp=16, capacity_factor=0.5, steps=12
)
BATCHES = [random_tokens(SHAPE, seed) for seed in range(SHAPE.steps)]


@pytest.fixture(autouse=True, scope="module")
def highest():
    with jax.default_matmul_precision("highest"):
        yield


@dataclass(frozen=True)
class Halves:
    """Two trainings from weights that float32 hardly tells apart, between which one choice of experts lies; the first
    is one device's."""

    reference: ReferenceRun
    other: np.ndarray


def start(size: np.float32) -> TrainState:
    master = nudged(decoder.initial(SHAPE), RouterPerturbation(size))
    return TrainState(master, module._optimizer().init(master), None)


def run(size: np.float32, steps: int = SHAPE.steps, nudge: RouterPerturbation = STILL, at: int = 0) -> np.ndarray:
    nudges = iter([STILL] * at + [nudge] + [STILL] * SHAPE.steps)
    return losses(lambda *given: module._step(SHAPE)(next(nudges), *given), start(size), BATCHES[:steps])


def halves(low: float, high: float, monkeypatch, apart: float = 0.0) -> Halves:
    """On both sides of a leap between these; one device's weights are that far from it."""
    below, above = leap(low, high)
    own = below - np.float32(apart)
    monkeypatch.setattr(module, "_start", lambda shape: start(own))
    return Halves(rounding_only(run(own)), run(above))


@cache
def leap(low: float, high: float) -> tuple[np.float32, np.float32]:
    """Bisects these changes of the routers' weights for a leap of the loss at step 5."""
    low, high = np.float32(low), np.float32(high)
    last = {size: run(size, 6)[-1] for size in (low, high)}
    while (middle := np.float32((low + high) / 2)) not in (low, high):
        last[middle] = run(middle, 6)[-1]
        low, high = (low, middle) if abs(last[middle] - last[low]) > abs(last[middle] - last[high]) else (middle, high)
    return low, high


def rounding_only(curve: np.ndarray) -> ReferenceRun:
    return ReferenceRun(curve, np.full(len(curve), EPS))


@pytest.mark.compiles
def test_a_choice_that_rounding_tips_at_step_2_explains_the_whole_curve(monkeypatch):
    two = halves(1e-3, 2e-3, monkeypatch)
    assert first_divergence(two.other, two.reference).startswith("losses diverge from one device's at step 2: loss ")
    own, ties = replayed_with_same_routing(two.other, two.reference, SHAPE, BATCHES)
    assert [tie.step for tie in ties] == [2] and 0 < ties[0].size <= 16 * EPS
    assert first_divergence(two.other, own) is None


@pytest.mark.compiles
@pytest.mark.parametrize(("apart", "is_tie"), [(4e-6, True), (2e-5, False)])
def test_a_choice_4e_6_away_is_a_tie_and_one_2e_5_away_has_left(apart, is_tie, monkeypatch):
    """The rounding of an early step can move logits by the first, where Adam divides a gradient of next to nothing by
    itself."""
    two = halves(1e-3, 2e-3, monkeypatch, apart)
    own, ties = replayed_with_same_routing(two.other, two.reference, SHAPE, BATCHES)
    assert [tie.step for tie in ties] == [2] * is_tie and all(apart < tie.size < 2 * apart for tie in ties)
    assert (first_divergence(two.other, own) is None) == is_tie


@pytest.mark.compiles
def test_a_nudge_that_tips_a_choice_once_and_then_no_more_explains_the_curve_too(monkeypatch):
    """As on GPUs, whose sums may come in another order each time."""
    two, step, tried = halves(1e-3, 2e-3, monkeypatch), module._step(SHAPE), set()

    def once(nudge: RouterPerturbation, state: TrainState, *batch: np.ndarray):
        key = (nudge, batch[0].tobytes())
        given = STILL if key in tried else nudge
        tried.add(key)
        return step(given, state, *batch)

    monkeypatch.setattr(module, "_step", lambda shape: once)
    own, ties = replayed_with_same_routing(two.other, two.reference, SHAPE, BATCHES)
    assert [tie.step for tie in ties] == [2] and first_divergence(two.other, own) is None


@pytest.mark.compiles
def test_another_choice_of_experts_without_a_tie_has_left():
    reference = rounding_only(run(np.float32(0)))
    other = run(np.float32(0), nudge=RouterPerturbation(0.1), at=2)
    own, ties = replayed_with_same_routing(other, reference, SHAPE, BATCHES)
    assert ties == () and first_divergence(other, own) == first_divergence(other, reference)
    assert first_divergence(other, own).startswith("losses diverge from one device's at step 2: loss ")


@pytest.mark.compiles
def test_a_curve_that_is_all_the_same_after_a_tie_and_then_is_not_has_left_there(monkeypatch):
    two = halves(1e-3, 2e-3, monkeypatch)
    wrong = np.where(np.arange(SHAPE.steps) < 4, two.other, two.other * (1 + 1e-4))
    own, ties = replayed_with_same_routing(wrong, two.reference, SHAPE, BATCHES)
    assert [tie.step for tie in ties] == [2]
    assert (
        first_divergence(wrong, own)
        == f"losses diverge from one device's at step 4: loss {wrong[4]:.7g}, expected {two.other[4]:.7g} within 1.2e-06"
    )


@pytest.mark.parametrize(("off", "is_tie"), [(2, True), (9, False)])
def test_of_13_roundings_too_far_a_leap_to_2_is_a_tie_and_a_step_to_9_below_the_tolerance_of_10_is_none(off, is_tie):
    way = module._Way(0, STILL, 1, [1.0, 1 + 13 * EPS], {1: None})
    tipped = module._tipped(
        lambda since, nudge, state, last: module._Way(since, nudge, last, [1 + off * EPS, 1.0], {}), way, np.ones(3)
    )
    assert (tipped is not None) == is_tie


def test_of_two_choices_that_lead_back_to_the_curve_the_one_that_leads_farther_is_taken():
    ends = {NUDGES[3]: 3, NUDGES[7]: 9, NUDGES[9]: 8}
    way = module._Way(0, STILL, 2, [1.0, 1.0, 2.0], {1: None, 2: None})
    found = module._tipped(
        lambda since, nudge, state, last: module._Way(since, nudge, ends.get(nudge, 2), [1.0] * 10, {}),
        way,
        np.ones(40),
    )
    assert (found.since, found.nudge) == (2, NUDGES[7])


def test_a_choice_two_steps_before_it_shows_is_found():
    way = module._Way(0, STILL, 2, [1.0, 1.0, 2.0], {0: None, 1: None, 2: None})
    found = module._tipped(
        lambda since, nudge, state, last: module._Way(since, nudge, last if since == 0 else 2, [1.0] * 10, {}),
        way,
        np.ones(40),
    )
    assert (found.since, found.nudge) == (0, NUDGES[0])


@pytest.mark.compiles
@pytest.mark.parametrize(("nudge", "states"), [(STILL, range(5, 13)), (NUDGES[-1], range(10, 13))])
def test_the_last_eight_states_are_kept_but_none_before_a_nudge(nudge, states):
    since = 0 if nudge is STILL else 9
    way = module._walk(
        SHAPE, BATCHES, np.full(SHAPE.steps, 6.0), np.ones(SHAPE.steps), since, nudge, start(np.float32(0)), SHAPE.steps
    )
    assert (way.end, len(way.losses), sorted(way.states)) == (12, 12 - since, list(states))


@pytest.mark.compiles
def test_rounding_tips_a_choice_at_two_of_twelve_steps_at_most():
    state, tipped = start(np.float32(0)), 0
    for batch in BATCHES:
        after, still = module._step(SHAPE)(STILL, state, *batch)
        found = [float(module._step(SHAPE)(nudge, state, *batch)[1].loss) for nudge in NUDGES[-8:]]
        tipped += relative_error(np.array(found), float(still.loss)).max() > 10 * EPS
        state = after
    assert tipped <= 2


def test_without_experts_nothing_explains_a_curve():
    reference = ReferenceRun(np.array([4.0, 3.0]), np.zeros(2))
    assert replayed_with_same_routing(np.array([4.0, 3.1]), reference, replace(SHAPE, experts=0), BATCHES) == (
        reference,
        (),
    )


@pytest.mark.compiles
def test_a_nudge_of_nothing_changes_no_bit_and_one_of_1e_6_the_routers_alone():
    weights = decoder.initial(SHAPE)
    still, moved = nudged(weights, STILL), nudged(weights, RouterPerturbation(1e-6))
    assert all(map(np.array_equal, jax.tree.leaves(still), jax.tree.leaves(weights)))
    router, expected = moved["layers"]["router"].get_value(), weights["layers"]["router"].get_value()
    assert 0.5e-6 < float(np.std(router / expected - 1)) < 1.5e-6
    assert (
        sum(
            not np.array_equal(one, other)
            for one, other in zip(jax.tree.leaves(moved), jax.tree.leaves(weights), strict=True)
        )
        == 1
    )


def test_a_tie_is_told_with_its_step_and_size():
    assert (
        str(RoutingTie(48, 2**-25))
        == "at step 48 a relative change of the router's weights by 3e-08 changes the routing"
    )


QUIET = [1e-7] * 8


@pytest.mark.parametrize(
    "rest", [[1e-7, 1e-4, 2e-7], [3e-7, 1.1e-6, 5e-6, 2e-5, 1e-4]], ids=["at once", "little by little"]
)
@pytest.mark.parametrize("experts", [8, 0])
def test_what_another_order_moved_counts_until_it_chose_other_experts(experts, rest, monkeypatch):
    errors = np.array(QUIET + rest)
    expected = np.full(len(errors), 2.0)
    curves = iter([expected, expected * (1 + errors), expected])
    monkeypatch.setattr(module, "losses", lambda *_: next(curves))
    monkeypatch.setattr(module, "_start", lambda shape: None)
    moved = train_reference(replace(SHAPE, experts=experts), []).moved
    assert moved.max() == pytest.approx(1e-7 if experts else 1e-4, rel=1e-6)


@pytest.mark.parametrize(
    ("moved", "tolerances"),
    [([0.0, 0.0], [10 * 2**-23] * 2), ([0.0, 3e-6, 1e-7], [10 * 2**-23, 3e-5, 3e-5]), ([1e-6, 1.0], [1e-5, 1e-2])],
)
def test_ten_times_what_another_order_moved_so_far_is_allowed_between_the_rounding_of_a_loss_and_a_percent(
    moved, tolerances
):
    reference = ReferenceRun(np.ones(len(moved)), np.array(moved))
    assert list(reference.tolerances) == pytest.approx(tolerances) and reference.tolerance == pytest.approx(
        tolerances[-1]
    )


def test_a_curve_that_parts_a_step_before_other_orders_do_has_left():
    reference = ReferenceRun(np.full(3, 2.0), np.array([1e-7, 1e-7, 1e-3]))
    assert first_divergence(np.array([2.0, 2.0, 2.004]), reference) is None
    assert first_divergence(np.array([2.0, 2.004, 2.004]), reference).startswith(
        "losses diverge from one device's at step 1: loss 2.004, expected 2 within 1.2e-06"
    )


@pytest.mark.parametrize(("third", "step"), [(2.0, None), (2.00001, None), (2.001, 2), (np.nan, 2), (np.inf, 2)])
def test_a_curve_has_left_where_it_is_farther_than_the_tolerance_or_no_number(third, step):
    said = first_divergence(
        np.array([4.0, 3.0, third, 1.0]), ReferenceRun(np.array([4.0, 3.0, 2.0, 1.0]), np.full(4, 1e-5))
    )
    assert (
        (said is None)
        if step is None
        else said.startswith(f"losses diverge from one device's at step {step}: loss {third:.7g}, expected 2 ")
    )
