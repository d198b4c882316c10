"""Chapter 11: volumes, steps and laws of the primitives; and what other ledgers, and other laws, would refute."""

import numpy as np
import pytest

from lab.collectives import all_gather, reduce_scatter
from lab.harness.collectives import laws, nonblocking
from lab.harness.collectives.kernels import Buffer
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.settle import Verdict
from tests.experiments.collective_claims import (
    TWO_BY_FOUR,
    claims,
    compiled,
    disputed,
    evidence,
    flipped,
    ideal,
    with_more,
)

NAME = "ch11_primitives"
DISPUTED = {"D-50", "D-51", "D-53", "D-54", "D-56"}
VOLUMES = "all_reduce 2(P-1)/P n; reduce_scatter, all_gather, all_to_all (P-1)/P n"
STEPS = "rings take P-1 steps a phase, trees log2 P"


def test_what_the_kernels_state_refutes_five_statements_that_are_disputed():
    assert disputed(claims(NAME, ideal(NAME))) == DISPUTED


def test_an_eighth_step_of_a_gather_refutes_its_volume_its_steps_and_the_sum_of_costs():
    assert flipped(NAME, with_more(ideal(NAME), "all_gather/ring")) >= {
        VOLUMES,
        STEPS,
        "cost(AR) = cost(RS) + cost(AG)",
    }


def test_a_fourth_step_of_a_broadcast_refutes_the_table_alone():
    assert flipped(NAME, with_more(ideal(NAME), "broadcast/tree")) == {STEPS}


def test_costs_would_be_optimal_if_nothing_took_fewer_steps():
    slow = ideal(NAME)
    rivals = (
        "reduce_scatter/circulant",
        "all_gather/circulant",
        "all_to_all/bruck",
        "all_reduce/halving_doubling",
        "broadcast/blocks",
    )
    for scope in rivals:
        slow = with_more(slow, scope, 20)
    assert flipped(NAME, slow) == {"these costs are optimal"}


def test_ex6_takes_145_7_132_0_and_31_7_microseconds_and_a_root_carries_32_times():
    assert all(f"{time} us" in evidence(NAME, "ch11.ex6") for time in (145.7, 132.0, 31.7))
    assert "32 times" in evidence(NAME, "ch11.ex3")


def test_a_million_small_numbers_and_one_make_1_0099673():
    assert "1.0099673" in evidence(NAME, "ch11.fp_nonassoc")


@pytest.mark.compiles
def test_that_a_scatter_undoes_a_gather_is_refuted_by_a_factor_of_8():
    law = laws.Law(
        "x", "RS o AG = id", lambda x, y, axes: reduce_scatter(all_gather(x, axes), axes), lambda x, y, axes: x
    )
    (claim,) = laws.claims((law,), make_mesh(parse_target("cpu:8"), TWO_BY_FOUR))
    assert claim.verdict == "refuted" and "0 of them differ" not in claim.evidence


@pytest.mark.parametrize(("late", "verdict", "stale"), [(0, "refuted", 0), (1, "confirmed", 7)])
def test_sums_that_come_a_step_late_would_confirm_that_they_are_stale(late, verdict, stale):
    entered_SPN = np.arange(8 * 4 * 3).reshape(8, 4, 3)
    claim = nonblocking.judged(entered_SPN, np.roll(entered_SPN.sum(1), late, axis=0)[:, None], ideal(NAME))
    assert claim.verdict == verdict and f"and {stale} that of the previous one" in claim.evidence


@pytest.mark.compiles
def test_fake_devices_send_exactly_what_is_stated_and_obey_every_law():
    result = compiled(NAME, "cpu:8")
    assert (result.verdict, result.numerics.worst_relative_error) == (Verdict.EXACT, 0)
    obeyed = [claim for claim in result.claims if "of them differ" in claim.evidence]
    assert {str(law.verdict) for law in obeyed} == {"confirmed"}
    assert disputed(result.claims) == DISPUTED | {"D-55"} and result.is_fine
    (begun,) = [claim.evidence for claim in result.claims if claim.id == "ch11.bsp_async"]
    assert begun.startswith(
        "of 8 started before the first was awaited, 8 returned the sum of their own step and 0 that of the previous one"
    )


@pytest.mark.parametrize("size", [0, -5])
def test_a_buffer_of_nothing_is_refused(size):
    with pytest.raises(UsageError, match=f"elements={size}: expected 1 or more"):
        Buffer(elements=size)
