"""Chapter 14: shares of tokens, buckets, and the largest gradients alone."""

import pytest

from lab.experiments.ch14_compression import EXPERIMENT as COMPRESSION
from lab.experiments.ch14_shares import quarter_and_three_quarters
from lab.meshes.axes import Axes
from lab.settle import Verdict
from tests.experiments.part_claims import claims, flipped, more, on_8_devices, verdicts

EIGHT = Axes.of({"data": 8})
SHARE, QUARTER = (
    "each rank's gradient weighs as much as its share of the tokens",
    "a mean of means is off by (g_1 - g_2)/4 at w = (1/4, 3/4)",
)
FALLS, STAYS = (
    "the gain falls with the ranks: every rank's choice is gathered",
    "the gain is that of the payload, however many ranks there are",
)
MESSAGES = "ceil(bytes/bucket) messages, and the same bytes whatever the bucket"
NAMES = ("ch14_shares", "ch14_buckets", "ch14_compression")


@pytest.mark.compiles
@pytest.mark.parametrize("name", NAMES)
def test_eight_devices_send_exactly_what_theory_says_and_compute_what_one_does(name):
    result = on_8_devices(name)
    assert result.verdict is Verdict.EXACT and result.is_fine


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_decides_nothing(name):
    assert claims(name, Axes.of({"data": 1})) == ()


@pytest.mark.compiles
def test_counts_of_tokens_cost_4_bytes_and_a_byte_more_refutes_it():
    assert verdicts("ch14_shares", EIGHT) == {SHARE: "confirmed", QUARTER: "confirmed"}
    assert flipped("ch14_shares", EIGHT, more("weighted", payload_bytes=1)) == {SHARE}


@pytest.mark.compiles
def test_a_mean_of_means_of_8_and_24_tokens_is_off_by_0_09():
    off, predicted = quarter_and_three_quarters()
    assert off == pytest.approx(predicted, rel=1e-5) == pytest.approx(0.0937, abs=1e-4)


def test_ten_layers_in_buckets_of_four_are_3_messages_and_a_fourth_refutes_it():
    (claim,) = claims("ch14_buckets", EIGHT)
    assert claim.verdict == "confirmed" and claim.evidence.startswith(
        "3 messages of up to 1,048,576 B, 2,621,440 B in all"
    )
    assert flipped("ch14_buckets", EIGHT, more("layers")) == {MESSAGES}


@pytest.mark.parametrize(("ranks", "gain"), [(2, "50"), (8, "12.5"), (128, "0.78125")])
def test_the_largest_percent_gains_100_over_the_ranks(ranks, gain):
    falls, stays = claims("ch14_compression", Axes.of({"data": ranks}))
    assert (
        f": {gain} times less; 2e/(P k (4 + e)) is {gain} at P={ranks}" in falls.evidence
        and falls.verdict == "confirmed"
    )
    assert stays.verdict == ("confirmed" if ranks == 2 else "refuted") and stays.disputed == "4-5:D-08"


def test_what_a_gather_sends_more_refutes_the_gain():
    assert flipped("ch14_compression", EIGHT, more("top_k")) == {FALLS}


def test_one_percent_of_a_million_is_kept():
    assert COMPRESSION.parameters.kept == 10_240
