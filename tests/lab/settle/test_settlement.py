"""Verdicts on small ledgers, written by hand."""

from dataclasses import replace

import pytest

from lab.ledger import Kind, Ledger, Part, Transfer
from lab.settle import CATALOGUE, Context, Status, Verdict, settle

CPU = Context("cpu", "declared")
GPU = Context("gpu", "declared")
TPU = Context("tpu", "explicit")

GATHER = Transfer(Kind.ALL_GATHER, ("fsdp",), 16, 4, "bf16", 1024, scope="layers/mlp/up")
SCATTER = replace(GATHER, kind=Kind.REDUCE_SCATTER)
LOSS = Transfer(Kind.ALL_REDUCE, ("fsdp",), 16, 1, "f32", 4, scope="loss")


def statuses(predicted, measured, context=GPU):
    settlement = settle(Ledger(tuple(predicted)), Ledger(tuple(measured)), context)
    return settlement.verdict, [term.status for term in settlement.terms], settlement.unexplained


def test_equal_ledgers_are_exact():
    assert statuses([GATHER, LOSS], [LOSS, GATHER]) == (Verdict.EXACT, [Status.EXACT] * 2, ())


def test_a_peeled_loop_adds_up():
    assert statuses([GATHER], [replace(GATHER, executions=3), replace(GATHER, executions=1, instruction="peeled")])[0] is Verdict.EXACT


def test_a_combined_operation_is_its_operands():
    combined = replace(GATHER, dtype="bf16", payload_bytes=3072, parts=(Part("bf16", 1024), Part("bf16", 2048)))
    assert statuses([GATHER, replace(GATHER, payload_bytes=2048)], [combined])[0] is Verdict.EXACT


def test_one_execution_too_few_refutes():
    verdict, [status], unexplained = statuses([GATHER], [replace(GATHER, executions=3)])
    assert (verdict, status, unexplained) == (Verdict.REFUTED, Status.REFUTED, ())


def test_one_byte_too_many_refutes():
    assert statuses([GATHER], [replace(GATHER, payload_bytes=1025)])[:2] == (Verdict.REFUTED, [Status.REFUTED])


def test_an_absent_transfer_is_missing():
    assert statuses([GATHER, LOSS], [LOSS])[:2] == (Verdict.REFUTED, [Status.MISSING, Status.EXACT])


def test_a_transfer_that_nobody_predicted_is_unexplained():
    verdict, _, unexplained = statuses([LOSS], [LOSS, GATHER])
    assert (verdict, unexplained) == (Verdict.REFUTED, (GATHER,))


def test_another_axis_is_another_transfer():
    assert statuses([GATHER], [replace(GATHER, axes=("data",))])[0] is Verdict.REFUTED


def test_unknown_executions_settle_nothing():
    assert statuses([GATHER], [replace(GATHER, executions=None)])[0] is Verdict.REFUTED


def test_groups_of_one_device_need_no_prediction():
    assert statuses([LOSS], [LOSS, replace(GATHER, group_size=1)])[0] is Verdict.EXACT


def test_cpu_widening_explains_twice_the_bytes_on_cpu_alone():
    widened = replace(GATHER, dtype="f32", payload_bytes=2048)
    assert statuses([GATHER], [widened], CPU)[0] is Verdict.EXPLAINED
    assert statuses([GATHER], [widened], GPU)[0] is Verdict.REFUTED


def test_cpu_keeps_a_declared_scatter_as_all_reduce_and_an_explicit_one_as_it_is():
    reduced = replace(SCATTER, kind=Kind.ALL_REDUCE, dtype="f32", payload_bytes=2048)
    assert statuses([SCATTER], [reduced], CPU)[0] is Verdict.EXPLAINED
    assert statuses([SCATTER], [reduced], replace(CPU, style="explicit"))[0] is Verdict.REFUTED


def test_a_tpu_reduction_instead_of_a_scatter_is_recognised_not_predicted():
    reduced = replace(SCATTER, kind=Kind.ALL_REDUCE)
    assert statuses([SCATTER], [reduced], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([SCATTER], [SCATTER], TPU)[0] is Verdict.EXACT
    assert statuses([SCATTER], [reduced], GPU)[0] is Verdict.REFUTED
    assert statuses([GATHER], [replace(reduced, scope=GATHER.scope)], GPU)[0] is Verdict.REFUTED


def test_a_padded_scatter_and_its_halo_are_attributed_not_predicted():
    padded = replace(SCATTER, payload_bytes=1120, padded_from_bytes=1024)
    halo = Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 4, "bf16", 90)  # (1120 - 1024) / 16 x 15
    verdict, [status], unexplained = statuses([SCATTER], [padded, halo], TPU)
    assert (verdict, status, unexplained) == (Verdict.ATTRIBUTED, Status.ATTRIBUTED, ())


def test_padding_explains_neither_fewer_scatters_nor_other_permutes():
    padded = replace(SCATTER, payload_bytes=1120, padded_from_bytes=1024)
    stray = Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 4, "bf16", 91)
    assert statuses([SCATTER], [replace(padded, executions=1)], TPU)[0] is Verdict.REFUTED
    assert statuses([SCATTER], [padded, stray], TPU)[2] == (stray,)


def test_a_branch_that_may_not_run_carries_out_no_term():
    assert statuses([GATHER], [replace(GATHER, conditional=True)])[0] is Verdict.REFUTED


def test_another_shift_is_another_permute_where_one_is_predicted():
    hop = Transfer(Kind.COLLECTIVE_PERMUTE, ("pipe",), 8, 1, "f32", 64, shift=1)
    assert statuses([hop], [replace(hop, shift=7)])[0] is Verdict.REFUTED
    assert statuses([replace(hop, shift=None)], [hop])[0] is Verdict.EXACT


def test_where_scopes_are_kept_one_term_is_not_settled_with_the_transfers_of_another():
    down = replace(GATHER, scope="layers/mlp/down")
    assert statuses([GATHER, down], [replace(GATHER, executions=8)])[0] is Verdict.REFUTED
    assert statuses([GATHER, down], [replace(GATHER, executions=8, scope="layers/mlp")])[0] is Verdict.EXACT


def test_an_all_reduce_that_lost_its_name_may_stand_for_the_gather_of_another_scope_and_one_with_a_name_may_not():
    summed = replace(GATHER, kind=Kind.ALL_REDUCE, scope="embedding")
    predicted = [GATHER, replace(SCATTER, scope="embedding")]
    assert statuses(predicted, [summed, summed], TPU)[1] == [Status.ATTRIBUTED, Status.ATTRIBUTED]
    named = replace(summed, op_name="jit(step)/embedding/add")
    assert statuses(predicted, [named, summed], TPU)[1] == [Status.ATTRIBUTED, Status.ATTRIBUTED]
    assert statuses(predicted, [named, named], TPU)[1] == [Status.MISSING, Status.ATTRIBUTED]


def test_what_could_not_be_read_refutes():
    assert settle(Ledger((GATHER,)), Ledger((GATHER,), is_complete=False), GPU).verdict is Verdict.REFUTED
    assert statuses([GATHER], [GATHER, replace(GATHER, group_size=None, axes=None)])[0] is Verdict.REFUTED


def test_axes_of_one_device_and_loops_that_do_not_run_need_no_prediction():
    mesh = {"fsdp": 16, "tensor": 1}
    wide = replace(GATHER, axes=("fsdp", "tensor"))
    assert settle(Ledger((wide,), mesh=mesh), Ledger((GATHER, replace(LOSS, executions=0)), mesh=mesh), GPU).verdict is Verdict.EXACT


def test_a_predictable_behaviour_that_did_not_happen_is_told():
    settlement = settle(Ledger((SCATTER,)), Ledger((SCATTER,)), CPU)
    assert settlement.verdict is Verdict.EXACT
    assert "C2" in settlement.terms[0].explanation


def test_seventeen_permutes_of_a_shard_are_a_windowed_gather_over_sixteen():
    loop = Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 64, "bf16", 64, shift=1)
    last = replace(loop, executions=4, instruction="last")
    assert statuses([GATHER], [loop, last], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([GATHER], [loop], TPU)[0] is Verdict.REFUTED


def test_columns_split_the_wire_bytes_of_what_was_measured():
    padded = replace(SCATTER, payload_bytes=1120, padded_from_bytes=1024)
    stray = replace(LOSS, payload_bytes=8)
    settlement = settle(Ledger((GATHER, SCATTER)), Ledger((GATHER, padded, stray)), TPU)
    assert settlement.foreseen_wire_bytes == 4 * 1024 * 15 / 16
    assert settlement.attributed_wire_bytes == 4 * 1120 * 15 / 16
    assert settlement.unexplained_wire_bytes == 2 * 8 * 15 / 16


def test_of_two_terms_that_look_alike_the_scope_decides():
    down = replace(GATHER, scope="layers/mlp/down")
    settlement = settle(Ledger((GATHER, down)), Ledger((down,)), GPU)
    assert [term.status for term in settlement.terms] == [Status.MISSING, Status.EXACT]


@pytest.mark.parametrize("behaviour", CATALOGUE, ids=lambda b: b.id)
def test_only_a_predictable_behaviour_rewrites_a_prediction(behaviour):
    assert behaviour.rewrite is None or behaviour.certainty == "predictable"
    assert behaviour.recognise is None or behaviour.certainty != "predictable"


def test_ids_are_unique():
    assert len({b.id for b in CATALOGUE}) == len(CATALOGUE)
