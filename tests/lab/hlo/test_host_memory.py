"""What is copied between a device and its host in a step, by the memory space of layouts, S(5)."""

import pytest

from lab.core.ledger import HostCopies, Ledger, Memory
from lab.hlo.read import read_text
from lab.report.tables import ledger_text

ROW, STACK = 8 * 128 * 4, "f32[4,8,128]{2,1,0:T(8,128)S(5)}"


def ledger(entry: str, before: str = "") -> Ledger:
    return read_text(f"HloModule step\n\n{before}ENTRY %main {{\n{entry}\n}}\n")


@pytest.mark.parametrize(
    ("start", "copies"),
    [
        ("(f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) copy-start(%x)", HostCopies(0, ROW)),
        ("(f32[8,128]{1,0:S(5)}, f32[8,128]{1,0}, u32[]) copy-start(%x)", HostCopies(ROW, 0)),
        ("(f32[8,128]{1,0:S(1)}, f32[8,128]{1,0}, u32[]) copy-start(%x)", None),
        ("(f32[8,128]{1,0:S(5)}, f32[8,128]{1,0:S(5)}, u32[]) copy-start(%x)", None),
    ],
    ids=["to the device", "to the host", "on the device", "on the host"],
)
def test_a_copy_goes_where_its_first_result_lies(start, copies):
    # Another array lies on the host, so that the text is looked at.
    entry = f"  %x = f32[8,128]{{1,0}} parameter(0)\n  %h = f32[2]{{0:S(5)}} parameter(1)\n  %c = {start}\n"
    assert ledger(entry + "  ROOT %d = f32[8,128]{1,0} copy-done(%c)").host_copies == copies


def stacked(condition: str) -> str:
    """A loop that puts a row into a stack on the host and takes one out, as XLA offloads what a layer saves."""
    state = f"(s32[], f32[1,8,128]{{2,1,0}}, {STACK})"
    return (
        f"%put (a: f32[4,8,128], b: f32[1,8,128], n: s32[]) -> f32[4,8,128] {{\n  %a = {STACK} parameter(0)\n"
        "  %b = f32[1,8,128]{2,1,0} parameter(1)\n  %n = s32[] parameter(2)\n  %z = s32[] constant(0)\n"
        f"  ROOT %u = {STACK} dynamic-update-slice(%a, %b, %n, %z, %z)\n}}\n\n"
        f"%body (s: (s32[], f32[1,8,128], f32[4,8,128])) -> (s32[], f32[1,8,128], f32[4,8,128]) {{\n"
        f"  %s = {state} parameter(0)\n  %i = s32[] get-tuple-element(%s), index=0\n  %k = s32[] constant(1)\n"
        "  %j = s32[] add(%i, %k)\n  %r = f32[1,8,128]{2,1,0} get-tuple-element(%s), index=1\n"
        f"  %h = {STACK} get-tuple-element(%s), index=2\n"
        f"  %w = {STACK} fusion(%h, %r, %i), kind=kCustom, calls=%put\n  %z = s32[] constant(0)\n"
        "  %t = f32[1,8,128]{2,1,0} dynamic-slice(%w, %i, %z, %z), dynamic_slice_sizes={1,8,128}\n"
        f"  ROOT %o = {state} tuple(%j, %t, %w)\n}}\n\n"
        f"%test (s: (s32[], f32[1,8,128], f32[4,8,128])) -> pred[] {{\n  %s = {state} parameter(0)\n"
        f"  %i = s32[] get-tuple-element(%s), index=0\n{condition}\n}}\n\n"
    )


LOOP = (
    f"  %x = f32[1,8,128]{{2,1,0}} parameter(0)\n  %n = s32[] constant(0)\n  %m = s32[] parameter(1)\n"
    f'  %h = {STACK} custom-call(), custom_call_target="AllocateBuffer"\n'
    f"  %s = (s32[], f32[1,8,128]{{2,1,0}}, {STACK}) tuple(%n, %x, %h)\n"
    f"  ROOT %w = (s32[], f32[1,8,128]{{2,1,0}}, {STACK}) while(%s), condition=%test, body=%body"
)
FOUR = "  %l = s32[] constant(4)\n  ROOT %p = pred[] compare(%i, %l), direction=LT"


def test_rows_of_a_stack_on_the_host_count_as_often_as_the_loop_runs():
    found = ledger(LOOP, stacked(FOUR))
    assert found.host_copies == HostCopies(4 * ROW, 4 * ROW)
    assert "copied in a step: 16.38 kB to the host, 16.38 kB to the device" in ledger_text(found)
    assert Ledger.from_json(found.to_json()).host_copies == found.host_copies


def test_where_it_is_not_known_how_often_a_loop_runs_the_bytes_are_a_bound():
    found = ledger(LOOP, stacked("  %e = s32[] multiply(%i, %i)\n  ROOT %p = pred[] compare(%e, %i), direction=NE"))
    assert found.host_copies == HostCopies(ROW, ROW, lower_bound=True)
    assert "copied in a step: at least 4.096 kB to the host" in ledger_text(found)


def test_a_text_that_has_nothing_on_the_host_copies_nothing():
    text = ledger("  %x = f32[8]{0} parameter(0)\n  ROOT %c = f32[8]{0} copy(%x)")
    assert text.host_copies is None and "host_copies" not in text.to_json()


def test_what_lies_on_the_host_stands_in_a_line_of_its_own():
    memory = Memory(1000, 2000, 3000, 0, 5000, host_arguments=4000, host_temporaries=7000)
    lines = ledger_text(Ledger((), memory=memory)).splitlines()
    assert "memory of its host: arguments 4 kB, outputs 0 B, temporaries 7 kB" in lines
    assert not any("host" in line for line in ledger_text(Ledger((), memory=Memory(1, 1, 1, 0, 1))).splitlines())
