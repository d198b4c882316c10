"""Whether the numbers of a group are replicas, partitions or devices depends on channel and attribute, by XLA's rules;
device `replica * partitions + partition`."""

import pytest

from lab.core.note import NoteKind, note_kinds
from lab.hlo import read_text
from lab.hlo.groups import GroupMode, read_groups_of

CHANNEL, GLOBAL = ", channel_id=1", ", channel_id=1, use_global_device_ids=true"


def read(operation: str, head: str):
    return read_text(
        f"HloModule m{head}\n\n%add (a: f32[], b: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n  %b = f32[] "
        f"parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}}\n\nENTRY %e (x: f32[64]) -> f32[64] {{\n  %x = f32[64]{{0}} "
        f"parameter(0)\n  ROOT %r = f32[64]{{0}} {operation}\n}}\n"
    )


def reduced(groups: str, head: str, channel: str = ""):
    return read(f"all-reduce(%x){channel}, replica_groups={groups}, to_apply=%add", head)


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        (GroupMode.REPLICAS, "{{0,1}}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (GroupMode.REPLICAS, "{}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (GroupMode.PARTITIONS, "{{0,1},{2,3}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        (GroupMode.PARTITIONS, "{}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (GroupMode.REPLICAS_WITH_ALL_PARTITIONS, "{{0},{1}}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        (GroupMode.REPLICAS_WITH_ALL_PARTITIONS, "{}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (GroupMode.DEVICES, "{{0,5},{1,4},{2,3},{6,7}}", ((0, 5), (1, 4), (2, 3), (6, 7))),
    ],
)
def test_groups_of_two_replicas_of_four_partitions(mode, text, expected):
    assert read_groups_of(text, mode, 8, 2, False).members == expected


def test_pairs_of_partitions_are_of_every_replica():
    assert read_groups_of("{{0,1},{1,0}}", GroupMode.PARTITIONS, 4, 2, True).members == ((0, 1), (1, 0), (2, 3), (3, 2))


def test_without_a_channel_one_replica_sends_nothing():
    """All replicas are one, whatever the number of partitions."""
    transfer = reduced("{}", ", num_partitions=8").transfers[0]
    assert (transfer.group_size, transfer.groups, transfer.wire_bytes) == (1, 8, 0)


def test_with_a_channel_a_replica_stands_for_all_its_partitions():
    assert reduced("{{0}}", ", num_partitions=8", CHANNEL).transfers[0].group_size == 8
    assert reduced("{}", ", num_partitions=8", CHANNEL).transfers[0].group_size == 8


def test_eight_replicas_without_a_channel_reduce_over_eight_devices():
    assert reduced("{{0,1,2,3,4,5,6,7}}", ", replica_count=8").transfers[0].group_size == 8


def test_an_all_to_all_with_a_channel_is_between_partitions():
    ledger = read(
        "all-to-all(%x), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}",
        ", replica_count=2, num_partitions=4",
    )
    assert (ledger.transfers[0].group_size, ledger.transfers[0].groups, ledger.notes) == (2, 4, ())


@pytest.mark.parametrize("channel", ["", CHANNEL])
def test_groups_of_replicas_that_are_not_there_are_read_as_devices_and_a_note_says_so(channel):
    ledger = reduced("{{0,1,2,3},{4,5,6,7}}", ", num_partitions=8", channel)
    assert ledger.transfers[0].group_size == 4
    assert note_kinds(ledger.notes) == (NoteKind.GROUPS_ASSUMED,) and ledger.is_complete
    assert reduced("{{0,1,2,3},{4,5,6,7}}", ", num_partitions=8", GLOBAL).notes == ()
