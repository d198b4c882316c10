"""Chapter 23: routes carried out, and what the partitioner does instead."""

import re

import pytest

from lab.core.ledger import Ledger
from lab.experiments.ch23_redistribution import EXPERIMENT, Changes, in_three
from lab.harness.claim import Claim
from lab.harness.numerics import numerics
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.settle import Verdict

CUBE = Axes.of({"a": 2, "b": 2, "c": 2})
SMALL = Changes(rows=8, columns=16, depth=24, pairs=3)


def _run(target: str, changes: Changes) -> Result:
    return run(EXPERIMENT, target=parse_target(target), style="explicit", parameters=changes)


@pytest.fixture(scope="module")
def claims() -> tuple[Claim, ...]:
    return EXPERIMENT.claims(SMALL, CUBE, Ledger((), target="cpu:8"))


@pytest.mark.compiles
def test_the_numbers_of_eight_cpu_devices_are_those_of_one():
    assert numerics(EXPERIMENT, "explicit", make_mesh(parse_target("cpu:8"), CUBE), SMALL).worst_relative_error == 0


@pytest.mark.compiles
@pytest.mark.parametrize("target", ["gpu:h100:1x8", "tpu:v5e:2x4"])
def test_accelerators_send_exactly_what_is_planned(target):
    if not plugins.installed(parse_target(target).platform):
        pytest.skip("the compile-only plugin is not installed")
    result = _run(target, SMALL)
    assert result.verdict is Verdict.EXACT and result.is_fine
    assert {str(term.predicted.kind) for term in result.settlement.terms} == {
        "all_to_all",
        "all_gather",
        "collective_permute",
    }


@pytest.mark.compiles
def test_the_book_is_right_on_gathers_and_slices_and_wrong_on_all_to_alls(claims):
    formulas, same_cost, *_ = claims
    assert (str(formulas.verdict), str(same_cost.verdict), same_cost.disputed) == ("confirmed", "refuted", "Ch. 23, 1")
    # (n-1)/n V and (n-1)/n^2 V of 12,288 B over 8 devices.
    assert formulas.evidence.endswith("gathering sends 10,752 B, slicing 0, another dim 1,344")


@pytest.mark.compiles
def test_two_of_three_changes_cost_more_than_planned_and_are_listed_worst_first(claims):
    tally, worse = claims[2], [claim for claim in claims[5:] if "summed over" not in claim.statement]
    assert tally.evidence.startswith("of 3 changes 1 send no more than planned")
    sent, planned = ([_bytes_after(word, claim) for claim in worse] for word in ("^", "planned "))
    excess = [a - b for a, b in zip(sent, planned, strict=True)]
    assert len(excess) == 2 and excess == sorted(excess, reverse=True) and excess[-1] > 0
    assert (
        f"the worst sends {max(a / b for a, b in zip(sent, planned, strict=True)):.1f} times the plan" in tally.evidence
    )


@pytest.mark.compiles
def test_cpus_send_more_than_planned_for_two_of_three_sums_and_not_once_they_are_written_out(claims):
    tally, written = claims[3:5]
    assert tally.evidence.startswith("of 3 changes 1 send no more than planned")
    assert tally.evidence.partition("by what the plan takes: ")[2].split(", ") == [
        "all_reduce 1 of 1",
        "all_gather + collective_permute + reduce_scatter 0 of 1",
        "all_to_all + reduce_scatter 0 of 1",
    ]
    assert written.evidence == "of 3 planned sums, written out as kernels, 3 send what is planned"


def _bytes_after(word: str, claim: Claim) -> int:
    return int(re.search(rf"{word}([\d,]+) B by", claim.evidence)[1].replace(",", ""))


def test_one_device_decides_nothing():
    assert EXPERIMENT.claims(SMALL, Axes.of({"a": 1, "b": 1, "c": 1}), Ledger((), target="cpu:1")) == ()


@pytest.mark.slow
def test_a_sample_is_spread_over_all_339_classes_and_248_sums():
    assert [len(Changes(pairs=n).sample(CUBE)) for n in (1, 6, 339, 1000)] == [1, 6, 339, 339]
    assert [len(Changes(pairs=n).sample_of_sums(CUBE)) for n in (1, 6, 248, 1000)] == [1, 6, 248, 248]


@pytest.mark.parametrize(
    ("target", "axes"),
    [("cpu:8", "a=2,b=2,c=2"), ("gpu:h100:2x8", "a=2,b=2,c=4"), ("cpu:6", "a=2,b=1,c=3"), ("cpu:3", "a=1,b=1,c=3")],
)
def test_a_mesh_has_three_axes_whatever_the_devices(target, axes):
    assert str(in_three(parse_target(target))) == axes


@pytest.mark.parametrize(
    ("setting", "told"), [({"pairs": 0}, "pairs=0: expected 1 or more"), ({"dtype": "f8"}, "dtype=f8: expected f32")]
)
def test_sizes_that_cannot_be_are_told_in_a_line(setting, told):
    with pytest.raises(UsageError, match=told):
        Changes(**setting)


@pytest.mark.slow
def test_an_array_that_does_not_split_is_refused():
    with pytest.raises(UsageError, match="7 is not divisible by"):
        EXPERIMENT.predict(Changes(rows=7, columns=7, depth=7), CUBE)
