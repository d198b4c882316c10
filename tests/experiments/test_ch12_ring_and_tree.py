"""Chapter 12: 14 steps round a ring of 8, 6 up and down a tree, 3 by doubling; and what other ledgers would refute."""

import pytest

from lab.settle import Verdict
from meshes import plugins
from meshes.axes import Axes
from tests.experiments.collective_claims import claims, compiled, disputed, evidence, flipped, ideal, verdicts, with_more

NAME = "ch12_ring_and_tree"
RING, TREE, DOUBLING = "all_reduce/ring", "all_reduce/tree", "all_reduce/doubling"


def test_what_the_kernels_state_refutes_three_statements_that_are_disputed():
    assert disputed(claims(NAME, ideal(NAME))) == {"D-47", "D-48", "D-49"}


def test_a_fifteenth_step_refutes_the_ring_and_the_identity_of_volumes():
    refuted = {"a ring takes 2(P-1) steps of n/P", "2(G-1)/G + 2(N-1)/(N G) = 2(P-1)/P"}
    assert flipped(NAME, with_more(ideal(NAME), RING)) == refuted


def test_a_ring_of_thirteen_steps_sends_less_than_the_bound():
    assert "no all_reduce sends less than 2(P-1)/P n a rank" in flipped(NAME, with_more(ideal(NAME), RING, -1))


def test_a_tree_of_three_steps_would_have_the_least_latency():
    faster = with_more(with_more(ideal(NAME), TREE, -2), DOUBLING)
    assert flipped(NAME, faster) == {"a binomial tree takes 2 ceil(log2 P) steps of n", "reduce and broadcast has the least latency"}


@pytest.mark.parametrize(("ranks", "verdict"), [(5, "confirmed"), (6, "refuted")])
def test_a_bidirectional_ring_takes_one_step_less_than_ranks_where_they_are_odd(ranks, verdict):
    axes = Axes.of({"data": ranks})
    assert verdicts(NAME, ideal(NAME, axes), axes)["a bidirectional ring takes P-1 steps"] == verdict


def test_six_ranks_fold_and_take_6_steps_where_the_ring_takes_10():
    axes = Axes.of({"data": 2, "fsdp": 3})
    (claim,) = [claim for claim in claims(NAME, ideal(NAME, axes), axes) if claim.id == "ch12.non_pow2"]
    assert claim.verdict == "confirmed" and claim.evidence.startswith("6 permutes") and claim.evidence.endswith("the ring takes 10")


def test_a_step_more_between_hosts_refutes_the_two_levels():
    across = with_more(ideal(NAME), "all_reduce/hierarchical", axes=("data",))
    assert "ch12.hier2d" in flipped(NAME, across)


def test_ring_and_tree_meet_at_1_136_449_bytes_and_buckets_are_worth_6_818():
    assert "1,136,449 B" in evidence(NAME, "ch12.crossover")
    assert "6.818 times" in evidence(NAME, "ch12.bucket")


@pytest.mark.parametrize("target", ["cpu:8", "cpu:6"])
def test_fake_devices_send_exactly_what_is_stated_and_sum_integers_exactly(target):
    result = compiled(NAME, target)
    assert (result.verdict, result.numerics.worst_relative_error, result.numerics.tolerance) == (Verdict.EXACT, 0, 0)
    assert disputed(result.claims) == {"D-47", "D-48", "D-49"} and result.is_fine


@pytest.mark.parametrize(("platform", "target"), [("gpu", "gpu:h100:2x4"), ("tpu", "tpu:v5e:2x4")])
def test_8_gpus_and_8_tpus_send_exactly_what_is_stated(platform, target):
    if not plugins.installed(platform):
        pytest.skip(f"the compile-only plugin for {platform} is not installed")
    result = compiled(NAME, target)
    assert result.verdict is Verdict.EXACT and disputed(result.claims) == {"D-47", "D-48", "D-49"}
