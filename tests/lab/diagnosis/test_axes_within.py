"""The axes that members of a group differ along, also where devices are many."""

import time

import pytest

from lab.diagnosis.program import axes_within
from lab.hlo.groups import Groups, read_groups
from lab.meshes.axes import Axes

AXES = Axes.parse("data=2,fsdp=4,tensor=2")


@pytest.mark.parametrize(
    "members, expected",
    [
        (((0, 1), (2, 3)), ("tensor",)),
        (((0, 2), (1, 3)), ("fsdp",)),
        (((0,), (5,)), ()),
        (((0, 15),), ("data", "fsdp", "tensor")),
        (((3, 11), (4, 99)), ("data",)),
        (((), (6, 4)), ("fsdp",)),
        ((), ()),
    ],
)
def test_a_group_lies_along_the_axes_in_which_its_members_differ(members, expected):
    assert axes_within(Groups(members), AXES) == expected


def test_32768_groups_of_65536_devices_take_no_second():
    groups = read_groups("[32768,2]<=[2,32768]T(1,0)", 65536)
    start = time.process_time()
    assert axes_within(groups, Axes.parse("data=256,fsdp=32,tensor=8")) == ("data",)
    assert time.process_time() - start < 0.5
