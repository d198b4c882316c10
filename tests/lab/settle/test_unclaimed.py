"""Which of several like transfers a term claims first."""

from dataclasses import replace

from lab.core.ledger import Kind, Provenance, Transfer
from lab.settle.unclaimed import claim_up_to

UP = Transfer(Kind.ALL_REDUCE, ("tensor",), 2, 1, "f32", 640, phase="backward", scope="layers/mlp/up")


def test_the_same_scope_is_claimed_before_one_inside_it_then_one_around_it_and_last_none():
    scopes = ["layers/mlp/up", "layers/mlp/up/cast", "layers/mlp", ""]
    found = tuple(replace(UP, scope=scope) for scope in reversed(scopes))
    assert [t.scope for t in claim_up_to(replace(UP, executions=4), found)] == scopes
    assert [t.scope for t in claim_up_to(replace(UP, executions=2), found)] == scopes[:2]


def test_an_operation_of_the_same_block_comes_before_what_stands_around_it():
    wanted = replace(UP, executions=1, provenance=Provenance(named_after=("layers/mlp/gate",)))
    found = tuple(replace(UP, scope=scope) for scope in ("", "layers/mlp", "layers/mlp/gate"))
    assert [t.scope for t in claim_up_to(wanted, found)] == ["layers/mlp/gate"]


def test_a_message_whose_filling_the_text_states_is_claimed_before_one_that_may_be_filled_up():
    message = replace(UP, kind=Kind.SEND_RECV, network_kind=Kind.ALL_REDUCE, payload_bytes=512, scope="")
    found = tuple(replace(message, padded_from_bytes=own) for own in (None, 256, 4))
    wanted = replace(message, padded_from_bytes=4)
    assert [t.padded_from_bytes for t in claim_up_to(wanted, found)] == [4]
    assert [t.padded_from_bytes for t in claim_up_to(replace(wanted, executions=3), found)] == [4, None]
