"""Wire bytes by kind, totals, and the JSON contract."""

from dataclasses import replace
from fractions import Fraction

import pytest

from lab.core.codec import from_json, to_json
from lab.core.frame import Frame
from lab.core.ledger import Kind, Ledger, Memory, Part, Transfer, TransferJson, wire_bytes

GATHER = Transfer(
    Kind.ALL_GATHER,
    ("fsdp",),
    128,
    126,
    "bf16",
    1744830464,
    groups=1,
    phase="forward",
    scope="layers/mlp/up",
    link="network",
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.ALL_REDUCE, Fraction(7, 4) * 1000),
        (Kind.ALL_GATHER, Fraction(7, 8) * 1000),
        (Kind.REDUCE_SCATTER, Fraction(7, 8) * 1000),
        (Kind.ALL_TO_ALL, Fraction(7, 8) * 1000),
        (Kind.COLLECTIVE_PERMUTE, 1000),
        (Kind.COLLECTIVE_BROADCAST, 1000),
        (Kind.SEND_RECV, 1000),
    ],
)
def test_wire_bytes_of_1000_bytes_over_eight_devices(kind, expected):
    assert wire_bytes(kind, 1000, 8) == expected


@pytest.mark.parametrize("kind", Kind)
def test_a_group_of_one_sends_nothing(kind):
    assert wire_bytes(kind, 1000, 1) == 0


def test_the_gather_of_the_contract_sends_1_731_198_976_bytes():
    row = Ledger((GATHER,), devices=128, mesh={"fsdp": 128}).to_json()["transfers"][0]
    assert row["wire_bytes"] == 1731198976
    assert {
        "kind",
        "axes",
        "shift",
        "group_size",
        "groups",
        "executions",
        "conditional",
        "dtype",
        "payload_bytes",
    } <= row.keys()
    assert {"phase", "scope", "origin", "op_name", "instruction", "overlap", "link"} <= row.keys()


def test_totals_multiply_by_executions():
    ledger = Ledger((GATHER, replace(GATHER, executions=1)), mesh={"fsdp": 128})
    totals = ledger.to_json()["totals"]
    assert totals["all"] == {
        "sites": 2,
        "executions": 127,
        "arrays": 127,
        "payload_bytes": 127 * 1744830464,
        "wire_bytes": 127 * 1731198976,
    }
    assert totals["by_kind"] == {"all_gather": totals["all"]}
    assert totals["by_axes"] == {"fsdp": totals["all"]}


def test_unknown_executions_make_totals_a_lower_bound():
    totals = Ledger((GATHER, replace(GATHER, executions=None))).to_json()["totals"]["all"]
    assert totals["lower_bound"] is True
    assert totals["executions"] == 126


def test_unknown_axes_are_null_and_apart():
    ledger = Ledger((GATHER, replace(GATHER, axes=None))).to_json()
    assert ledger["transfers"][1]["axes"] is None
    assert list(ledger["totals"]["by_axes"]) == ["fsdp", "?"]


def test_split_gives_one_transfer_an_operand_and_keeps_the_sum():
    combined = replace(GATHER, payload_bytes=30, dtype="bf16+f32", parts=(Part("bf16", 10), Part("f32", 20)))
    parts = Ledger((combined,)).split()
    assert [(t.dtype, t.payload_bytes) for t in parts.transfers] == [("bf16", 10), ("f32", 20)]
    assert parts.totals().payload_bytes == Ledger((combined,)).totals().payload_bytes


def test_memory_and_notes_are_part_of_the_contract():
    row = Ledger((), memory=Memory(1, 2, 3, 4, None), notes=("cut",)).to_json()
    device = {"arguments": 1, "outputs": 2, "temporaries": 3, "aliased": 4, "peak": None, "padding": 0}
    assert row["memory"] == device | {"host_arguments": 0, "host_outputs": 0, "host_temporaries": 0, "on_chip": 0}
    assert row["notes"] == ["cut"]
    assert row["schema"] == "sharding-lab/ledger/1"


def test_json_keeps_functions_and_stacks():
    stack = (Frame("helpers.py", 5, "einsum"), Frame("/v/site-packages/flax/nnx.py", 7, "Linear.__call__", True))
    written = to_json(Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, function="einsum", stack=stack))
    read = from_json(TransferJson, written).transfer()
    assert (read.function, read.stack, written["stack"][1]["is_library"]) == ("einsum", stack, True)


def test_a_function_stands_for_the_scope_of_one_array_alone():
    one = Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, function="Mlp.up")
    both = replace(one, parts=(Part("f32", 4), Part("f32", 4)))
    found = [one, replace(one, scope="mlp"), both, *both.split()]
    assert [t.scope_or_function for t in found] == ["Mlp.up()", "mlp", "", "", ""]


def test_in_a_round_of_500_steps_a_branch_runs_once_and_all_else_500_times():
    outer = replace(GATHER, axes=("replica",), group_size=2, executions=3, conditional=True)
    unknown = replace(GATHER, executions=None)
    step = Ledger((GATHER, outer, unknown), flops=1007, flops_in_branches={"outer": 7})
    found = step.of_round(500)
    assert [t.executions for t in found.transfers] == [500 * 126, 3, None]
    assert (found.flops, found.steps, to_json(found)["steps"]) == (500 * 1000 + 7, 500, 500)
    assert from_json_ledger(found) == found


def from_json_ledger(ledger: Ledger) -> Ledger:
    return Ledger.from_json(to_json(ledger))


def test_a_program_without_branches_is_a_round_itself():
    step = Ledger((GATHER,))
    assert step.of_round(16) == replace(step, steps=16)
    assert "steps" not in to_json(step)
