"""Budgets of communication: what a line covers, what breaks it, and what no line covers."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import lab
from lab.core.ledger import Kind, SubAxis
from lab.guard.budget import allow, broken, failure
from lab.meshes.errors import UsageError
from tests.lab.ledgers import ledger, transfer

GATHER = transfer(Kind.ALL_GATHER, ("data",), 800, executions=3, scope="mlp", origin="step.py:7")


@pytest.mark.parametrize("limit", [{"executions": 3}, {"payload_bytes": 2400}, {"wire_bytes": 2100}, {}])
def test_a_program_at_its_limit_is_within_the_budget(limit):
    assert broken(ledger(GATHER), [allow("all_gather", "data", **limit)]) == []


@pytest.mark.parametrize("limit", [{"executions": 2}, {"payload_bytes": 2399}, {"wire_bytes": 2099.5}])
def test_one_more_than_allowed_names_the_transfer_and_its_line(limit):
    (line,) = broken(ledger(GATHER), [allow("all_gather", "data", **limit)])
    assert line.startswith("all_gather over data: ") and "allowed" in line
    assert "3 x 800 B f32  mlp step.py:7" in line


def test_what_no_line_covers_is_over_the_budget():
    (line,) = broken(
        ledger(GATHER), [allow("all_reduce"), allow("all_gather", "tensor"), allow("all_gather", "data+tensor")]
    )
    assert line.startswith("not in the budget:")


def test_lines_that_nothing_matches_are_named_where_something_is_broken():
    budget = [allow("all_gather", "data", executions=2), allow("all_reduce", "data"), allow(payload_bytes=64)]
    assert failure(ledger(GATHER), budget).splitlines()[-1] == (
        "allowances that match no transfer: all_reduce over data, any kind over any axes"
    )
    assert failure(ledger(GATHER), [allow("all_gather", "data"), *budget[1:]]) is None


@pytest.mark.parametrize("axes", ["date", "data+date"])
def test_an_axis_that_the_mesh_lacks_is_refused_even_where_nothing_is_sent(axes):
    with pytest.raises(UsageError) as refusal:
        failure(ledger(mesh={"data": 8, "tensor": 1}), [allow("all_gather", axes)])
    assert str(refusal.value) == (
        f"budget line all_gather over {axes}: no axis 'date' in the mesh; did you mean data? known are data, tensor"
    )


def test_axes_of_a_program_whose_mesh_is_unknown_are_refused():
    unnamed = ledger(transfer(Kind.ALL_GATHER, None, 800), mesh=None)
    with pytest.raises(UsageError, match="axes of transfers are unknown without the program's mesh; pass it as mesh="):
        failure(unnamed, [allow("all_gather", "data")])
    assert failure(unnamed, [allow("all_gather")]) is None


def test_part_of_an_axis_that_a_transfer_spans_has_a_name():
    half = ledger(transfer(Kind.ALL_GATHER, None, 800, group_size=4, sub_axes=(SubAxis("data", 8, 1, 4),)))
    assert failure(half, [allow("all_gather", "data[4 of 8]")]) is None
    assert "not in the budget" in failure(half, [allow("all_gather", "data")])


def test_a_limit_is_for_all_transfers_of_its_line_together():
    twice = ledger(GATHER, transfer(Kind.ALL_GATHER, ("data",), 100, executions=2))
    assert broken(twice, [allow("all_gather", executions=5)]) == []
    assert len(broken(twice, [allow("all_gather", executions=4)])) == 1


def test_a_transfer_counts_to_the_first_line_that_covers_it():
    assert broken(ledger(GATHER), [allow("all_gather", executions=3), allow(executions=0)]) == []
    assert len(broken(ledger(GATHER), [allow(executions=0), allow("all_gather", executions=3)])) == 1


def test_unknown_executions_break_a_limit_but_not_a_line_without_one():
    loop = ledger(transfer(Kind.ALL_REDUCE, ("data",), 8, executions=None))
    assert "does not say how often" in broken(loop, [allow("all_reduce", executions=10**9)])[0]
    assert broken(loop, [allow("all_reduce")]) == []


def test_groups_of_one_device_send_nothing_and_need_no_line():
    assert broken(ledger(transfer(Kind.ALL_REDUCE, ("data",), 8, group_size=1)), []) == []


def test_a_text_that_was_not_read_whole_is_over_every_budget():
    (line,) = broken(ledger(is_complete=False, notes=("a line was cut",)), [allow()])
    assert "a line was cut" in line


@pytest.mark.parametrize("budget", ["all_gather", ["all_gather"], allow("all_gather"), None], ids=str)
def test_what_is_no_list_of_lines_is_refused(budget):
    with pytest.raises(
        UsageError, match=r"^budget=.*: expected a list of lines such as lab.allow\('all_gather', 'fsdp'\)$"
    ):
        failure(ledger(), budget)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(
        UsageError, match="no kind of transfer 'allreduce' in lab.allow\\(...\\); did you mean all_reduce"
    ):
        allow("allreduce")


@pytest.mark.compiles
def test_a_sum_over_8_devices_breaks_an_empty_budget_and_keeps_to_its_own():
    mesh = lab.mesh("cpu:8", data=8)
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))
    program = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))
    with pytest.raises(AssertionError, match="all_reduce over data, 1 x 16 B f32"):
        lab.assert_communication(program, x, mesh=mesh, budget=[])
    found = lab.assert_communication(
        program, x, mesh=mesh, budget=[allow("all_reduce", "data", executions=1, payload_bytes=16)]
    )
    assert found.totals().executions == 1


def test_pytest_shows_a_refusal_at_the_line_of_the_test():
    with pytest.raises(UsageError) as refused:
        lab.assert_communication("absent.hlo", budget=[])
    *_, line, hidden = refused.traceback
    assert (line.path.name, hidden.name) == ("test_budget.py", "assert_communication")
    assert hidden.ishidden(refused)


def test_where_transfers_stand_that_a_failure_leaves_out_is_said():
    seven = [transfer(Kind.ALL_GATHER, ("data",), 800 * n) for n in range(1, 8)]
    (found,) = broken(ledger(*seven), [])
    assert found.splitlines()[1].startswith("    all_gather over data, 1 x 5,600 B")
    assert found.splitlines()[6:] == ["    and 2 more; print(lab.inspect(...)) lists all"]
