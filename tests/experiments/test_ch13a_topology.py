"""Chapter 13a: levels of 4, 2 and 1 parts send what a flat ring does, and a host sends 1.75 times less, not 7 times."""

from dataclasses import replace

import pytest

from lab.experiments.ch13a_topology import three_levels
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.settle import Verdict
from tests.experiments.collective_claims import (
    claims,
    compiled,
    disputed,
    flipped,
    ideal,
    with_more,
)

NAME = "ch13a_topology"
CUBE = Axes.of({"data": 2, "fsdp": 2, "tensor": 2})
DISPUTED = {"D-44", "D-45", "D-46", "D-68", "D-69"}
LEVELS, ACROSS = "the bytes of the levels add up to 2(P-1)/P n", "a rank sends 2(N-1)/N n/G across hosts"
LINKS = "only the middle phase crosses the network"


def evidence(id: str) -> str:
    return "\n".join(claim.evidence for claim in claims(NAME, ideal(NAME, CUBE), CUBE) if claim.id == id)


def on_links(outer: str, inner: str):
    rows = tuple(replace(t, link=outer if t.axes == ("data",) else inner) for t in ideal(NAME, CUBE).transfers)
    return {claim.statement: claim.verdict for claim in claims(NAME, replace(ideal(NAME, CUBE), transfers=rows), CUBE)}


def test_what_the_kernels_state_refutes_five_statements_that_are_disputed():
    assert disputed(claims(NAME, ideal(NAME, CUBE), CUBE)) == DISPUTED


def test_a_step_more_inside_refutes_the_levels_alone():
    assert flipped(NAME, with_more(ideal(NAME, CUBE), "all_reduce/hierarchical"), CUBE) == {LEVELS}


def test_a_step_more_across_refutes_what_a_rank_sends_there():
    across = with_more(ideal(NAME, CUBE), "all_reduce/hierarchical", axes=("data",))
    assert flipped(NAME, across, CUBE) >= {LEVELS, ACROSS}


def test_a_host_sends_1_75_times_less_where_ranks_differ_by_7():
    assert "1.75 times, where ranks differ by 7; 1.125 at 8 x 8" in evidence("ch13a.traffic")


def test_the_toy_carries_3_gb_and_2():
    assert "carry 3 GB, 4 of the levels 2 GB: 1.5 times" in evidence("ch13a.toy")


def test_the_case_takes_394_38_and_73_00_ms_and_8_rings_49_85():
    assert "flat 394.38 ms, levels 73.00 ms of which 29.18 inside: 5.402 times" in evidence("ch13a.case")
    assert "take 49.85 ms" in evidence("ch13a.case") and "levels take 160.5 ms and the flat ring 1,182 ms" in evidence(
        "ch13a.case"
    )


@pytest.mark.parametrize(
    ("outer", "inner", "verdict"), [("network", "host", "confirmed"), ("host", "network", "refuted")]
)
def test_levels_on_their_links_confirm_the_phases_and_swapped_links_refute_them(outer, inner, verdict):
    assert on_links(outer, inner)[LINKS] == verdict


@pytest.mark.parametrize(
    ("target", "mesh"),
    [
        ("cpu:8", "data=2,fsdp=2,tensor=2"),
        ("gpu:h100:4x8", "data=4,fsdp=2,tensor=4"),
        ("cpu:3", "data=1,fsdp=1,tensor=3"),
    ],
)
def test_levels_are_hosts_pairs_and_the_rest(target, mesh):
    assert str(three_levels(parse_target(target))) == mesh


@pytest.mark.compiles
def test_fake_devices_send_exactly_what_is_stated_and_may_sum_axis_by_axis():
    result = compiled(NAME, "cpu:8")
    assert (result.verdict, result.numerics.worst_relative_error) == (Verdict.EXACT, 0)
    assert [str(claim.verdict) for claim in result.claims if claim.id == "ch13a.regroup"] == ["confirmed", "confirmed"]
    assert disputed(result.claims) == DISPUTED and result.is_fine


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_only_the_phase_across_two_hosts_crosses_their_network():
    result = compiled(NAME, "gpu:h100:2x4")
    assert result.verdict is Verdict.EXACT
    assert {claim.statement: claim.verdict for claim in result.claims}[LINKS] == "confirmed"
