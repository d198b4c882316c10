"""Every computation is met once for each way that leads to it, however many there are, in time that grows with the
text."""

import pytest

from lab.core.note import NoteKind, note_kinds
from lab.hlo import read_text
from lab.hlo.text import parse

ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\n"
REDUCE = "all-reduce({}), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add"


def nested(levels: int, body: str, calls: int = 2) -> str:
    """Computations, each of which runs the one before so often; the last runs from the entry."""
    parts = [
        f"%c0 (x0: s32[], y0: f32[64]) -> f32[64] {{\n  %x0 = s32[] parameter(0)\n  %y0 = f32[64]{{0}} parameter(1)\n{body}\n}}\n"
    ]
    for n in range(1, levels + 1):
        runs = "\n".join(
            f"  {'ROOT ' * (k == calls - 1)}%k{n}.{k} = f32[64]{{0}} call(%x{n}, %y{n}), to_apply=%c{n - 1}"
            for k in range(calls)
        )
        parts.append(
            f"%c{n} (x{n}: s32[], y{n}: f32[64]) -> f32[64] {{\n  %x{n} = s32[] parameter(0)\n  %y{n} = f32[64]{{0}} "
            f"parameter(1)\n{runs}\n}}\n"
        )
    entry = (
        f"ENTRY %e (y: f32[64]) -> f32[64] {{\n  %y = f32[64]{{0}} parameter(0)\n  %four = s32[] constant(4)\n  ROOT %r = "
        f"f32[64]{{0}} call(%four, %y), to_apply=%c{levels}\n}}\n"
    )
    return f"HloModule m, num_partitions=8\n\n{ADD}" + "\n".join([*parts, entry])


def test_calls_made_twice_on_each_of_thirty_levels_run_their_reduction_a_thousand_million_times():
    ledger = read_text(nested(30, f"  ROOT %ar = f32[64]{{0}} {REDUCE.format('%y0')}"))
    (transfer,) = ledger.transfers
    assert (transfer.executions, ledger.notes) == (2**30, ())


def test_a_loop_that_many_ways_lead_to_runs_as_often_as_the_number_says_that_they_all_pass():
    loop = """  %i = s32[] constant(0)
  %t = (s32[], s32[], f32[64]{0}) tuple(%i, %x0, %y0)
  %w = (s32[], s32[], f32[64]{0}) while(%t), condition=%cond, body=%body
  ROOT %end = f32[64]{0} get-tuple-element(%w), index=2"""
    parts = f"""%cond (c: (s32[], s32[], f32[64])) -> pred[] {{
  %c = (s32[], s32[], f32[64]{{0}}) parameter(0)
  %n = s32[] get-tuple-element(%c), index=0
  %most = s32[] get-tuple-element(%c), index=1
  ROOT %less = pred[] compare(%n, %most), direction=LT
}}

%body (s: (s32[], s32[], f32[64])) -> (s32[], s32[], f32[64]) {{
  %s = (s32[], s32[], f32[64]{{0}}) parameter(0)
  %m = s32[] get-tuple-element(%s), index=0
  %limit = s32[] get-tuple-element(%s), index=1
  %v = f32[64]{{0}} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%m, %one)
  %ar = f32[64]{{0}} {REDUCE.format("%v")}
  ROOT %out = (s32[], s32[], f32[64]{{0}}) tuple(%next, %limit, %ar)
}}

"""
    text = nested(6, loop).replace("%c0 (", parts + "%c0 (", 1)
    (transfer,) = read_text(text).transfers
    assert transfer.executions == 4 * 2**6


def test_computations_in_thousands_of_others_are_left_out_with_a_note():
    ledger = read_text(nested(5_000, f"  ROOT %ar = f32[64]{{0}} {REDUCE.format('%y0')}", calls=1))
    assert NoteKind.TEXT_DAMAGED in note_kinds(ledger.notes) and not ledger.is_complete


def test_a_number_that_calls_double_on_each_of_forty_levels_is_not_known_and_ends():
    levels = "".join(
        f"%n{k} (x{k}: s32[]) -> s32[] {{\n  %x{k} = s32[] parameter(0)\n  %l{k} = s32[] call(%x{k}), to_apply=%n{k - 1}\n  "
        f"%r{k} = s32[] call(%l{k}), to_apply=%n{k - 1}\n  ROOT %s{k} = s32[] add(%l{k}, %r{k})\n}}\n\n"
        for k in range(1, 41)
    )
    first = "%n0 (x0: s32[]) -> s32[] {\n  %x0 = s32[] parameter(0)\n  %u = s32[] constant(1)\n  ROOT %p = s32[] add(%x0, %u)\n}\n\n"
    text = f"""HloModule m, num_partitions=8

{ADD}{first}{levels}%cond (c: (s32[], f32[64])) -> pred[] {{
  %c = (s32[], f32[64]{{0}}) parameter(0)
  %n = s32[] get-tuple-element(%c), index=0
  %k = s32[] constant(3)
  %most = s32[] call(%k), to_apply=%n40
  ROOT %less = pred[] compare(%n, %most), direction=LT
}}

%body (s: (s32[], f32[64])) -> (s32[], f32[64]) {{
  %s = (s32[], f32[64]{{0}}) parameter(0)
  %m = s32[] get-tuple-element(%s), index=0
  %v = f32[64]{{0}} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%m, %one)
  %ar = f32[64]{{0}} {REDUCE.format("%v")}
  ROOT %out = (s32[], f32[64]{{0}}) tuple(%next, %ar)
}}

ENTRY %e (y: f32[64]) -> (s32[], f32[64]) {{
  %y = f32[64]{{0}} parameter(0)
  %i = s32[] constant(0)
  %t = (s32[], f32[64]{{0}}) tuple(%i, %y)
  ROOT %w = (s32[], f32[64]{{0}}) while(%t), condition=%cond, body=%body
}}
"""
    (transfer,) = read_text(text).transfers
    assert transfer.executions is None


def test_a_computation_that_stands_for_two_branches_runs_once_for_its_conditional():
    branch = f"%branch (x: f32[64]) -> f32[64] {{\n  %x = f32[64]{{0}} parameter(0)\n  ROOT %ar = f32[64]{{0}} {REDUCE.format('%x')}\n}}\n\n"
    entry = """ENTRY %e (i: s32[], y: f32[64]) -> f32[64] {
  %i = s32[] parameter(0)
  %y = f32[64]{0} parameter(1)
  ROOT %r = f32[64]{0} conditional(%i, %y, %y), branch_computations={%branch, %branch}
}
"""
    (transfer,) = read_text(f"HloModule m, num_partitions=8\n\n{ADD}{branch}{entry}").transfers
    assert (transfer.executions, transfer.conditional) == (1, True)


def test_products_in_branches_are_counted_as_taken_and_a_note_says_of_how_many_flops():
    dot = "dot(%{0}, %{0}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    branches = "".join(
        f"%{name} ({x}: f32[8,8]) -> f32[8,8] {{\n  %{x} = f32[8,8]{{1,0}} parameter(0)\n  ROOT %{name}.0 = f32[8,8]{{1,0}} "
        f"{dot.format(x)}\n}}\n\n"
        for name, x in (("left", "x"), ("right", "y"))
    )
    entry = f"""ENTRY %e (i: s32[], z: f32[8,8]) -> f32[8,8] {{
  %i = s32[] parameter(0)
  %z = f32[8,8]{{1,0}} parameter(1)
  %d = f32[8,8]{{1,0}} {dot.format("z")}
  ROOT %r = f32[8,8]{{1,0}} conditional(%i, %d, %d), branch_computations={{%left, %right}}
}}
"""
    ledger = read_text(f"HloModule m, num_partitions=8\n\n{branches}{entry}")
    assert (ledger.flops, ledger.is_complete) == (3 * 1024, True)
    assert [note for note in ledger.notes if "branches" in note] == [
        "2,048 of 3,072 FLOP stand in branches of conditionals, all of which are counted as taken"
    ]


@pytest.mark.parametrize("opcode, attribute", [("fusion", "kind=kLoop, calls"), ("call", "to_apply")])
@pytest.mark.parametrize("mark", ["%", ""])
def test_a_computation_is_run_whether_its_name_has_a_mark_or_not(opcode, attribute, mark):
    module = parse(
        f"ENTRY %e {{\n  %x = f32[] parameter(0)\n  ROOT %r = f32[] {opcode}(%x), {attribute}={mark}one\n}}\n"
    )
    assert module.entry.by_name["r"].callees == ["one"]
