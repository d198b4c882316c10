"""What changed between two ledgers, and how the command line tells it."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.changes import Difference, by_axes, changes
from lab.core.codec import to_json
from lab.core.ledger import Kind, Ledger, Part, SubAxis
from lab.report.changes import changes_text, exceeded
from tests.lab.ledgers import ledger, transfer

GATHER = transfer(
    Kind.ALL_GATHER, ("data",), 800, executions=3, phase="forward", scope="mlp", origin="step.py:7", instruction="ag.1"
)
REDUCE = transfer(Kind.ALL_REDUCE, ("data",), 80, phase="backward", scope="mlp")


@pytest.mark.parametrize(
    "before, after, what",
    [
        ((), (GATHER,), "appeared"),
        ((GATHER,), (), "vanished"),
        ((GATHER,), (replace(GATHER, executions=4),), "grew"),
        ((GATHER,), (replace(GATHER, payload_bytes=400),), "shrank"),
        ((GATHER,), (replace(GATHER, dtype="s32"),), "changed"),
        ((GATHER,), (replace(GATHER, scope="attention"),), "moved"),
        ((GATHER,), (replace(GATHER, phase="backward"),), "moved"),
    ],
)
def test_each_kind_of_change_is_named(before, after, what):
    (change,) = changes(ledger(*before, REDUCE), ledger(REDUCE, *after))
    assert change.what == what


def test_another_kind_at_the_same_place_is_one_gone_and_one_come():
    found = changes(ledger(GATHER), ledger(replace(GATHER, kind=Kind.ALL_REDUCE)))
    assert {change.what for change in found} == {"appeared", "vanished"}


def test_the_same_axis_with_twice_the_devices_sends_more():
    (change,) = changes(ledger(GATHER), ledger(replace(GATHER, group_size=16)))
    assert (change.what, change.added_wire_bytes) == ("grew", 3 * 800 * (Fraction(15, 16) - Fraction(7, 8)))


def test_lines_and_instructions_are_not_compared():
    assert changes(ledger(GATHER), ledger(replace(GATHER, origin="step.py:70", instruction="ag.9"))) == ()


def test_a_combined_transfer_equals_its_operands_one_by_one():
    one, other = (replace(GATHER, payload_bytes=size, scope="") for size in (100, 700))
    both = replace(GATHER, parts=(Part("f32", 100), Part("f32", 700)))
    assert changes(ledger(one, other), ledger(both)) == ()


def test_the_largest_change_stands_first():
    found = changes(ledger(), ledger(REDUCE, GATHER))
    assert [change.after.kind for change in found] == [Kind.ALL_GATHER, Kind.ALL_REDUCE]


def test_what_vanished_along_an_axis_makes_up_for_nothing_that_appeared():
    (along,) = by_axes(ledger(GATHER), ledger(replace(GATHER, kind=Kind.REDUCE_SCATTER), REDUCE))
    assert (along.axes, along.before, along.after) == ("data", 2100, 2100 + 140)
    assert (along.came, along.went, along.net, along.changed) == (2100 + 140, 2100, 140, 2 * 2100 + 140)


def test_a_third_less_along_an_axis_has_a_minus_sign_in_the_table_and_in_the_headline():
    text = changes_text(ledger(GATHER, source="before.hlo"), ledger(replace(GATHER, executions=2), source="after.hlo"))
    lines = [re.split(r"  +", line) for line in text.splitlines()]
    assert lines[0] == ["one device sends 700 B a step less than before (-33.3 %)"]
    assert lines[2:4] == [
        ["before: before.hlo, 2.1 kB in 3 executions"],
        ["after:", "after.hlo, 1.4 kB in 2 executions"],
    ]
    assert ["data", "2.1 kB", "0 B", "-700 B", "-700 B (-33.3 %)", "1.4 kB"] in lines
    (row,) = [line for line in lines if line[0] == "shrank"]
    assert row[:6] == ["shrank", "all_gather", "data", "3 -> 2", "2.1 kB -> 1.4 kB", "-700 B"]


def test_one_execution_of_two_combined_arrays_counts_as_one_of_two():
    both = replace(GATHER, parts=(Part("f32", 100), Part("f32", 700)))
    assert "before: 700 B in 1 execution of 2 arrays\n" in changes_text(ledger(replace(both, executions=1)), ledger())
    row = to_json(changes(ledger(both), ledger())[0])["before"]
    assert (row["executions"], row["arrays"], to_json(ledger(both).totals())["arrays"]) == (6, 6, 6)


def test_a_part_of_an_axis_is_named_in_the_tables_and_keeps_its_null_axes_in_json():
    half = replace(GATHER, axes=None, sub_axes=(SubAxis("data", 16, stride=1, size=8),))
    lines = [re.split(r"  +", line) for line in changes_text(ledger(), ledger(half)).splitlines()]
    assert ["appeared", "all_gather", "data[8 of 16]", "3", "2.1 kB"] in [line[:5] for line in lines]
    assert ["data[8 of 16]", "0 B", "+2.1 kB"] in [line[:3] for line in lines]
    found = to_json(Difference(ledger(), ledger(half)))
    part = {"axis": "data", "axis_size": 16, "stride": 1, "size": 8}
    assert (found["changes"][0]["after"]["axes"], found["changes"][0]["after"]["sub_axes"]) == (None, [part])
    assert list(found["by_axes"]) == ["data[8 of 16]"]


def test_groups_of_one_size_that_are_other_parts_of_an_axis_are_another_transfer():
    """Four neighbours of a host, and four devices of two hosts."""
    near, far = (
        replace(GATHER, axes=None, group_size=4, sub_axes=(SubAxis("data", 8, stride=stride, size=4),))
        for stride in (1, 2)
    )
    assert [change.what for change in changes(ledger(near), ledger(far))] == ["appeared", "vanished"]
    assert [row.axes for row in by_axes(ledger(near), ledger(far))] == ["data[4 of 8, stride 2]", "data[4 of 8]"]


def test_beside_a_snapshot_arrays_are_counted_on_both_sides():
    """A snapshot has an execution for each array, and names no instruction."""
    both = replace(GATHER, executions=1, parts=(Part("f32", 100), Part("f32", 700)))
    written = [replace(GATHER, executions=1, instruction=None, payload_bytes=size) for size in (100, 700)]
    text = changes_text(ledger(*written), ledger(both, REDUCE))
    assert "before: 700 B in 2 arrays\nafter:  840 B in 3 arrays\n" in text


def test_another_target_or_mesh_is_named_on_both_sides():
    old = ledger(GATHER, source="a", target="cpu:8")
    assert "before: a, 2.1 kB in 3 executions, for cpu:8\nafter:  a, 2.1 kB in 3 executions, for gpu:h100:1x8" in (
        changes_text(old, replace(old, target="gpu:h100:1x8"))
    )
    turned = changes_text(replace(old, mesh={"a": 2, "b": 4}), replace(old, mesh={"b": 4, "a": 2}))
    assert "executions, mesh a=2,b=4\n" in turned and turned.endswith("executions, mesh b=4,a=2")


def test_no_change_says_so_with_both_totals():
    same = changes_text(ledger(GATHER), ledger(GATHER))
    assert same == "no change\n\nbefore: 2.1 kB in 3 executions\nafter:  2.1 kB in 3 executions"


def test_executions_that_become_unknown_are_a_change():
    (change,) = changes(ledger(GATHER), ledger(replace(GATHER, executions=None)))
    assert change.what == "shrank" and change.after.totals.lower_bound
    text = changes_text(ledger(GATHER), ledger(replace(GATHER, executions=None)))
    assert "2.1 kB -> ?" in text and "how much is not known" in text and "after:  at least 0 B" in text


transfers = st.builds(
    transfer,
    st.sampled_from(Kind),
    st.sampled_from([("data",), None]),
    st.integers(1, 9),
    st.integers(1, 3),
    scope=st.sampled_from(["a", "b"]),
    group_size=st.sampled_from([4, 8]),
    sub_axes=st.sampled_from([None, (SubAxis("data", 16, stride=2, size=8),)]),
)


@given(st.lists(transfers, max_size=6), st.lists(transfers, max_size=6))
def test_changes_add_up_to_the_difference_of_the_totals(before, after):
    found = changes(ledger(*before), ledger(*after))
    assert (
        sum(change.added_wire_bytes for change in found)
        == ledger(*after).totals().wire_bytes - ledger(*before).totals().wire_bytes
    )


@given(st.lists(transfers, max_size=6), st.randoms())
def test_order_is_no_change(some, random):
    assert changes(ledger(*some), ledger(*random.sample(some, len(some)))) == ()


@given(st.lists(transfers, max_size=6))
def test_a_ledger_survives_its_json(some):
    found = ledger(*some, notes=("a note",), flops=7)
    assert Ledger.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_lab_diff_of_saved_ledgers_tells_what_appeared_and_exits_with_1(lab, tmp_path):
    names = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for name, found in zip(names, (ledger(REDUCE), ledger(REDUCE, GATHER)), strict=True):
        (tmp_path / name).write_text(json.dumps(found.to_json()))
    assert lab("diff", names[0], names[0]).status == 0
    run = lab("diff", *names)
    assert run.status == 1 and "appeared  all_gather  data" in run.out
    (change,) = json.loads(lab("diff", *names, "--json").out)["changes"]
    assert (change["what"], change["before"], change["after"]["wire_bytes"]) == ("appeared", None, 2100)


def test_lab_diff_in_json_says_what_came_went_and_the_net_along_each_axis(lab, tmp_path):
    names = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for name, found in zip(names, (ledger(REDUCE), ledger(replace(REDUCE, scope="x", executions=2))), strict=True):
        Path(name).write_text(json.dumps(found.to_json()))
    along = json.loads(lab("diff", *names, "--json").out)["by_axes"]
    assert along == {"data": {"before": 140, "after": 280, "changed": 420, "came": 280, "went": 140, "net": 140}}


@pytest.mark.parametrize(
    "after, allowed, status",
    [
        ((replace(GATHER, payload_bytes=808), REDUCE), "1%", 0),
        ((replace(GATHER, payload_bytes=808), REDUCE), "0.9%", 1),
        ((replace(GATHER, scope="attention"), REDUCE), "0%", 0),
        ((replace(GATHER, kind=Kind.REDUCE_SCATTER), REDUCE), "99%", 1),
        ((replace(GATHER, executions=None), REDUCE), "99%", 1),
        ((GATHER, replace(REDUCE, axes=("tensor",))), "99%", 1),
    ],
    ids=["0.94% of data", "more than 0.9%", "moved", "another kind", "unknown", "another axis"],
)
def test_allow_bounds_the_bytes_that_come_and_go_along_any_axes(lab, tmp_path, after, allowed, status):
    names = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for name, found in zip(
        names,
        (ledger(GATHER, REDUCE, mesh={"data": 8, "tensor": 1}), ledger(*after, mesh={"data": 8, "tensor": 1})),
        strict=True,
    ):
        Path(name).write_text(json.dumps(found.to_json()))
    judged = lab("diff", *names, "--allow", allowed)
    assert (lab("diff", *names).status, judged.status) == (1, status)
    assert (f", more than --allow {allowed.replace('%', ' %')}\n" in judged.out) == (status == 1)


def test_what_came_and_went_is_named_where_it_is_more_than_allowed():
    half_anew = ledger(replace(GATHER, scope="attention", executions=1), REDUCE)
    assert exceeded(ledger(GATHER), half_anew, Fraction(99, 100)) == [
        "data changed by 140 % (2.94 kB came or went, 2.1 kB before), more than --allow 99 %"
    ]


def test_a_program_that_could_not_be_read_whole_is_compared_with_none(lab, tmp_path):
    path = tmp_path / "part.json"
    path.write_text(json.dumps(replace(ledger(GATHER), notes=("the text ends early",), is_complete=False).to_json()))
    told = lab("diff", str(path), str(path))
    assert (told.status, told.err) == (
        2,
        f"lab: {path} could not be read whole, so that nothing can be said of the rest: the text ends early\n",
    )


@pytest.mark.parametrize("share", ["1", "-1%", "much", "1%%"])
def test_a_share_that_is_no_percentage_is_refused(lab, share):
    told = lab("diff", "a.json", "b.json", f"--allow={share}")
    assert (told.status, told.err) == (2, f"lab: --allow {share}: expected a percentage of the bytes, such as 1%\n")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"transfers": [{}]}'])
def test_a_file_that_is_no_saved_ledger_is_refused_in_a_line(lab, tmp_path, content):
    path = tmp_path / "before.json"
    path.write_text(content)
    run = lab("diff", str(path), str(path))
    assert (
        run.status == 2
        and run.err.count("\n") == 1
        and "expected the output of lab inspect --json for one program" in run.err
    )


@pytest.mark.parametrize(
    "wrong", [{"mesh": 3}, {"transfers": [to_json(replace(GATHER, executions="x"))]}], ids=["mesh", "executions"]
)
def test_a_saved_ledger_with_other_things_in_its_fields_is_refused_in_a_line(lab, tmp_path, wrong):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(ledger(GATHER).to_json() | wrong))
    run = lab("diff", str(path), str(path))
    assert (run.status, run.out) == (2, "") and "expected the output of lab inspect --json for one program" in run.err


def test_what_grew_is_shown_by_the_line_whose_transfers_did():
    up, down = (replace(GATHER, scope="", function=name, origin=f"a.py:{line}") for name, line in (("up", 1), ("d", 2)))
    (change,) = changes(ledger(up, down), ledger(up, replace(down, payload_bytes=1600)))
    assert (change.before.origin, change.after.origin, change.after.function) == ("a.py:2", "a.py:2", "")


@pytest.mark.parametrize("written_before, said", [("up", "up()"), ("down", "down() -> up()"), ("", "-")])
def test_functions_stand_for_scopes_where_both_ledgers_tell_them(written_before, said):
    up = replace(GATHER, scope="", function="up")
    text = changes_text(ledger(replace(up, function=written_before, executions=1)), ledger(up))
    (row,) = [re.split("  +", line) for line in text.splitlines() if line.startswith("grew")]
    assert row[-2] == said
