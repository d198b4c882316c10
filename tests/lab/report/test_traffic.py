"""Bytes from device to device, counted by hand."""

import numpy as np
import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.meshes.axes import Axes
from lab.report.traffic import blocks, traffic

AXES = Axes.parse("data=2,tensor=4")


def sent(*transfers: Transfer, axes: Axes = AXES, domains=None):
    return traffic(Ledger(transfers), axes, blocks(axes, domains, "host"))


def test_an_all_reduce_of_8_bytes_over_four_sends_12_to_the_next_of_the_ring():
    found = sent(Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 1, "f32", 8)).bytes
    assert found[[0, 1, 2, 3], [1, 2, 3, 0]].tolist() == [12, 12, 12, 12]
    assert found.sum() == 8 * 12


def test_an_all_to_all_of_8_bytes_sends_two_to_each_of_three_twice():
    found = sent(Transfer(Kind.ALL_TO_ALL, ("tensor",), 4, 2, "f32", 8)).bytes
    assert found[0].tolist() == pytest.approx([0, 4, 4, 4, 0, 0, 0, 0])


def test_a_permute_by_three_of_four_goes_one_back():
    found = sent(Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 4, 1, "f32", 8, shift=3)).bytes
    assert [int(row.argmax()) for row in found[4:]] == [7, 4, 5, 6]


def test_unknown_axes_and_shifts_are_left_out_and_told():
    found = sent(
        Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8), Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 4, 1, "f32", 8)
    )
    assert not found.bytes.any()
    assert found.unplaced_wire_bytes == 12 + 8


@pytest.mark.parametrize(
    ("kind", "inside", "across"), [(Kind.ALL_REDUCE, 7 * 12, 12), (Kind.ALL_TO_ALL, 8 * 7 * 8 / 63, 8 * 8 * 8 / 63)]
)
def test_hosts_of_eight_stand_for_their_devices(kind, inside, across):
    """A ring of 64 crosses from a host to the next once; an all_to_all sends to each of 63."""
    axes = Axes.parse("data=64")
    payload = {Kind.ALL_REDUCE: 12 * 32, Kind.ALL_TO_ALL: 8 * 64}[kind]
    wire = {Kind.ALL_REDUCE: 12 * 63, Kind.ALL_TO_ALL: 8 * 63}[kind]
    found = sent(Transfer(kind, ("data",), 64, 1, "f32", payload), axes=axes, domains=np.arange(64) // 8)
    assert found.blocks.unit == "host" and found.bytes.shape == (8, 8)
    assert found.bytes[0, :2] == pytest.approx(
        np.array([inside, across]) * wire / {Kind.ALL_REDUCE: 12, Kind.ALL_TO_ALL: 8}[kind]
    )


@pytest.mark.parametrize(
    ("mesh", "per_host", "unit", "count"),
    [("data=8", 4, "device", 8), ("data=16384", 8, "64 hosts", 32), ("data=100", 100, "4 devices", 25)],
)
def test_at_most_32_blocks_are_shown(mesh, per_host, unit, count):
    axes = Axes.parse(mesh)
    found = blocks(axes, np.arange(axes.size) // per_host, "host")
    assert (found.unit, found.count) == (unit, count)
