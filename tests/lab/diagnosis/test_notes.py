"""Notes on what is no fault and yet worth knowing: sums of 8 bits."""

import pytest

from lab import diagnosis
from lab.core.note import NoteKind
from lab.diagnosis.program import Program
from lab.hlo.read import read
from lab.meshes.axes import Axes

DATA = Axes.of({"data": 8})


def notes(combine: str, dtype: str, of: NoteKind = NoteKind.SUMMED_IN_8_BITS) -> list[str]:
    """Of a reduction of 4 KiB of `dtype`, whose computation ends with the lines `combine`."""
    text = (
        f"HloModule sums, num_partitions=8\n\n%sum (a: {dtype}[], b: {dtype}[]) -> {dtype}[] {{\n"
        f"  %a = {dtype}[] parameter(0)\n  %b = {dtype}[] parameter(1)\n{combine}\n}}\n\n"
        f"ENTRY %main (p: {dtype}[1024]) -> {dtype}[1024] {{\n  %p = {dtype}[1024] parameter(0)\n"
        f"  ROOT %r = {dtype}[1024] all-reduce(%p), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%sum\n}}\n"
    )
    reading = read(text, source="sums", axes=DATA)
    return [note for note in diagnosis.of(Program(reading.ledger, reading, DATA)).ledger.notes if note.kind == of]


@pytest.mark.parametrize(
    ("dtype", "says"),
    [("f8e5m2", "f8e5m2, 1,024 B a step: every addition rounds"), ("s8", "s8, 1,024 B a step: every")],
)
def test_a_sum_of_8_bits_is_told_with_its_bytes(dtype, says):
    (note,) = notes(f"  ROOT %s = {dtype}[] add(%a, %b)", dtype)
    assert note.startswith(f"1 array is summed over devices in {says}")


def test_four_numbers_of_8_bits_in_each_of_32_are_told_as_what_is_added():
    """As a TPU sums int8: a word is taken apart, its bytes are added, and packed again."""
    lanes = (
        "  %x = u8[] convert(%a)\n  %xs = s8[] bitcast-convert(%x)\n  %y = u8[] convert(%b)\n"
        "  %ys = s8[] bitcast-convert(%y)\n  %added = s8[] add(%xs, %ys)\n  ROOT %w = u32[] convert(%added)"
    )
    (note,) = notes(lanes, "u32")
    assert "in s8, four numbers in each u32 that moves, 4,096 B a step: every addition wraps at 8 bits" in note


@pytest.mark.parametrize(("dtype", "combine"), [("f32", "add"), ("u32", "add"), ("s8", "maximum"), ("pred", "or")])
def test_wider_sums_and_what_is_no_sum_are_not(dtype, combine):
    assert notes(f"  ROOT %s = {dtype}[] {combine}(%a, %b)", dtype) == []
