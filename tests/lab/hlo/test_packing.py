"""What was packed into one flat array for a message between TPU slices, and what it was filled up from."""

import pytest

from lab.core.ledger import Kind
from lab.hlo import read_text
from lab.hlo.packing import pieces
from lab.hlo.shapes import Shape
from lab.hlo.text import parse

SEND = (
    "%token = token[] after-all()\n  ROOT %send = (bf16[1024]{0}, u32[], token[]) send(%all, %token), channel_id=1, "
    'is_host_transfer=true, frontend_attributes={_xla_megascale_reduce_operation="SUM",'
    '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}'
)
INPUTS = "%x = bf16[512]{0} parameter(0)\n  %y = bf16[4,64]{1,0} parameter(1)\n  %z = bf16[256]{0} parameter(2)\n  "


def module_of(entry: str, before: str = "") -> str:
    return f"HloModule jit_f, num_partitions=8\n\n{before}ENTRY %main () -> bf16[1024] {{\n  {INPUTS}{entry}\n}}\n"


def write(name: str, at: int, start: int) -> str:
    """A fusion that writes one value of `at` numbers into the array."""
    return (
        f"%{name} (array: bf16[1024], value: bf16[{at}]) -> bf16[1024] {{\n  %array = bf16[1024]{{0}} parameter(0)\n  "
        f"%value = bf16[{at}]{{0}} parameter(1)\n  %start = s32[] constant({start})\n  ROOT %write = bf16[1024]{{0}} "
        "dynamic-update-slice(%array, %value, %start)\n}\n\n"
    )


def written(second: int, third: int) -> str:
    """Three values of 512, 256 and 256 numbers, one written after the other."""
    entry = (
        '%new = bf16[1024]{0} custom-call(), custom_call_target="AllocateBuffer"\n  '
        "%flat = bf16[256]{0} bitcast(%y)\n  "
        "%first = bf16[1024]{0} fusion(%new, %x), kind=kLoop, calls=%one\n  "
        "%next = bf16[1024]{0} fusion(%first, %flat), kind=kLoop, calls=%two\n  "
        "%last = bf16[1024]{0} fusion(%next, %z), kind=kLoop, calls=%three\n  "
        f"%all = bf16[1024]{{0}} bitcast(%last)\n  {SEND}"
    )
    return module_of(entry, write("one", 512, 0) + write("two", 256, second) + write("three", 256, third))


def packed(text: str) -> list[tuple[Shape, str]]:
    module = parse(text)
    return [piece[:2] for piece in pieces("all", module.entry, module)]


THREE = [(Shape("bf16", (512,)), "x"), (Shape("bf16", (256,)), "flat"), (Shape("bf16", (256,)), "z")]


def test_values_written_one_after_the_other_are_the_pieces_of_a_message():
    assert packed(written(512, 768)) == THREE
    (message,) = read_text(written(512, 768)).transfers
    assert (message.kind, message.network_kind) == (Kind.SEND_RECV, Kind.ALL_REDUCE)
    assert [part.payload_bytes for part in message.parts] == [1024, 512, 512]


@pytest.mark.parametrize(("second", "third"), [(512, 512), (768, 768), (640, 768)])
def test_an_array_with_a_hole_or_with_numbers_written_twice_has_no_pieces(second, third):
    assert packed(written(second, third)) == []
    (message,) = read_text(written(second, third)).transfers
    assert (message.parts, message.payload_bytes) == ((), 2048)


def test_an_array_whose_end_is_not_written_has_no_pieces():
    text = written(512, 768).replace("fusion(%next, %z)", "fusion(%first, %flat)").replace("calls=%three", "calls=%two")
    assert "calls=%three" not in text and packed(text) == []


def largest(last: int) -> str:
    fused = (
        "%largest (p: bf16[512], q: bf16[256], r: bf16[256]) -> bf16[1024] {\n  %p = bf16[512]{0} parameter(0)\n  "
        "%q = bf16[256]{0} parameter(1)\n  %r = bf16[256]{0} parameter(2)\n  %low = bf16[] constant(-inf)\n  "
        "%pad.1 = bf16[1024]{0} pad(%p, %low), padding=0_512\n  %wide = f32[1024]{0} convert(%pad.1)\n  "
        "%pad.2 = bf16[1024]{0} pad(%q, %low), padding=512_256\n  %wide.2 = f32[1024]{0} convert(%pad.2)\n  "
        f"%pad.3 = bf16[1024]{{0}} pad(%r, %low), padding={last}_{768 - last}\n  %wide.3 = f32[1024]{{0}} convert(%pad.3)\n  "
        "%max.1 = f32[1024]{0} maximum(%wide, %wide.2)\n  %max = f32[1024]{0} maximum(%max.1, %wide.3)\n  "
        "ROOT %narrow = bf16[1024]{0} convert(%max)\n}\n\n"
    )
    entry = (
        "%flat = bf16[256]{0} bitcast(%y)\n  %all = bf16[1024]{0} fusion(%x, %flat, %z), kind=kLoop, calls=%largest\n  "
    )
    return module_of(entry + SEND, fused)


def test_the_largest_of_values_padded_to_their_places_is_made_of_these():
    assert packed(largest(768)) == THREE
    assert packed(largest(512)) == []


FILLED = (
    '%filled = bf16[1024]{0} custom-call(%own), custom_call_target="ZeroCrop"\n  '
    f"%all = bf16[1024]{{0}} bitcast(%filled)\n  {SEND}"
)


def test_a_message_tells_what_it_was_filled_up_from():
    (message,) = read_text(module_of(f"%own = bf16[4,64]{{1,0}} copy(%y)\n  {FILLED}")).transfers
    assert (message.payload_bytes, message.padded_from_bytes, message.parts) == (2048, 512, ())
    (other,) = read_text(
        module_of(f"%own = bf16[4,64]{{1,0}} copy(%y)\n  {FILLED}".replace("ZeroCrop", "Other"))
    ).transfers
    assert (other.payload_bytes, other.padded_from_bytes) == (2048, None)


@pytest.mark.parametrize(
    ("summed", "own"),
    [
        ("%all = bf16[1024]{0} all-reduce(%flat), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", 512),
        (
            "%sums = (bf16[512]{0}, bf16[1024]{0}) all-reduce(%x, %flat), replica_groups={{0,1,2,3},{4,5,6,7}}, "
            "to_apply=%add\n  %all = bf16[1024]{0} get-tuple-element(%sums), index=1",
            512,
        ),
        (
            "%sums = (bf16[1024]{0}, bf16[1024]{0}) all-reduce(%flat, %flat.2), replica_groups={{0,1,2,3},{4,5,6,7}}, "
            "to_apply=%add\n  %all = bf16[1024]{0} get-tuple-element(%sums), index=1",
            None,
        ),
        (
            "%sums = (bf16[1024]{0}, bf16[1024]{0}) all-reduce(%flat, %flat), replica_groups={{0,1,2,3},{4,5,6,7}}, "
            "to_apply=%add\n  %all = bf16[1024]{0} get-tuple-element(%sums), index=2",
            None,
        ),
        ("%all = bf16[1024]{0} negate(%flat)", None),
    ],
)
def test_a_message_tells_what_it_was_filled_up_from_before_its_sum_inside_a_slice(summed, own):
    filled = (
        '%own = bf16[4,64]{1,0} copy(%y)\n  %filled = bf16[1024]{0} custom-call(%own), custom_call_target="ZeroCrop"\n  '
        "%flat = bf16[1024]{0} bitcast(%filled)\n  %flat.2 = bf16[1024]{0} concatenate(%x, %x), dimensions={0}\n  "
    )
    found = read_text(module_of(f"{filled}{summed}\n  {SEND}")).transfers
    assert [t.padded_from_bytes for t in found if t.kind is Kind.SEND_RECV] == [own]


def test_the_last_of_several_pieces_has_what_fills_the_message_up():
    own = "%flat = bf16[256]{0} bitcast(%y)\n  %own = bf16[768]{0} concatenate(%x, %flat), dimensions={0}\n  "
    (message,) = read_text(module_of(own + FILLED)).transfers
    assert [(p.payload_bytes, p.padded_from_bytes) for p in message.parts] == [(1024, None), (1024, 512)]
    assert message.payload_bytes == 2048
