import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.errors import UsageError

meshes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
    lambda sizes: Axes(tuple("abcd"[: len(sizes)]), tuple(sizes))
)


def test_parse_keeps_the_order_and_prints_back():
    axes = Axes.parse("fsdp=16,tensor=8")
    assert axes.names == ("fsdp", "tensor")
    assert axes.shape == {"fsdp": 16, "tensor": 8}
    assert axes.size == 128
    assert str(axes) == "fsdp=16,tensor=8"
    assert Axes.of({"fsdp": 16, "tensor": 8}) == axes


def test_the_last_axis_varies_fastest():
    axes = Axes.of({"data": 2, "tensor": 4})
    assert axes.coordinates(6) == (1, 2)
    assert axes.rank((1, 2)) == 6


def test_groups_of_the_outer_axis_are_strided():
    assert Axes.of({"data": 2, "tensor": 4}).groups(("data",)).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_groups_of_the_inner_axis_are_consecutive():
    assert Axes.of({"data": 2, "tensor": 4}).groups(("tensor",)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_groups_do_not_depend_on_the_order_in_which_axes_are_named():
    axes = Axes.of({"a": 2, "b": 3, "c": 2})
    assert axes.groups(("c", "a")).tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert axes.groups(("a", "c")).tolist() == axes.groups(("c", "a")).tolist()


def test_no_axis_gives_groups_of_one():
    assert Axes.of({"a": 2, "b": 2}).groups(()).tolist() == [[0], [1], [2], [3]]


@given(meshes, st.sets(st.sampled_from("abcd")))
def test_groups_partition_the_mesh_by_the_other_coordinates(axes, names):
    spanned = axes.ordered(names & set(axes.names))
    groups = axes.groups(spanned)
    assert sorted(groups.ravel()) == list(range(axes.size))
    assert list(groups[:, 0]) == sorted(groups[:, 0])
    for group in groups:
        others = {
            tuple(i for name, i in zip(axes.names, axes.coordinates(r), strict=True) if name not in spanned)
            for r in group
        }
        assert len(others) == 1
        assert list(group) == sorted(group)


@given(meshes)
def test_rank_and_coordinates_are_inverse(axes):
    assert [axes.rank(axes.coordinates(r)) for r in range(axes.size)] == list(range(axes.size))


def test_splitting_an_axis_keeps_every_group():
    axes = Axes.of({"data": 8, "tensor": 2})
    split = axes.split("data", {"replica": 2, "fsdp": 4})
    assert split.shape == {"replica": 2, "fsdp": 4, "tensor": 2}
    np.testing.assert_array_equal(split.groups(("replica", "fsdp")), axes.groups(("data",)))
    assert split.merge(("replica", "fsdp"), "data") == axes


@pytest.mark.parametrize(
    "attempt, message",
    [
        (lambda: Axes.parse("fsdp:16"), "NAME=SIZE"),
        (lambda: Axes.parse("fsdp=x"), "NAME=SIZE"),
        (lambda: Axes.parse(""), "NAME=SIZE"),
        (lambda: Axes.parse("fsdp=2,fsdp=4"), "twice"),
        (lambda: Axes.parse("fsdp=0"), "1 or more"),
        (lambda: Axes.parse("=2"), "rename"),
        (lambda: Axes(("a",), (1, 2)), "one size for each name"),
        (lambda: Axes.parse("a=2")["b"], "no axis 'b'"),
        (lambda: Axes.parse("a=2").coordinates(2), "expected 0 to 1"),
        (lambda: Axes.parse("a=2").rank((2,)), "below the size"),
        (lambda: Axes.parse("a=2").rank(()), "below the size"),
        (lambda: Axes.parse("a=6").split("a", {"b": 2, "c": 2}), "product must be 6"),
        (lambda: Axes.parse("a=2,b=2,c=2").merge(("a", "c"), "d"), "merge adjacent axes only"),
        (lambda: Axes.parse("a=2").merge((), "d"), "merge adjacent axes only"),
    ],
)
def test_bad_axes_get_one_line(attempt, message):
    with pytest.raises(UsageError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)


def test_types_of_axes_stand_behind_their_sizes():
    assert TypedAxes.parse("data=2:explicit, tensor=4:auto,x=1") == TypedAxes(
        Axes.parse("data=2,tensor=4,x=1"), ("data",)
    )
    with pytest.raises(UsageError, match="of type 'manual'; expected explicit, or auto"):
        TypedAxes.parse("data=2:manual")
