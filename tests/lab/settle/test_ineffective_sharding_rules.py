"""Which state is not split, and which gradients are summed in full where a scatter was declared; by hand."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Phase, Transfer
from lab.settle import Settlement, Status
from lab.settle.ineffective_sharding import StateShard, not_scattered, state_not_split
from lab.settle.settlement import Term

SHARD = StateShard("mu.up", "taken", (4, 6), ("data",), declared=12, held=12)
SCATTER = Transfer(Kind.REDUCE_SCATTER, ("data",), 2, 3, "f32", 1024, scope="layers/up", phase=Phase.BACKWARD)


def test_state_that_is_held_as_declared_is_split():
    assert state_not_split([]) is None and state_not_split([SHARD, SHARD]) is None


@pytest.mark.parametrize(("held", "what"), [(24, "all of it"), (18, "18 of its 24 entries, not 12")])
def test_state_of_which_more_is_held_than_was_declared_is_named(held, what):
    said = state_not_split([SHARD, replace(SHARD, name="nu.up", held=held)])
    assert said == (f"nu.up [4, 6], an input of a step, is declared sharded over data, but each device holds {what}")


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"payload_bytes": 3072, "executions": 1}, True),
        ({"payload_bytes": 3072, "executions": None}, True),
        ({"payload_bytes": 1024, "executions": 2}, False),
        ({"payload_bytes": 1023}, False),
        ({"axes": ("fsdp",)}, False),
        ({"kind": Kind.ALL_GATHER}, False),
    ],
    ids=[
        "layer by layer",
        "the stack",
        "a stack of unknown executions",
        "fewer",
        "smaller",
        "another axis",
        "another kind",
    ],
)
@pytest.mark.parametrize("is_claimed", [True, False])
def test_a_gradient_is_summed_in_full_where_an_all_reduce_of_as_many_bytes_stands_for_the_scatter(
    changes, is_found, is_claimed
):
    found = replace(SCATTER, **({"kind": Kind.ALL_REDUCE} | changes))
    term = Term(SCATTER, (found,) if is_claimed else (), Status.REFUTED if is_claimed else Status.MISSING)
    said = not_scattered(Settlement((term,), () if is_claimed else (found,)))
    expected = (
        "the gradient of layers/up is declared reduce-scattered over data, but each device all-reduces it in full"
    )
    assert said == (expected if is_found else None)


@pytest.mark.parametrize(
    ("term", "status"),
    [
        (SCATTER, Status.EXACT),
        (SCATTER, Status.EXPLAINED),
        (replace(SCATTER, phase=Phase.FORWARD), Status.MISSING),
        (replace(SCATTER, kind=Kind.ALL_GATHER), Status.MISSING),
    ],
)
def test_a_scatter_that_was_met_and_what_is_no_scatter_of_a_gradient_are_not_said_to_be_summed(term, status):
    found = replace(SCATTER, kind=Kind.ALL_REDUCE)
    assert not_scattered(Settlement((Term(term, (found,), status),), (found,))) is None


def test_a_scatter_and_a_sum_of_unknown_executions_are_compared_by_one_each():
    scatter = replace(SCATTER, executions=None)
    found = replace(scatter, kind=Kind.ALL_REDUCE)
    assert not_scattered(Settlement((Term(scatter, (found,), Status.REFUTED),), ()))
