"""The four spellings of groups and the axes that give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.core.ledger import SubAxis
from lab.hlo.groups import (
    Groups,
    UnreadGroups,
    axes_of_groups,
    read_groups,
    read_permutation,
    sub_axes_of_groups,
)
from lab.meshes.axes import Axes

AXES = Axes.parse("data=2,fsdp=2,tensor=4")


@pytest.mark.parametrize(
    ("spelling", "members"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0,2},{1}}", ((0, 2), (1,))),
        ("{ { 0, 1 } , {2 ,3} }", ((0, 1), (2, 3))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=4,'y'=2] {'x'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=4,'y'=2] {'y'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=4,'y'=2] {'x','y'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=8] {'x':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=8,'y'=1] {'y'}", tuple((i,) for i in range(8))),
        ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{ }", ((0, 1, 2, 3, 4, 5, 6, 7),)),
    ],
)
def test_spelling_expands_to_its_groups(spelling, members):
    assert read_groups(spelling, 8).members == members


@pytest.mark.parametrize("spelling", ["{{0 1},{2,3}}", "{{0,1} {2,3}}", "{{0,1},{2,3},}", "{{0,1,},{2,3}}", "{0,1}"])
def test_lists_without_commas_between_or_with_more_of_them_are_refused(spelling):
    with pytest.raises(UnreadGroups):
        read_groups(spelling, 4)


def test_a_spelling_of_tomorrow_is_refused_not_guessed():
    with pytest.raises(UnreadGroups):
        read_groups("hypercube<8>", 8)
    with pytest.raises(UnreadGroups):
        read_groups("{}", None)


@given(st.sets(st.sampled_from(AXES.names)), st.randoms())
def test_groups_of_any_axes_are_told_from_their_members_in_any_order(names, random):
    rows = [random.sample(row, len(row)) for row in AXES.groups(names).tolist()]
    random.shuffle(rows)
    assert axes_of_groups(Groups(tuple(map(tuple, rows))), AXES) == AXES.ordered(names)


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        (((0, 1, 2, 3), (4, 5, 6, 7)), ["x[4 of 8]"]),
        (((0, 1), (2, 3), (4, 5), (6, 7)), ["x[2 of 8]"]),
        (((0, 2, 4, 6), (1, 3, 5, 7)), ["x[4 of 8, stride 2]"]),
        (((0, 4), (1, 5), (2, 6), (3, 7)), ["x[2 of 8, stride 4]"]),
        (((0, 2), (1, 3), (4, 6), (5, 7)), ["x[2 of 8, stride 2]"]),
        (((5, 4, 1, 0), (7, 2, 6, 3)), ["x[2 of 8, stride 4]", "x[2 of 8]"]),
        (((0, 1), (2, 3), (4, 6), (5, 7)), None),
        (((0, 3), (1, 2), (4, 5), (6, 7)), None),
        (((0, 1, 2), (3, 4, 5)), None),
        (((0, 1), (2, 3), (4, 5)), None),
        (((0, 1), (2, 3, 4), (5, 6, 7)), None),
        (((0, 8),), None),
    ],
)
def test_parts_of_an_axis_of_eight_are_told_from_the_groups_alone(members, parts):
    found = sub_axes_of_groups(Groups(members), Axes.parse("x=8"))
    assert (found and list(map(str, found))) == parts


def test_a_part_of_one_axis_with_all_of_another_is_named_as_both():
    axes = Axes.parse("data=2,fsdp=4,tensor=2")
    rows = tuple(tuple(8 * data + 4 * outer + rest for rest in range(4)) for data in (0, 1) for outer in (0, 1))
    assert sub_axes_of_groups(Groups(rows), axes) == (SubAxis("fsdp", 4, 1, 2), SubAxis("tensor", 2, 1, 2))
    assert "+".join(map(str, sub_axes_of_groups(Groups(rows), axes))) == "fsdp[2 of 4]+tensor"


@given(st.data())
def test_any_regular_part_of_any_axis_is_told_from_its_members_in_any_order(data):
    axes = Axes.parse("data=4,fsdp=12,tensor=2")
    name = data.draw(st.sampled_from(axes.names))
    size = data.draw(st.sampled_from([n for n in range(2, axes[name] + 1) if axes[name] % n == 0]))
    stride = data.draw(st.sampled_from([n for n in range(1, axes[name] + 1) if axes[name] % (n * size) == 0]))
    groups: dict[tuple[int, ...], list[int]] = {}
    for position in range(axes.size):
        place = dict(zip(axes.names, axes.coordinates(position), strict=True))
        own = place[name]
        others = *(at for other, at in place.items() if other != name), own // (stride * size), own % stride
        groups.setdefault(others, []).append(position)
    rows = data.draw(st.permutations([tuple(data.draw(st.permutations(row))) for row in groups.values()]))
    assert sub_axes_of_groups(Groups(tuple(rows)), axes) == (SubAxis(name, axes[name], stride, size),)


def test_groups_that_no_axes_give_have_none():
    assert axes_of_groups(Groups(((0, 3), (1, 2))), Axes.parse("a=2,b=2")) is None
    assert axes_of_groups(Groups(((0, 1),)), Axes.parse("a=2,b=2")) is None


@pytest.mark.parametrize("nobody", ["{{}}", "{{},{}}", "[0,4]<=[0]", "[4,0]<=[0]"])
def test_groups_of_nobody_are_those_of_no_axes(nobody):
    groups = read_groups(nobody, None)
    assert axes_of_groups(groups, AXES) is sub_axes_of_groups(groups, AXES) is None


def test_a_ring_along_one_axis_has_axis_and_shift():
    pairs = read_groups("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", 8)
    ring = read_permutation(pairs.members, Axes.parse("data=2,tensor=4"))
    assert (ring.axes, ring.shift, ring.groups.count, ring.groups.size) == (("tensor",), 1, 2, 4)


def test_a_ring_backwards_shifts_by_size_less_one():
    assert read_permutation(((0, 3), (1, 0), (2, 1), (3, 2)), Axes.parse("x=4")).shift == 3


def test_an_exchange_of_halves_has_an_axis_of_size_two():
    swap = read_permutation(((0, 4), (4, 0), (1, 5), (5, 1), (2, 6), (6, 2), (3, 7), (7, 3)), Axes.parse("x=2,y=4"))
    assert (swap.axes, swap.shift, swap.groups.size) == (("x",), 1, 2)


@pytest.mark.parametrize(
    ("pairs", "mesh", "along"),
    [
        ("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", "data=2,tensor=4", None),
        ("{{0,1},{1,2},{2,3},{4,5},{5,6},{6,7}}", "data=2,tensor=4", ((0, 1), (1, 2), (2, 3))),
        ("{{6,7},{4,5},{5,6},{1,2},{2,3},{0,1}}", "data=2,tensor=4", ((0, 1), (1, 2), (2, 3))),
        ("{{0,3},{1,2},{2,1},{3,0},{4,7},{5,6},{6,5},{7,4}}", "data=2,tensor=4", ((0, 3), (1, 2), (2, 1), (3, 0))),
        ("{{0,4},{1,5},{2,6},{3,7}}", "data=2,tensor=4", ((0, 1),)),
        ("{{0,1},{1,2},{2,3},{4,5}}", "data=2,tensor=4", None),
        ("{{0,1},{1,2},{2,3}}", "data=2,tensor=4", None),
        ("{{0,1},{1,2},{4,6},{5,7}}", "data=2,tensor=4", None),
        ("{{0,1},{0,0},{1,1},{2,3}}", "x=4", ((0, 1), (2, 3))),
        ("{{0,3},{3,0}}", "data=2,tensor=2", ((0, 3), (3, 0))),
    ],
)
def test_pairs_that_are_no_whole_shift_are_kept_where_all_groups_have_the_same(pairs, mesh, along):
    found = read_permutation(read_groups(pairs, None).members, Axes.parse(mesh))
    assert found.pairs == along


def test_pairs_with_themselves_are_groups_of_one():
    still = read_permutation(((0, 0), (1, 1)), Axes.parse("x=2"))
    assert (still.axes, still.groups.size) == ((), 1)


@pytest.mark.parametrize(
    "spelling", ["{{0,1234567890},{1,2}}", "[2,1234567890]<=[2469135780]", "mesh['x'=1234567890] {'x'}"]
)
def test_a_device_of_ten_digits_is_refused_as_one_that_does_not_exist(spelling):
    with pytest.raises(UnreadGroups, match="has a number that no device has$"):
        read_groups(spelling, 8)
