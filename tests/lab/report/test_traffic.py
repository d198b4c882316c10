"""Bytes from device to device and from host to host, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from lab.core.ledger import Kind, Ledger, SubAxis, Transfer
from lab.hlo.groups import Groups, sub_axes_of_groups
from lab.meshes.axes import Axes
from lab.report.traffic import crossing_share, levels, not_placed, traffic

AXES = Axes.parse("data=2,tensor=4")
EVERY_KIND = [
    Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 3, "f32", 1001),
    Transfer(Kind.ALL_GATHER, ("data", "tensor"), 16, 2, "f32", 4096),
    Transfer(Kind.REDUCE_SCATTER, ("data",), 4, 5, "bf16", 777),
    Transfer(Kind.ALL_TO_ALL, ("data",), 4, 1, "bf16", 640),
    Transfer(Kind.RAGGED_ALL_TO_ALL, ("tensor",), 4, 1, "bf16", 96),
    Transfer(Kind.COLLECTIVE_PERMUTE, ("data", "tensor"), 16, 7, "bf16", 50, shift=5),
    Transfer(Kind.COLLECTIVE_BROADCAST, ("tensor",), 4, 1, "bf16", 11),
    Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 60, sub_axes=(SubAxis("data", 4, 2, 2), SubAxis("tensor", 4, 1, 2))),
]


def sent(*transfers: Transfer, axes: Axes = AXES, domains=None):
    return traffic(Ledger(transfers), axes, levels(axes, domains, "host")[0])


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


@pytest.mark.parametrize("per_host", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("t", EVERY_KIND, ids=lambda t: str(t.kind))
def test_a_matrix_adds_up_to_the_wire_bytes_of_all_devices(t, per_host):
    axes = Axes.parse("data=4,tensor=4")
    domains = np.arange(axes.size) // per_host
    for shown in levels(axes, domains, "host"):
        found = traffic(Ledger((t,)), axes, shown)
        assert found.bytes.sum() == pytest.approx(16 * float(t.executions * t.wire_bytes), rel=1e-12)
        assert found.unplaced_wire_bytes == 0


def test_each_device_sends_its_wire_bytes_in_a_row():
    axes = Axes.parse("data=4,tensor=4")
    found = traffic(Ledger(tuple(EVERY_KIND)), axes, levels(axes, None, "host")[0])
    assert found.bytes.sum(1) == pytest.approx([float(Ledger(tuple(EVERY_KIND)).totals().wire_bytes)] * 16)


@pytest.mark.parametrize("mesh", ["data=2,tensor=4", "data=8", "data=2,fsdp=2,tensor=2"])
@pytest.mark.parametrize(
    "groups",
    [
        ((0, 2), (1, 3), (4, 6), (5, 7)),
        ((0, 1), (2, 3), (4, 5), (6, 7)),
        ((0, 1, 4, 5), (2, 3, 6, 7)),
        ((0, 2, 4, 6), (1, 3, 5, 7)),
    ],
)
def test_groups_over_parts_of_axes_send_around_their_own_rings(groups, mesh):
    """The parts are read from the groups, and the pairs compared with them."""
    axes = Axes.parse(mesh)
    parts = sub_axes_of_groups(Groups(groups), axes)
    found = sent(Transfer(Kind.ALL_REDUCE, None, len(groups[0]), 1, "f32", 8, sub_axes=parts), axes=axes).bytes
    expected = {(one, other) for ring in groups for one, other in zip(ring, ring[1:] + ring[:1], strict=True)}
    assert set(zip(*map(np.ndarray.tolist, found.nonzero()), strict=True)) == expected


def test_unknown_axes_and_shifts_are_left_out_and_told():
    ledger = Ledger(
        (
            Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8),
            Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 4, 1, "f32", 8),
            Transfer(Kind.SEND_RECV, ("tensor",), 4, 1, "f32", 8),
        )
    )
    found = sent(*ledger.transfers)
    assert not found.bytes.any()
    assert found.unplaced_wire_bytes == 12 + 8 + 8
    assert not_placed(ledger, found) == ["Not shown are 28 B of each device, whose receivers are not known."]


def test_a_transfer_that_runs_nobody_knows_how_often_is_told():
    ledger = Ledger((replace(EVERY_KIND[0], executions=None),))
    assert not_placed(ledger, sent(*ledger.transfers)) == [
        "Not shown are transfers of which it is not known how often they run, or over which groups."
    ]


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
    ("mesh", "per_host", "shown"),
    [
        ("data=8", 8, [("device", 8)]),
        ("data=8", 4, [("host", 2), ("device", 8)]),
        ("data=64", 8, [("host", 8)]),
        ("data=16384", 8, [("64 hosts", 32)]),
        ("data=100", 100, [("4 devices", 25)]),
    ],
)
def test_hosts_are_shown_where_they_are_several_and_at_most_32_blocks(mesh, per_host, shown):
    axes = Axes.parse(mesh)
    found = levels(axes, np.arange(axes.size) // per_host, "host")
    assert [(blocks.unit, blocks.count) for blocks in found] == shown
    assert levels(axes, None, "host")[-1].unit.endswith(("device", "devices"))


def test_a_permute_of_a_chain_leaves_out_the_way_back():
    chain = Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 4, 2, "f32", 8, shift=1, pairs=((0, 1), (1, 2), (2, 3)))
    found = sent(chain).bytes
    assert found.sum() == 2 * 3 * 2 * 8 and found[3].sum() == found[7].sum() == 0
    assert found[[4, 5, 6], [5, 6, 7]].tolist() == [16, 16, 16]


def test_a_permute_without_one_shift_goes_by_its_pairs():
    swapped = Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 2, 1, "f32", 8, pairs=((0, 3), (1, 2), (2, 1), (3, 0)))
    found = traffic(Ledger((swapped,)), AXES, levels(AXES, None, "host")[0])
    assert found.unplaced_wire_bytes == 0
    assert [int(row.argmax()) for row in found.bytes] == [3, 2, 1, 0, 7, 6, 5, 4]


def test_pairs_that_the_mesh_does_not_have_are_not_placed():
    broken = Transfer(Kind.COLLECTIVE_PERMUTE, ("tensor",), 4, 1, "f32", 8, shift=1, pairs=((0, 4),))
    found = sent(broken)
    assert not found.bytes.any() and found.unplaced_wire_bytes == 8


@pytest.mark.parametrize("t", [t for t in EVERY_KIND if t.axes], ids=lambda t: str(t.kind))
@pytest.mark.parametrize("per_host", [2, 4, 8])
def test_what_leaves_a_host_is_what_pairs_of_devices_of_two_hosts_send(t, per_host):
    """Device by device: a permute to its target, an all_to_all to each other member, all else to the next of a ring."""
    axes = Axes.parse("data=4,tensor=4")
    sent = {}
    for group in axes.groups(t.axes).tolist():
        for place, source in enumerate(group):
            if t.kind in (Kind.ALL_TO_ALL, Kind.RAGGED_ALL_TO_ALL):
                others = [target for target in group if target != source]
                sent |= {(source, target): float(t.wire_bytes) / len(others) for target in others}
            else:
                sent[source, group[(place + (t.shift or 1)) % len(group)]] = float(t.wire_bytes)
    leaving = sum(amount for (one, other), amount in sent.items() if one // per_host != other // per_host)
    found = crossing_share(Ledger((t,)), axes, np.arange(16) // per_host)
    assert found == pytest.approx(leaving / sum(sent.values()))


def test_a_device_that_only_receives_has_no_part_in_what_leaves_a_host():
    """Stages hand on over four hosts and sum inside each: of 3 x 2 messages of 80 B and 8 sums of 2 x 20 B."""
    axes, hosts = Axes.parse("pipe=4,data=2"), np.arange(8) // 2
    forth = Transfer(Kind.COLLECTIVE_PERMUTE, ("pipe",), 4, 1, "f32", 80, pairs=((0, 1), (1, 2), (2, 3)))
    back = replace(forth, pairs=((3, 2), (2, 1), (1, 0)))
    inside = Transfer(Kind.ALL_REDUCE, ("data",), 2, 2, "f32", 20)
    assert crossing_share(Ledger((forth, back)), axes, hosts) == 1
    leaving, staying = 2 * 3 * 2 * 80, 8 * 2 * 20
    assert crossing_share(Ledger((forth, back, inside)), axes, hosts) == pytest.approx(leaving / (leaving + staying))
    assert crossing_share(Ledger((forth, replace(forth, pairs=()))), axes, hosts) is None


def test_of_an_all_to_all_between_two_slices_of_four_four_sevenths_leave_the_slice():
    """Of 8 parts, one is kept, three go to the own slice and four to the other."""
    axes, slices = Axes.parse("data=8"), np.arange(8) // 4
    t = Transfer(Kind.SEND_RECV, ("data",), 8, 1, "bf16", 800, network_kind=Kind.ALL_TO_ALL)
    assert crossing_share(Ledger((t,)), axes, slices) == pytest.approx(4 / 7)
