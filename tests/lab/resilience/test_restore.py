"""Bytes of a restore on another mesh, against elements that are counted one by one."""

from itertools import product

import numpy as np
import pytest

from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.redistribution.bound import least_bytes_together
from lab.redistribution.placement import Array, Placement
from lab.resilience.meshes import kept_devices, other_splits, remaining_meshes, replica_axes
from lab.resilience.restore import Restore, StateArray, restore

F32 = 4
SPECS = (Placement.of(None, None), Placement.of("data", "tensor"), Placement.of(("tensor", "data"), None))


def elements(one: StateArray, axes: Axes) -> list[set[tuple[int, int]]]:
    """Of each device, read off a mesh of coordinates."""
    found = []
    for rank in range(axes.size):
        where = dict(zip(axes.names, axes.coordinates(rank), strict=True))
        sides = []
        for size, names in zip(one.array.shape, one.placement.dims, strict=True):
            number, parts = 0, 1
            for name in names:
                number, parts = number * axes[name] + where[name], parts * axes[name]
            sides.append(range(number * size // parts, (number + 1) * size // parts))
        found.append(set(product(*sides)))
    return found


def counted(old: StateArray, new: StateArray, before: Axes, after: Axes, kept, lost) -> Restore:
    had, wanted = elements(old, before), elements(new, after)
    living = set().union(*(had[rank] for rank in range(before.size) if rank not in lost))
    every = set().union(*had)
    has = [wanted[i] & had[rank] for i, rank in enumerate(kept)]
    absent = [wanted[i] - living for i in range(after.size)]
    missing = [wanted[i] - has[i] - absent[i] for i in range(after.size)]
    sums = len(every), len(every - living), sum(map(len, has)), sum(map(len, missing))
    return Restore(*(F32 * n for n in (*sums, max(map(len, missing)), max(map(len, absent)))))


@pytest.mark.parametrize("old", SPECS, ids=str)
@pytest.mark.parametrize("new", SPECS, ids=str)
@pytest.mark.parametrize(("smaller", "gone"), [({"data": 3}, 2), ({"data": 2}, 3), ({"tensor": 1}, 2)])
def test_every_element_is_held_sent_or_gone(old, new, smaller, gone):
    before = Axes.of({"data": 4, "tensor": 2})
    after = Axes.of(before.shape | smaller)
    lost = np.arange(before.size - gone, before.size)
    kept = kept_devices(before, after, lost)
    was, becomes = StateArray("w", Array((24, 12)), old), StateArray("w", Array((24, 12)), new)
    found = restore([(was, becomes)], before, after, kept, lost)
    assert not set(kept) & set(lost) and len(set(kept)) == after.size
    assert found == counted(was, becomes, before, after, kept.tolist(), set(lost.tolist()))


def test_without_a_loss_a_restore_is_a_redistribution():
    axes, array = Axes.of({"data": 4, "tensor": 2}), Array((16, 8))
    pairs = list(product(SPECS, SPECS))
    changes = [(StateArray("w", array, old), StateArray("w", array, new)) for old, new in pairs]
    found = restore(changes, axes, axes, np.arange(8), np.array([], int))
    assert found.gone == 0 and found.most_from_peers == least_bytes_together(((a, b, array) for a, b in pairs), axes)


def test_replicas_that_remain_have_all_that_they_need():
    before, after = Axes.of({"data": 4, "tensor": 2}), Axes.of({"data": 3, "tensor": 2})
    lost = np.array([2, 3])
    kept = kept_devices(before, after, lost)
    one = StateArray("w", Array((16, 8)), Placement.of(None, "tensor"))
    found = restore([(one, one)], before, after, kept, lost)
    assert kept.tolist() == [0, 1, 4, 5, 6, 7] and (found.gone, found.from_peers) == (0, 0)


@pytest.mark.parametrize(
    ("mesh", "target", "devices", "left"),
    [
        ("data=128,pipe=16,tensor=8", "gpu:h100:2048x8", 16_376, "127 64 32 16 8 4 2 1"),
        ("fsdp=16,tensor=8", "gpu:h100:16x8", 120, "15 8 4 2 1"),
        ("data=2,pipe=16,expert=64", "gpu:h100:256x8", 2040, "1"),
        ("batch=2,model=4", "cpu:8", 7, "1"),
    ],
)
def test_the_axis_of_replicas_shrinks_to_what_fits_or_to_a_divisor(mesh, target, devices, left):
    axes = Axes.parse(mesh)
    found = remaining_meshes(axes, replica_axes(axes, ()), parse_target(target), devices)
    assert [str(one.axes) for one in found] == [
        mesh.replace(f"{axes.names[0]}={axes.sizes[0]}", f"{axes.names[0]}={size}") for size in left.split()
    ]
    assert all(one.target.devices == one.axes.size for one in found)


def test_another_axis_shrinks_where_no_replica_is_left():
    axes = Axes.parse("data=1,tensor=8")
    found = remaining_meshes(axes, ("data",), parse_target("gpu:h100:1x8"), 7)
    assert [str(one.axes) for one in found] == [f"data=1,tensor={n}" for n in (7, 4, 2, 1)]


def test_without_names_the_batch_says_which_axis_shrinks():
    axes = Axes.parse("x=4,y=2")
    assert replica_axes(axes, ("y",)) == ("y",) and replica_axes(axes, ()) == ("x", "y")


def test_other_splits_have_as_many_devices_and_fewer_replicas():
    axes = Axes.parse("data=4,fsdp=3,tensor=2")
    found = [str(one) for one in other_splits(axes, ("data", "fsdp"))]
    assert found == [
        "data=2,fsdp=3,tensor=4",
        "data=4,fsdp=1,tensor=6",
        "data=2,fsdp=6,tensor=2",
        "data=12,fsdp=1,tensor=2",
    ]
