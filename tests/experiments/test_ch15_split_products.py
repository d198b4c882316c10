"""Chapter 15: columns sum backward, rows forward; biases, GELU, fused projections and the conjugate operator."""

from dataclasses import replace

import numpy as np
import pytest

from lab.experiments.ch15_split_products import SmallProducts
from lab.meshes.axes import Axes
from lab.settle import Verdict
from tests.experiments.part_claims import claims, flipped, more, on_8_devices, verdicts

pytestmark = pytest.mark.compiles

NAME, EIGHT = "ch15_split_products", Axes.of({"tensor": 8})
NEEDED = "the all-reduce after the rows is all that the layers need"


def test_what_theory_asks_for_confirms_all_but_what_is_disputed():
    found = verdicts(NAME, EIGHT)
    assert len(found) == 8 and {statement for statement, verdict in found.items() if verdict == "refuted"} == {NEEDED}
    assert [c.disputed for c in claims(NAME, EIGHT) if c.verdict == "refuted"] == ["4-5:D-19"]


def test_eight_devices_send_exactly_that_and_compute_what_one_does():
    result = on_8_devices(NAME)
    assert result.verdict is Verdict.EXACT and result.is_fine


@pytest.mark.parametrize(
    ("scope", "id"),
    [
        ("column", "ch15.column_parallel"),
        ("row", "ch15.row_parallel"),
        ("attention", "ch15.megatron_attention"),
        ("mlp", "ch15.megatron_mlp"),
    ],
)
def test_one_sum_more_refutes_each_count(scope, id):
    assert flipped(NAME, EIGHT, more(scope)) == {id}


def test_columns_that_sum_forward_and_rows_that_sum_backward_refute_both():
    swapped = {"forward": "backward", "backward": "forward"}
    assert flipped(NAME, EIGHT, lambda t: replace(t, phase=swapped.get(t.phase))) == {
        "ch15.column_parallel",
        "ch15.row_parallel",
    }


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_b_on_each_rank_is_p_minus_1_off_and_a_slice_of_qkv_holds_no_keys(ranks):
    evidence = {c.statement or c.id: c.evidence for c in claims(NAME, Axes.of({"tensor": ranks}))}
    assert f"before the sum is {ranks - 1}.0 off" in evidence["ch15.bias_rules"]
    assert (
        f"gives rank 0 of {ranks} only {'K and Q' if ranks == 2 else 'Q'};"
        in evidence["a fused QKV must be laid out by rank"]
    )


def test_partial_sums_add_up_to_the_product():
    small = SmallProducts(4)
    np.testing.assert_allclose(sum(small.partial_sums), small.x_TD @ small.w_DF)


def test_one_rank_decides_nothing():
    assert claims(NAME, Axes.of({"tensor": 1})) == ()
