"""Chapter 12: 14 steps round a ring of 8, 6 up and down a tree, 3 by doubling; and what other ledgers would refute."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lab.core.ledger import Totals
from lab.experiments import ch12_ring_and_tree
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.settle import Verdict
from tests.experiments.collective_claims import (
    claims,
    compiled,
    disputed,
    evidence,
    flipped,
    ideal,
    verdicts,
    with_more,
)

NAME = "ch12_ring_and_tree"
DISPUTED = {"D-47", "D-48", "D-49", "D-52", "D-57"}
RING, TREE, DOUBLING = "all_reduce/ring", "all_reduce/tree", "all_reduce/doubling"


def test_what_the_kernels_state_refutes_six_statements_of_five_items():
    assert disputed(claims(NAME, ideal(NAME))) == DISPUTED
    assert list(verdicts(NAME, ideal(NAME)).values()).count("refuted") == 6


def test_a_tree_that_halved_its_messages_would_have_the_name():
    rows = ideal(NAME).transfers
    halved = [replace(t, scope=TREE) for t in rows if t.scope == "all_reduce/halving_doubling"]
    halving = replace(ideal(NAME), transfers=(*(t for t in rows if t.scope != TREE), *halved))
    assert "reduce and broadcast is recursive halving and doubling" in flipped(NAME, halving)


def test_two_trees_with_as_many_bytes_as_one_would_send_log_p_times_what_a_ring_does():
    assert flipped(NAME, with_more(ideal(NAME), "all_reduce/double_tree", 24)) == {
        "trees send log2 P times what a ring does"
    }


def test_a_ring_of_21_steps_would_begin_above_256_kb_on_every_link():
    assert "trees below 256 KB, rings above 4 MB" in flipped(NAME, with_more(ideal(NAME), RING, 7))
    assert "at 188,235 B (1 us, 100 GB/s), 470,588 B (5 us, 50 GB/s), 564,706 B (1 us, 300 GB/s) for P=8" in evidence(
        NAME, "ch11.nccl_sizes"
    )


@pytest.mark.parametrize(
    ("steps", "sent_bytes", "verdict"), [(11, 11, "confirmed"), (11, 5, "refuted"), (17, 11, "refuted")]
)
def test_only_a_ring_of_a_tenth_more_steps_and_bytes_is_a_tenth_slower(steps, sent_bytes, verdict):
    ring, folded = (
        Totals(1, executions, executions, size, Fraction(size), False)
        for executions, size in ((steps, sent_bytes), (10, 10))
    )
    assert ch12_ring_and_tree._slower_ring(6, ring, folded).verdict == verdict


def test_a_fifteenth_step_refutes_the_ring_and_the_identity_of_volumes():
    refuted = {"a ring takes 2(P-1) steps of n/P", "2(G-1)/G + 2(N-1)/(N G) = 2(P-1)/P"}
    assert flipped(NAME, with_more(ideal(NAME), RING)) == refuted


def test_a_ring_of_thirteen_steps_sends_less_than_the_bound():
    assert "no all_reduce sends less than 2(P-1)/P n a rank" in flipped(NAME, with_more(ideal(NAME), RING, -1))


def test_a_tree_of_three_steps_would_have_the_least_latency():
    faster = with_more(with_more(ideal(NAME), TREE, -2), DOUBLING)
    latency = {"a binomial tree takes 2 ceil(log2 P) steps of n", "reduce and broadcast has the least latency"}
    assert flipped(NAME, faster) == latency | {"trees below 256 KB, rings above 4 MB"}


@pytest.mark.parametrize(("ranks", "verdict"), [(5, "confirmed"), (6, "refuted")])
def test_a_bidirectional_ring_takes_one_step_less_than_ranks_where_they_are_odd(ranks, verdict):
    axes = Axes.of({"data": ranks})
    assert verdicts(NAME, ideal(NAME, axes), axes)["a bidirectional ring takes P-1 steps"] == verdict


def test_six_ranks_fold_and_take_6_steps_where_the_ring_takes_10():
    axes = Axes.of({"data": 2, "fsdp": 3})
    folds, slower = [claim for claim in claims(NAME, ideal(NAME, axes), axes) if claim.id == "ch12.non_pow2"]
    assert (
        folds.verdict == "confirmed"
        and folds.evidence.startswith("6 permutes")
        and folds.evidence.endswith("the ring takes 10")
    )
    assert (
        slower.verdict == "refuted"
        and "1.67 times as long where steps count, and 0.476 times where bytes do" in slower.evidence
    )


def test_a_step_more_between_hosts_refutes_the_two_levels():
    across = with_more(ideal(NAME), "all_reduce/hierarchical", axes=("data",))
    assert "ch12.hier2d" in flipped(NAME, across)


def test_ring_and_tree_meet_at_1_136_449_bytes_and_buckets_are_worth_6_818():
    assert "1,136,449 B" in evidence(NAME, "ch12.crossover")
    assert "6.818 times" in evidence(NAME, "ch12.bucket")


@pytest.mark.compiles
@pytest.mark.parametrize("target", ["cpu:8", "cpu:6"])
def test_fake_devices_send_exactly_what_is_stated_and_sum_integers_exactly(target):
    result = compiled(NAME, target)
    assert (result.verdict, result.numerics.worst_relative_error, result.numerics.tolerance) == (Verdict.EXACT, 0, 0)
    assert disputed(result.claims) == DISPUTED and result.is_fine


@pytest.mark.compiles
@pytest.mark.parametrize(("platform", "target"), [("gpu", "gpu:h100:2x4"), ("tpu", "tpu:v5e:2x4")])
def test_8_gpus_and_8_tpus_send_exactly_what_is_stated(platform, target):
    if not plugins.installed(platform):
        pytest.skip(f"the compile-only plugin for {platform} is not installed")
    result = compiled(NAME, target)
    assert result.verdict is Verdict.EXACT and disputed(result.claims) == DISPUTED
