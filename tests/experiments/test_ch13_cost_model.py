"""Chapter 13: compiled messages, priced, take what the table says; and the worked examples come to other numbers than
printed."""

import pytest

from lab.settle import Verdict
from tests.experiments.collective_claims import (
    claims,
    compiled,
    disputed,
    evidence,
    flipped,
    ideal,
    with_more,
)

NAME = "ch13_cost_model"
DISPUTED = {"D-46", "D-58", "D-59", "D-60", "D-61", "D-62", "D-71"}
NARROW = "all_gather/ring/s16"
TABLE = "alpha-beta times of the named algorithms"


def test_what_the_kernels_state_refutes_seven_statements_that_are_disputed():
    assert disputed(claims(NAME, ideal(NAME))) == DISPUTED


def test_a_step_more_of_any_kernel_of_the_table_refutes_its_time():
    scopes = {t.scope for t in ideal(NAME).transfers} - {"all_reduce/doubling", "all_reduce/hierarchical", NARROW}
    assert len(scopes) == 11
    assert all(TABLE in flipped(NAME, with_more(ideal(NAME), scope)) for scope in scopes)


def test_a_step_more_of_the_hierarchy_refutes_its_three_terms_alone():
    assert flipped(NAME, with_more(ideal(NAME), "all_reduce/hierarchical")) == {
        "T1 + T2 + T3 of reduce_scatter, all_reduce, all_gather"
    }


def test_a_step_more_of_a_permute_of_16_bits_or_of_the_ring_refutes_what_is_made_of_it():
    assert "a stage boundary takes 2 (alpha + n/beta) a micro-batch" in flipped(
        NAME, with_more(ideal(NAME), "permute/lax")
    )
    assert flipped(NAME, with_more(ideal(NAME), NARROW)) == {"16 bits halve what is sent"}
    assert "beta = 2(P-1)/P n/T" in flipped(NAME, with_more(ideal(NAME), "all_reduce/ring"))


def test_two_gathers_refute_the_factor_of_the_bus():
    assert "bus bandwidth is n/T times what a rank sends of n" in flipped(
        NAME, with_more(ideal(NAME), "all_gather/ring", 7)
    )


def test_the_gradients_of_70b_take_76_6_ms_a_rank_not_612_6():
    assert "a rank holds 2.1875 GB of gradients, 76.6 ms; the book has 17.5 GB of gradients, 612.6 ms" in evidence(
        NAME, "ch13.ex70b"
    )


def test_two_levels_take_20_50_ms_and_8_rings_one_a_card_12_11():
    assert "20.50 ms against 79.38" in evidence(NAME, "ch13.hier") and "take 12.11 ms" in evidence(NAME, "ch13.hier")


def test_70b_takes_221_ms_and_levels_of_4_gb_40_917_or_57_656():
    assert "TP 123.9 ms, PP 20.56 ms, DP 76.6 ms: 221 ms in all" in evidence(NAME, "ch13.ex70b")
    assert "1.995 ms against 2.175" in evidence(
        NAME, "ch13.hier"
    ) and "40.917 ms over 8 hosts of 8, 57.656 ms" in evidence(NAME, "ch13.hier")


def test_1_gb_over_8_ranks_in_50_ms_is_35_gb_a_second_on_the_bus():
    assert "is 20 GB/s, 35 GB/s on the bus" in evidence(NAME, "ch13.algbw_busbw")


def test_ex1_takes_1_0875_and_2_175_ms_and_ex3_saves_a_seventh():
    assert "all_gather 1.0875 ms, all_reduce 2.175 ms" in evidence(NAME, "ch13.ex1")
    assert "0.857 times" in evidence(NAME, "ch13.ex3")


@pytest.mark.compiles
def test_fake_devices_send_exactly_what_is_stated():
    result = compiled(NAME, "cpu:8")
    assert (result.verdict, result.numerics.worst_relative_error) == (Verdict.EXACT, 0)
    assert disputed(result.claims) == DISPUTED and result.is_fine
