"""Chapter 14: a ring and doubling sum eight float32 numbers in other orders."""

from dataclasses import replace

import numpy as np
import pytest

from lab.experiments.ch14_summation_order import Orders, in_two_orders, of_orders
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.settle import Verdict
from tests.experiments.collective_claims import compiled

pytestmark = pytest.mark.compiles

BITS, ROTATED = None, "a ring sums each chunk in an order of its own"
BOUND, PRINTED = "two orders differ by at most 2 (P-1) u sum |g_i|", "two orders differ by at most eps |sum g_i|"


@pytest.fixture(scope="module")
def orders() -> Orders:
    return in_two_orders(make_mesh(parse_target("cpu:8"), Axes.of({"data": 8})))


def verdicts(orders: Orders) -> dict[str | None, str]:
    return {claim.statement: str(claim.verdict) for claim in of_orders(orders)}


def test_gaps_keep_to_the_sum_of_sizes_and_not_to_the_size_of_the_sum(orders):
    assert verdicts(orders) == {BITS: "confirmed", ROTATED: "confirmed", BOUND: "confirmed", PRINTED: "refuted"}


def test_rings_add_one_rank_after_the_other_from_a_rank_of_each_chunk_s_own(orders):
    # Chunk c starts behind its rank.
    for chunk in range(8):
        total = orders.values_PC[(chunk + 1) % 8]
        for rank in range(2, 9):
            total = total + orders.values_PC[(chunk + rank) % 8]
        np.testing.assert_array_equal(orders.ring_PC[chunk], total)


def test_equal_bits_refute_that_orders_matter(orders):
    same = replace(orders, ring_PC=np.repeat(orders.doubling_PC[:1], 8, 0))
    assert verdicts(same) == {BITS: "refuted", ROTATED: "refuted", BOUND: "confirmed", PRINTED: "confirmed"}


def test_a_gap_of_a_thousandth_refutes_the_bound(orders):
    assert verdicts(replace(orders, ring_PC=orders.ring_PC + np.float32(1e-3)))[BOUND] == "refuted"


def test_both_kernels_send_what_they_state():
    result = compiled("ch14_summation_order", "cpu:8")
    assert result.verdict is Verdict.EXACT and result.is_fine
