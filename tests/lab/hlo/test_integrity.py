"""A text that lost lines or characters is never a complete, smaller program: what is wrong with it is a note."""

import time

import pytest

from lab.core.note import NoteKind, note_kinds
from lab.hlo import read_text
from lab.hlo.integrity import faults
from lab.hlo.text import parse
from tests.hlo_corpus.corpus import OURS, theirs

WHOLE = """HloModule jit_f, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%cond (s: (s32[], f32[64])) -> pred[] {
  %s = (s32[], f32[64]{0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%n, %ten), direction=LT
}

%body (t: (s32[], f32[64])) -> (s32[], f32[64]) {
  %t = (s32[], f32[64]{0}) parameter(0)
  %m = s32[] get-tuple-element(%t), index=0
  %v = f32[64]{0} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%m, %one)
  %ar = f32[64]{0} all-reduce(%v), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %out = (s32[], f32[64]{0}) tuple(%next, %ar)
}

ENTRY %main (x: f32[64]) -> f32[64] {
  %x = f32[64]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64]{0}) tuple(%zero, %x)
  %w = (s32[], f32[64]{0}) while(%start), condition=%cond, body=%body
  ROOT %end = f32[64]{0} get-tuple-element(%w), index=1
}
"""


def said(old: str, new: str) -> list[str]:
    assert WHOLE.count(old) >= 1
    return faults(parse(WHOLE.replace(old, new, 1)))


def test_a_whole_text_is_complete_and_without_a_word():
    ledger = read_text(WHOLE)
    assert (ledger.totals().executions, ledger.notes, ledger.is_complete) == (10, (), True)


def test_a_broadcast_tells_its_dimensions():
    """Else a product that is written out is none, and its FLOPs are not counted."""
    old = "  %start = (s32[]"
    spread = "  %spread = f32[64,64]{1,0} broadcast(%x), dimensions={1}\n" + old
    assert said(old, spread) == []
    damaged = spread.replace("dimensions", "dim'nsions")
    assert said(old, damaged) == ["damaged text: an operation has no dimensions: broadcast spread"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("  %v = f32[64]{0} get-tuple-element(%t), index=1\n", "", "nothing above defines an operand: v of ar"),
        ("all-reduce(%v)", "all-reduce(%)", "nothing above defines an operand: nothing of ar"),
        ("tuple(%zero, %x)", "tuple(%w, %x)", "nothing above defines an operand: w of start"),
        ("add(%m, %one)", "add(%m, %next)", "nothing above defines an operand: next of next"),
        ("add(%m, %one)", "add(m, next)", "nothing above defines an operand: next of next"),
        ("add(%m, %one)", "add(m, one)", None),
        ("add(%m, %one)", "add(%m, /*index=1*/%one)", None),
        ("add(%m, %one)", "add(%m/*, */)", "an operation has too few or too many operands: add next"),
        (
            "%sum = f32[] add(%a, %b)",
            "%sum = f32[] select(%a, %b)",
            "an operation has too few or too many operands: select sum",
        ),
        ("%sum = f32[] add(%a, %b)", "%b = f32[] add(%a, %b)", "two instructions of a computation have one name: add"),
        ("%next = ", "%m = ", "two instructions of a computation have one name: body"),
        ("body=%body", "body=%bod", "nothing above defines a computation that is run: bod by w"),
        (", body=%body", "", "while names no computation to run: w"),
        ("to_apply=%add", "to_apply=%body", "nothing above defines a computation that is run: body by ar"),
        (", to_apply=%add", "", "all-reduce names no computation to run: ar"),
        ("%body (t: ", "%cond (t: ", "a computation has the name of another: cond"),
        ("  %b = f32[] parameter(1)\n", "", "nothing above defines an operand: b of sum"),
        ("%b = f32[] parameter(1)", "%b = f32[] parameter(0)", "a parameter has no number of its own: b of add"),
        ("%b = f32[] parameter(1)", "%b = f32[] parameter(2)", "a computation lacks one of its parameters: add"),
        ("%n, %ten)", "%n)", "an operation has too few or too many operands: compare less"),
        ("while(%start)", "while(%start, %x)", "an operation has too few or too many operands: while w"),
        ("add(%m, %one)", "add(%m, %one) %two", "an instruction does not end where its line does: next"),
        ("add(%m, %one)", "add(%m, %one", "an instruction does not end where its line does: next"),
        ("direction=LT\n", "direction=LT  %k = s32[] constant(1)\n", "a line has two instructions: less"),
        ("  %one = s32[] constant(1)\n", "  ROOT %one = s32[] constant(1)\n", "a computation has two roots: body"),
        ("ROOT %less", "%less", None),  # XLA takes the last instruction.
        ("ROOT %end", "%end", "ENTRY marks no ROOT: main"),  # It prints one; another may be lost.
        (
            "  ROOT %less = pred[] compare(%n, %ten), direction=LT\n",
            "",
            "a computation takes or gives another type than its first line says: cond",
        ),
        ("f32[64]{0} all-reduce", "f32[64{0} all-reduce", "no type of an array or tuple: f32[64{0}"),
        (
            "f32[64]{0} all-reduce",
            f"f32[{'9' * 30}]{{0}} all-reduce",
            f"no type of an array or tuple: f32[{'9' * 30}]{{0}}",
        ),
    ],
)
def test_what_is_damaged_is_said(old, new, fault):
    found = said(old, new)
    assert (f"damaged text: {fault}" in found) if fault else not found


def test_a_damaged_text_is_not_complete():
    ledger = read_text(WHOLE.replace("body=%body", "body=%bod"))
    assert not ledger.is_complete
    assert NoteKind.TEXT_DAMAGED in note_kinds(ledger.notes)


def test_a_text_without_its_entry_is_not_complete_though_xla_takes_its_last_computation_for_it():
    ledger = read_text(WHOLE.partition("ENTRY")[0])
    assert not ledger.is_complete
    assert not read_text("HloModule m\n\n%f (x: f32[8]) -> f32[8] {\n  ROOT %x = f32[8] parameter(0)\n}\n").is_complete


def test_one_computation_by_hand_needs_no_mark():
    """A benchmark of XLA's own is a single computation without a header."""
    ledger = read_text("e {\n  a = u4[8,2] parameter(0)\n  b = u4[8,16] all-gather(a), dimensions={1}\n}\n")
    assert ledger.is_complete and len(ledger.transfers) == 1


def test_several_computations_without_the_line_of_their_module_are_not_complete():
    assert not read_text(WHOLE.partition("\n")[2]).is_complete


def test_a_first_line_that_is_lost_is_missed():
    lost = WHOLE.replace("%add (a: f32[], b: f32[]) -> f32[] {\n", "")
    assert any("4 lines not understood" in note for note in read_text(lost).notes)


def test_lines_of_windows_and_a_byte_order_mark_are_read():
    assert read_text("\ufeff" + WHOLE.replace("\n", "\r\n")).totals() == read_text(WHOLE).totals()


def test_a_tpu_reduces_16_bits_to_float32():
    text = WHOLE.replace("%ar = f32[64]{0} all-reduce(%v)", "%ar = f32[64]{0} all-reduce(%h)")
    text = text.replace("  %one = s32", "  %h = bf16[64]{0} convert(%v)\n  %one = s32")
    assert read_text(text).is_complete
    assert not read_text(text.replace("bf16[64]", "bf16[32]")).is_complete


@pytest.mark.slow
def test_intact_texts_of_every_compiler_and_version_at_hand_are_whole():
    """Those that are cut end in a computation."""
    texts = {**OURS, **theirs("hlo/*/*", "cases/compiled/*/*.hlo", "cases/second/*.hlo", "cases/referee/*.hlo")}
    modules = {name: parse(text()) for name, text in texts.items()}
    assert {name: found for name, m in modules.items() if not m.is_cut and (found := faults(m) + m.unread)} == {}


@pytest.mark.parametrize("piece", ['}, a=\\"', "}, a=, metadata={}", ', metadata={"', '/*"'])
def test_a_line_with_many_marks_that_do_not_end_is_read_in_time_that_grows_with_it(piece):
    odd = WHOLE.replace("parameter(0)\n", f"parameter(0), metadata={{}} {piece * 20_000}\n", 1)
    assert odd != WHOLE
    start = time.process_time()
    assert not read_text(odd).is_complete
    assert time.process_time() - start < 5  # Minutes, where each mark is looked for to the end of the line.
