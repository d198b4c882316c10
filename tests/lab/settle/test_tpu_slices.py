"""What rules make of a transfer over several TPU slices, against what libtpu was seen to emit and the book's formulas."""

from dataclasses import replace

import pytest

from lab.book.topology import two_level_across_bytes, two_level_wire_ratio
from lab.core.ledger import Kind, Ledger, Provenance, SubAxis, Transfer
from lab.meshes.targets import parse_target
from lab.settle import Context, Status, settle
from lab.settle.behaviours import emitted
from lab.settle.unclaimed import Unclaimed

INSIDE, ACROSS = (SubAxis("data", 8, 1, 4),), (SubAxis("data", 8, 4, 2),)
MATRIX = Provenance(dims=(256, 1024))
SUM = Transfer(Kind.ALL_REDUCE, ("data",), 8, 1, "bf16", 524_288, groups=1, scope="w", provenance=MATRIX)


def on(target: str, **mesh: int) -> Context:
    return Context("tpu", "explicit", mesh, target=parse_target(target))


TWO = on("tpu:v6e:2x2*2", data=8)


def parts(transfer: Transfer, context: Context = TWO) -> list[tuple[object, ...]]:
    return [(t.network_kind or t.kind, t.sub_axes or t.axes, t.payload_bytes) for t in emitted(transfer, context)[0]]


def test_a_sum_is_scattered_inside_slices_summed_between_them_and_gathered():
    assert parts(SUM) == [
        ("reduce_scatter", INSIDE, 524_288),
        ("all_reduce", ACROSS, 131_072),
        ("all_gather", INSIDE, 524_288),
    ]


@pytest.mark.parametrize("slices", [2, 3, 4])
def test_a_sum_sends_what_two_levels_do_and_between_slices_their_share(slices):
    context = on(f"tpu:v6e:2x2*{slices}", data=4 * slices)
    found = emitted(replace(SUM, group_size=4 * slices), context)[0]
    assert sum(t.wire_bytes for t in found) == two_level_wire_ratio(4, slices) * SUM.payload_bytes
    (message,) = (t for t in found if t.kind is Kind.SEND_RECV)
    assert 4 * message.wire_bytes == two_level_across_bytes(SUM.payload_bytes, 4, slices)


def test_other_kinds_over_two_slices():
    """As psum_scatter, all_gather, all_to_all and ppermute over 2 x 4 devices of v6e were compiled."""
    assert parts(replace(SUM, kind=Kind.REDUCE_SCATTER, payload_bytes=1_048_576)) == [
        ("all_reduce", INSIDE, 1_048_576),
        ("reduce_scatter", ACROSS, 262_144),
    ]
    assert parts(replace(SUM, kind=Kind.ALL_GATHER, payload_bytes=2_097_152)) == [
        ("all_gather", ACROSS, 262_144),
        ("all_gather", INSIDE, 2_097_152),
    ]
    assert parts(replace(SUM, kind=Kind.ALL_TO_ALL)) == [("all_to_all", ("data",), 524_288)]
    assert parts(replace(SUM, kind=Kind.COLLECTIVE_PERMUTE, shift=1)) == [
        ("collective_permute", ("data",), 524_288),
        ("send_recv", ("data",), 524_288),
    ]


def test_a_declared_scatter_over_slices_is_a_sum_of_which_each_device_keeps_a_part():
    scatter = replace(SUM, kind=Kind.REDUCE_SCATTER)
    assert parts(scatter, replace(TWO, style="declared")) == parts(SUM)
    inside = replace(scatter, axes=("tensor",), group_size=4)
    assert parts(inside, replace(on("tpu:v6e:2x2*2", data=2, tensor=4), style="declared"))[0][0] == "reduce_scatter"


def test_a_matrix_that_an_explicit_loop_stores_is_summed_whole_inside_slices():
    stored = replace(SUM, provenance=replace(MATRIX, iterations=4))
    assert parts(stored)[0] == ("all_reduce", INSIDE, 524_288)
    assert parts(stored)[1:] == parts(SUM)[1:]
    assert parts(stored, replace(TWO, style="declared")) == parts(SUM)


def test_an_axis_of_one_device_a_slice_sends_only_messages_and_one_inside_slices_none():
    context = on("tpu:v6e:2x2*2", data=2, tensor=4)
    assert parts(replace(SUM, group_size=2), context) == [("all_reduce", ("data",), 524_288)]
    inside = replace(SUM, axes=("tensor",), group_size=4)
    assert emitted(inside, context) == ((inside,), ())
    assert parts(replace(SUM, axes=("data", "tensor")), context)[1] == ("all_reduce", ("data",), 131_072)


@pytest.mark.parametrize(
    ("numbers", "dtype", "expected"),
    [
        (1, "f32", [("all_reduce", INSIDE, 512), ("all_reduce", ACROSS, 512)]),
        (1000, "f32", [("all_reduce", INSIDE, 4096), ("all_reduce", ACROSS, 4096)]),
        (4096, "f32", [("all_reduce", INSIDE, 16384), ("all_reduce", ACROSS, 16384)]),
        (
            7168,
            "f32",
            [("reduce_scatter", INSIDE, 28672), ("all_reduce", ACROSS, 8192), ("all_gather", INSIDE, 32768)],
        ),
    ],
)
def test_a_flat_sum_fills_whole_tiles_and_is_scattered_from_1025_numbers_a_device(numbers, dtype, expected):
    assert parts(replace(SUM, payload_bytes=4 * numbers, dtype=dtype, provenance=Provenance())) == expected


NORM = replace(SUM, payload_bytes=4096, executions=3, provenance=Provenance(dims=(2048,)))


def packed(numbers: int, executions: int) -> Unclaimed:
    sums = replace(NORM, axes=None, sub_axes=INSIDE, group_size=4, groups=2, scope="", executions=executions)
    sums = replace(sums, payload_bytes=2 * numbers)
    across = {"kind": Kind.SEND_RECV, "network_kind": Kind.ALL_REDUCE, "sub_axes": ACROSS}
    return sums, replace(sums, **across, group_size=2, groups=4)


@pytest.mark.parametrize(("numbers", "is_there"), [(4096, True), (4095, False), (4096 + 1024, False)])
def test_two_norms_in_one_message_are_attributed_where_it_has_room_for_just_these(numbers, is_there):
    two = Ledger((replace(NORM, scope="one"), replace(NORM, scope="two")), mesh={"data": 8})
    found = settle(two, Ledger(packed(numbers, 3), mesh={"data": 8}), TWO)
    assert [t.status for t in found.terms] == 2 * [Status.ATTRIBUTED if is_there else Status.MISSING]
    assert bool(found.unexplained) is not is_there


def test_a_number_fits_into_the_tile_of_another_and_a_vector_of_a_tile_does_not():
    loss = replace(NORM, payload_bytes=4, dtype="f32", executions=1, scope="loss", provenance=Provenance())
    measured = tuple(replace(t, payload_bytes=512, dtype="f32") for t in packed(256, 1))
    for numbers, expected in ((1, Status.ATTRIBUTED), (128, Status.MISSING)):
        other = replace(loss, scope="clip", payload_bytes=4 * numbers)
        found = settle(Ledger((loss, other), mesh={"data": 8}), Ledger(measured, mesh={"data": 8}), TWO)
        assert [t.status for t in found.terms] == [Status.EXPLAINED, expected]


def test_messages_of_a_collective_of_four_slices_send_what_that_collective_does():
    message = replace(SUM, kind=Kind.SEND_RECV, group_size=4, payload_bytes=80)
    sent = {kind: replace(message, network_kind=kind).wire_bytes for kind in (*Kind, None)}
    assert sent[Kind.ALL_REDUCE] == 120 and sent[Kind.REDUCE_SCATTER] == sent[Kind.ALL_TO_ALL] == 60
    assert sent[Kind.ALL_GATHER] == 240 and sent[None] == 80


def test_two_stacks_of_norms_are_one_message_where_a_slice_has_one_device_of_each():
    context, mesh = on("tpu:v6e:2x2*2", data=2, pipe=4), {"data": 2, "pipe": 4}
    stack = replace(NORM, group_size=2, groups=4, dtype="f32", payload_bytes=32_768, provenance=Provenance())
    both = Ledger((replace(stack, scope="one"), replace(stack, scope="two")), mesh=mesh)
    message = replace(stack, kind=Kind.SEND_RECV, network_kind=Kind.ALL_REDUCE, scope="", payload_bytes=65_536)
    for found, expected in ((message, Status.ATTRIBUTED), (replace(message, payload_bytes=32_768), Status.EXPLAINED)):
        terms = settle(both, Ledger((found,), mesh=mesh), context).terms
        assert terms[0].status is expected
        assert (terms[1].status is Status.MISSING) is (expected is Status.EXPLAINED)
