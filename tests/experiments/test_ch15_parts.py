"""Chapter 15: split LayerNorm, masks of dropout, and more ranks than key-value heads."""

import pytest

from lab.experiments.ch15_dropout import noise
from lab.experiments.ch15_layernorm import variances_off
from lab.meshes.axes import Axes
from lab.settle import Verdict
from tests.experiments.part_claims import (
    claims,
    flipped,
    ideal,
    more,
    on_8_devices,
    verdicts,
)

EIGHT, FOUR_HEADS = Axes.of({"tensor": 8}), Axes.of({"data": 2, "tensor": 4})
COPIES = "above K ranks key-value heads are replicated ceil(P/K) times and their gradients summed"
DISPUTED = {
    "ch15_layernorm": ("2,000 times less than activations", "4-5:D-16", EIGHT),
    "ch15_dropout": ("the mask must be the same on all ranks", "4-5:D-17", EIGHT),
    "ch15_kv_heads": ("8 key-value heads are a cure for 6 ranks", "4-5:D-18", FOUR_HEADS),
}


@pytest.mark.compiles
@pytest.mark.parametrize("name", DISPUTED)
def test_what_theory_asks_for_confirms_all_but_what_is_disputed(name):
    statement, item, axes = DISPUTED[name]
    assert [(c.statement, c.disputed) for c in claims(name, axes) if c.verdict != "confirmed"] == [(statement, item)]


@pytest.mark.compiles
@pytest.mark.parametrize("name", DISPUTED)
def test_eight_devices_send_exactly_that_and_compute_what_one_does(name):
    result = on_8_devices(name)
    assert result.verdict is Verdict.EXACT and result.is_fine


@pytest.mark.parametrize(
    ("name", "axes"), [("ch15_layernorm", EIGHT), ("ch15_dropout", EIGHT), ("ch15_kv_heads", FOUR_HEADS)]
)
def test_one_rank_decides_nothing(name, axes):
    assert claims(name, Axes(axes.names, (1,) * len(axes.names))) == ()


def test_two_reductions_of_sums_refute_the_one_of_layernorm():
    assert flipped("ch15_layernorm", EIGHT, more("sums")) == {"ch15.layernorm_parallel"}


@pytest.mark.parametrize("ranks", [2, 8])
def test_sums_of_squares_are_a_tenth_off_at_mean_1000_and_merged_moments_a_hundred_thousandth(ranks):
    off_sums, off_moments = variances_off(ranks)
    assert off_sums > 0.1 and off_moments < 1e-5


@pytest.mark.compiles
def test_a_byte_for_masks_refutes_that_they_are_free():
    assert flipped("ch15_dropout", EIGHT, more("split", 0, 1)) == {"masks cost no communication"}


@pytest.mark.compiles
def test_one_mask_makes_eight_equal_columns_eight_times_as_noisy():
    assert noise(8, is_same=True) == pytest.approx(64, rel=0.05) and noise(8, is_same=False) == pytest.approx(
        8, rel=0.05
    )


def test_two_copies_of_four_heads_sum_two_gradients_of_32768_bytes():
    found = [t.payload_bytes for t in ideal("ch15_kv_heads", FOUR_HEADS).transfers if t.axes == ("data",)]
    assert found == [32_768, 32_768] and verdicts("ch15_kv_heads", FOUR_HEADS)[COPIES] == "confirmed"
    assert flipped("ch15_kv_heads", FOUR_HEADS, more("attention")) == {COPIES}
