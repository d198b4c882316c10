"""A statement that the catalogue disputes may be refuted; any other that is refuted ends a run with 1."""

from dataclasses import replace

import pytest

from lab.core.codec import to_json
from lab.harness.claim import Claim, ClaimVerdict, decided
from lab.harness.result import Result, Seconds
from lab.report.verdicts import result_text, summary_text
from lab.settle import Settlement

TREE = decided("ch12.tree_latency_optimal", False, "6 steps against 3", statement="a tree is fastest", disputed="D-48")


def result(claim: Claim) -> Result:
    nothing = Settlement((), ())
    return Result(
        "ch12_ring_and_tree",
        "explicit",
        "cpu:8",
        {"data": 8},
        {},
        Seconds(0, 0, 0),
        settlement=nothing,
        claims=(claim,),
    )


@pytest.mark.parametrize(("claim", "fine"), [(TREE, True), (replace(TREE, disputed=None), False)])
def test_only_what_nobody_disputes_makes_a_refuted_run(claim, fine):
    assert result(claim).is_fine is fine


def test_a_disputed_statement_that_holds_is_confirmed_and_fine():
    assert result(replace(TREE, verdict=ClaimVerdict.CONFIRMED)).is_fine


def test_a_run_says_in_which_item_a_refuted_statement_is_disputed():
    assert (
        "refuted (known erratum D-48) ch12.tree_latency_optimal: a tree is fastest: 6 steps against 3"
        in result_text(result(TREE))
    )


def test_a_summary_counts_disputed_statements_apart_and_lists_the_others_alone():
    surprise = replace(TREE, disputed=None)
    lines = summary_text([result(TREE), result(surprise)]).splitlines()
    listed = (
        "ch12_ring_and_tree explicit cpu:8: refuted ch12.tree_latency_optimal: a tree is fastest: 6 steps against 3"
    )
    assert "claims of the book: 1 known erratum, 1 refuted" in lines
    assert [line for line in lines if "a tree is fastest" in line] == [listed]


def test_json_has_the_statement_and_the_item():
    (claim,) = to_json(result(TREE))["claims"]
    assert claim == {
        "id": "ch12.tree_latency_optimal",
        "verdict": "refuted",
        "evidence": "6 steps against 3",
        "statement": "a tree is fastest",
        "disputed": "D-48",
        "structural": False,
    }
