"""What is tried, which variants are on the front, and which is picked: with made-up outcomes."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lab.core.codec import to_json
from lab.core.known import known
from lab.diagnosis.remedy import CompilerOption, Donate
from lab.frontier.frontier import Frontier, Refusal, explored, how
from lab.frontier.intervention import Intervention, Lever
from lab.frontier.outcome import Outcome
from lab.measure.prediction import SecondsJson
from lab.report.drawing import Dot, Label
from lab.report.frontier import columns, frontier_text
from lab.report.frontier_picture import drawing
from lab.report.html.frontier import page


def outcome(step: float, peak: int, sent: int = 100, fits: bool | None = True, mark: str = "") -> Outcome:
    seconds = SecondsJson(step, step, 0.0, 0.0, 0.0, 0.0, 0.0, step, step)
    return Outcome({"data": Fraction(sent)}, 1000, peak, fits, seconds, {}, True, "", mark or f"{step} {peak} {sent}")


def flag(name: str, **more) -> Intervention:
    return Intervention(Lever.FLAG, (CompilerOption(name, "True"),), **more)


def frontier(asked: Outcome, *singles: tuple[Intervention, Outcome | Refusal], joined=()) -> Frontier:
    """Args: joined: by names of flags in their order; what is not among them does not compile."""
    known = {(one,): found for one, found in singles} | {
        tuple(flag(name) for name in names.split()): found for names, found in joined
    }
    rows = explored(
        asked,
        [one for one, _ in singles],
        lambda variants: [known.get(variant, Refusal("none")) for variant in variants],
    )
    return Frontier("step", "gpu:h100:2x8", {"data": 16}, 1000, rows, 1.0)


def names(row) -> str:
    return " ".join(name for one in row.variant for name in one.options)


def test_the_fastest_is_not_picked_where_it_has_no_room_and_is_one_of_other_mathematics_neither():
    found = frontier(
        outcome(10.0, 900),
        (flag("a"), outcome(5.0, 1100, fits=False)),
        (flag("b"), outcome(8.0, 950)),
        (flag("c", mathematics="sums in bf16"), outcome(4.0, 800)),
    )
    assert names(found.pick) == "b"
    # What has no room is joined to what has, and not the other way about.
    assert [names(row) for row in found.rows] == ["", "a", "b", "c", "b a"]
    assert "20 % less than the 10 s as it is" in found.why()
    assert "950 B (900 B as it is) of 1 kB" in found.why()
    assert "which no pick has" in frontier_text(found)


def test_where_nothing_fits_nothing_is_picked_and_what_holds_least_is_tried_with_others():
    too_much = outcome(1.0, 3000, fits=False)
    found = frontier(too_much, (flag("a"), outcome(1.0, 2000, fits=False)), (flag("b"), outcome(1.0, 2500, fits=False)))
    assert found.pick is None and found.why() == "no variant that was compiled fits the memory of a device"
    assert [names(row) for row in found.rows] == ["", "a", "b", "a b"]
    assert "none fits" in frontier_text(found) and "nothing fits" in page(found)


def test_a_change_that_makes_a_step_fit_is_picked_with_that_as_its_reason():
    found = frontier(outcome(1.0, 1200, fits=False), (flag("a"), outcome(1.5, 900)))
    assert names(found.pick) == "a" and "as it is the step does not fit: its peak is 1.2 kB" in found.why()


def test_what_compiles_to_the_same_changes_nothing_and_is_tried_with_no_other():
    asked = outcome(10.0, 900)
    found = frontier(asked, (flag("a"), asked), (flag("b"), outcome(9.0, 900)), (flag("c"), outcome(9.0, 900)))
    assert [row.same_as for row in found.rows[1:]] == [(), None, (flag("b"),)]
    assert [names(row) for row in found.rows] == ["", "a", "b", "c"]
    assert "changes nothing: a=True" in frontier_text(found) and "the same as b=True: c=True" in frontier_text(found)


def test_what_sends_the_same_over_slower_links_changes_something():
    asked = outcome(10.0, 900, mark="one text")
    found = frontier(asked, (flag("a"), outcome(14.0, 900, mark="one text")))
    assert found.rows[1].same_as is None and "14 s (+40 %)" in frontier_text(found)


def test_the_best_are_joined_as_long_as_one_more_makes_it_faster():
    found = frontier(
        outcome(10.0, 900),
        (flag("a"), outcome(7.0, 900)),
        (flag("b"), outcome(8.0, 900)),
        (flag("c"), outcome(9.0, 900)),
        (flag("d"), outcome(11.0, 901)),
        joined=[("a b", outcome(6.5, 900)), ("a c", outcome(6.0, 900)), ("a c b", outcome(6.1, 900))],
    )
    assert [names(row) for row in found.rows[5:]] == ["a b", "a c", "a c b"]
    assert names(found.pick) == "a c"


def test_where_no_second_makes_the_best_faster_no_third_is_tried():
    singles = [(flag(name), outcome(step, 900)) for name, step in (("a", 7.0), ("b", 8.0), ("c", 9.0))]
    found = frontier(outcome(10.0, 900), *singles, joined=[("a b", outcome(7.5, 900)), ("a c", outcome(7.2, 900))])
    assert [names(row) for row in found.rows[4:]] == ["a b", "a c"] and names(found.pick) == "a"


def test_two_values_of_one_flag_are_not_joined():
    other = Intervention(Lever.BUCKETS, (CompilerOption("a", "False"),))
    found = frontier(outcome(10.0, 900), (flag("a"), outcome(7.0, 900)), (other, outcome(8.0, 900)))
    assert [len(row.variant) for row in found.rows] == [0, 1, 1]


def test_on_the_front_is_what_no_other_beats_by_a_thousandth():
    found = frontier(
        outcome(10.0, 900),
        (flag("a"), outcome(9.999, 900)),  # The same to three digits.
        (flag("b"), outcome(8.0, 950)),
        (flag("c"), outcome(8.5, 960)),
        (flag("d"), outcome(12.0, 500)),
        (flag("e"), outcome(20.0, 990, sent=50)),
        (flag("f"), outcome(1.0, 1100, fits=False)),
    )
    assert [names(row) for row in found.front] == ["b", "", "d", "e"]


def test_what_holds_ten_times_too_much_leaves_room_for_the_rest_of_the_picture():
    found = frontier(outcome(10.0, 900), (flag("a"), outcome(9.0, 500)), (flag("b"), outcome(8.0, 10_000, fits=False)))
    across = {shape.told.partition("=")[0]: shape.x for shape in drawing(found).shapes if isinstance(shape, Dot)}
    assert across["b"] > across["as it is: 900 B, 10 s, 100 B sent"] > across["a"] + 100


def test_the_picture_is_ruled_at_round_numbers():
    labels = [
        shape.text
        for shape in drawing(frontier(outcome(10.0, 900), (flag("a"), outcome(9.0, 500)))).shapes
        if isinstance(shape, Label)
    ]
    assert [label for label in labels if label.endswith(" s")] == ["9 s", "9.5 s", "10 s"]
    assert [label for label in labels if label.endswith(" B")] == ["500 B", "600 B", "700 B", "800 B", "900 B"]


def test_without_seconds_the_fewest_bytes_are_picked():
    def silent(one: Outcome) -> Outcome:
        return replace(one, seconds=None, fits=None)

    found = frontier(silent(outcome(1.0, 900)), (flag("a"), silent(outcome(2.0, 950, sent=50))))
    assert names(found.pick) == "a" and "note: no seconds" in frontier_text(found)
    assert "50 B sent" in page(found)


def test_bytes_over_the_axes_of_a_mesh_in_another_order_stand_in_the_column_of_the_same_axes():
    asked = replace(outcome(10.0, 900), wire={"fsdp+tensor": Fraction(63), "tensor": Fraction(8)})
    turned = replace(outcome(9.0, 900), wire={"tensor": Fraction(8), "tensor+fsdp": Fraction(63)})
    found = frontier(asked, (flag("a"), turned))
    heads = [column.heading for column in columns(found, found.rows)]
    assert heads[1:3] == ["sent over\nfsdp+tensor", "sent over\ntensor"] and "sent over\ntensor+fsdp" not in heads
    assert columns(found, found.rows)[1].cells == ("63 B", "63 B")


def test_how_to_make_a_variant_is_told_in_the_words_of_jax():
    def kept(policy: str) -> Intervention:
        return Intervention(Lever.REMAT, policy=policy)

    donated = Intervention(Lever.PLACEMENT, (Donate(("params['up']", "params['down']", "moments.mu")),))
    assert how((kept("dots_saveable"), donated, flag("a"))) == (
        "jax.checkpoint(..., policy=jax.checkpoint_policies.dots_saveable); params, moments donated; "
        "jax.jit(..., compiler_options={'a': 'True'})"
    )
    assert how((kept("removed"),)) == "no jax.checkpoint" and "prevent_cse=False" in how((kept("around scans"),))


def test_a_variant_that_does_not_compile_is_a_row_with_the_reason():
    found = frontier(
        outcome(1.0, 900),
        (flag("a"), Refusal("JaxRuntimeError: INTERNAL: no")),
        (flag("b"), Refusal("it has no such scan", is_none=True)),
    )
    text = frontier_text(found)
    assert "refused: a=True: JaxRuntimeError: INTERNAL: no" in text and "does not apply: b=True" in text
    rows = found.json_object().rows
    assert [(row.refused, row.applies) for row in rows[1:]] == [
        ("JaxRuntimeError: INTERNAL: no", True),
        ("it has no such scan", False),
    ]
    assert [row.is_pick for row in rows] == [True, False, False]


@pytest.mark.parametrize("is_known, told", [(True, ""), (False, "lower bound")])
def test_seconds_that_rates_do_not_cover_are_called_a_lower_bound(is_known, told):
    found = frontier(replace(outcome(1.0, 900), is_known=is_known))
    assert (told in frontier_text(found)) and ("lower bound" in frontier_text(found)) == (not is_known)


@pytest.mark.parametrize(
    "bounds, told",
    [
        ({"lower_bound": True}, "at least 100 B sent a device"),
        ({"upper_bound": True}, "at most 100 B sent a device"),
        ({"lower_bound": True, "upper_bound": True}, "about 100 B sent a device"),
    ],
)
def test_bytes_that_are_bounds_are_called_so(bounds, told):
    found = frontier(replace(outcome(1.0, 900), **bounds), (flag("a"), outcome(2.0, 950)))
    assert told in found.why() and frontier_text(found).count("note: bytes sent are") == len(bounds)
    asked, other = to_json(found)["rows"]
    assert {name for name in asked if name.endswith("_bound")} == set(bounds) and not set(bounds) & set(other)


@pytest.mark.parametrize("target", ["gpu:h100:2x8", "cpu:8"])
def test_of_cpus_it_is_told_that_no_peak_of_theirs_is_known(target):
    told = "XLA reports no peak on CPUs" in frontier_text(replace(frontier(outcome(10.0, 900)), target=target))
    assert told is (target == "cpu:8")


def test_bytes_and_waits_of_a_pick_stand_before_those_of_the_step_as_it_is():
    def waits(one: Outcome, seconds: float) -> Outcome:
        return replace(one, seconds=replace(known(one.seconds), exposed=seconds))

    found = frontier(waits(outcome(10.0, 900), 3.0), (flag("a"), waits(outcome(8.0, 900, sent=70), 1.0)))
    assert "waiting for communication 3 s -> 1 s; 70 B sent a device (100 B as it is)" in found.why()


def test_what_differs_in_memory_alone_is_not_the_same_and_is_on_the_front_once():
    asked = outcome(10.0, 900, mark="same")
    less = outcome(10.0, 700, mark="same")
    found = frontier(asked, (flag("a"), less), (flag("b"), less))
    assert [row.same_as for row in found.rows[1:3]] == [None, (flag("a"),)]
    assert [names(row) for row in found.front] == ["a"]
