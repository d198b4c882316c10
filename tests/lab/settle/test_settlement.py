"""Verdicts on small ledgers, written by hand."""

from dataclasses import astuple, replace

import pytest

from lab.core.ledger import Kind, Ledger, Part, Provenance, Transfer
from lab.settle import CATALOGUE, NOTES, Context, Status, Verdict, settle
from lab.settle.settlement import SettlementJson

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
    assert (
        statuses([GATHER], [replace(GATHER, executions=3), replace(GATHER, executions=1, instruction="peeled")])[0]
        is Verdict.EXACT
    )


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
    widened = replace(GATHER, dtype="f32", payload_bytes=2048, is_widened=True)
    assert statuses([GATHER], [widened], CPU)[0] is Verdict.EXPLAINED
    assert statuses([GATHER], [widened], GPU)[0] is Verdict.REFUTED
    assert statuses([GATHER], [replace(widened, is_widened=False)], CPU)[0] is Verdict.REFUTED


def test_cpu_keeps_a_declared_scatter_as_all_reduce_and_an_explicit_one_as_it_is():
    reduced = replace(SCATTER, kind=Kind.ALL_REDUCE, dtype="f32", payload_bytes=2048, is_widened=True)
    assert statuses([SCATTER], [reduced], CPU)[0] is Verdict.EXPLAINED
    assert statuses([SCATTER], [reduced], replace(CPU, style="explicit"))[0] is Verdict.REFUTED


def test_a_tpu_reduction_instead_of_a_scatter_is_recognised_not_predicted():
    reduced = replace(SCATTER, kind=Kind.ALL_REDUCE)
    assert statuses([SCATTER], [reduced], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([SCATTER], [SCATTER], TPU)[0] is Verdict.EXACT
    assert statuses([SCATTER], [reduced], GPU)[0] is Verdict.REFUTED
    assert statuses([GATHER], [replace(reduced, scope=GATHER.scope)], GPU)[0] is Verdict.REFUTED


PADDED = replace(SCATTER, payload_bytes=1120, padded_from_bytes=1024)
# (1120 - 1024) / 16 x 15 = 90, in messages of no more than 1120 / 16 = 70.
HALO = [Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 4, "bf16", payload) for payload in (70, 20)]


def test_a_padded_scatter_and_its_halo_of_two_messages_are_attributed_not_predicted():
    verdict, [status], unexplained = statuses([SCATTER], [PADDED, *HALO], TPU)
    assert (verdict, status, unexplained) == (Verdict.ATTRIBUTED, Status.ATTRIBUTED, ())


def test_padding_explains_neither_fewer_scatters_nor_fewer_or_other_permutes():
    stray = Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 4, "bf16", 91)
    assert statuses([SCATTER], [replace(PADDED, executions=1), *HALO], TPU)[0] is Verdict.REFUTED
    assert statuses([SCATTER], [PADDED, HALO[0]], TPU)[0] is Verdict.REFUTED
    assert statuses([SCATTER], [PADDED, *HALO, stray], TPU)[2] == (stray,)


def test_a_halo_without_a_name_beside_that_of_another_term_is_taken_by_its_size():
    other = replace(GATHER, scope="layers/mlp/gate")
    named = [replace(halo, scope=other.scope, op_name="jit(step)/mlp/gate/mul") for halo in HALO]
    assert statuses([SCATTER, other], [PADDED, *named, other], TPU)[0] is Verdict.REFUTED
    settlement = settle(
        Ledger((SCATTER, other)), Ledger((PADDED, *(replace(halo, op_name=None) for halo in named), other)), TPU
    )
    assert (settlement.verdict, len(settlement.taken_by_size)) == (Verdict.ATTRIBUTED, 2)


def test_of_two_scatters_in_one_each_is_known_to_be_padded():
    parts = (Part("bf16", 1120, padded_from_bytes=1024), Part("bf16", 2240, padded_from_bytes=2048))
    both = replace(PADDED, payload_bytes=3360, padded_from_bytes=None, parts=parts, scope="layers/mlp/down")
    halos = HALO + [replace(halo, payload_bytes=2 * halo.payload_bytes) for halo in HALO]
    verdict, found, _ = statuses(
        [SCATTER, replace(SCATTER, payload_bytes=2048, scope="layers/mlp/down")], [both, *halos], TPU
    )
    assert (verdict, found) == (Verdict.ATTRIBUTED, [Status.ATTRIBUTED] * 2)


def test_a_branch_that_may_not_run_carries_out_no_term():
    assert statuses([GATHER], [replace(GATHER, conditional=True)])[0] is Verdict.REFUTED


def test_another_shift_is_another_permute_and_so_is_one_that_no_prediction_states():
    hop = Transfer(Kind.COLLECTIVE_PERMUTE, ("pipe",), 8, 1, "f32", 64, shift=1)
    assert statuses([hop], [hop])[0] is Verdict.EXACT
    assert statuses([hop], [replace(hop, shift=7)])[0] is Verdict.REFUTED
    assert statuses([replace(hop, shift=None)], [hop])[0] is Verdict.REFUTED
    assert statuses([hop], [replace(hop, shift=None)])[0] is Verdict.REFUTED


def test_another_number_of_groups_is_another_transfer():
    two = replace(GATHER, groups=2)
    assert statuses([two], [two])[0] is Verdict.EXACT
    assert statuses([two], [replace(two, groups=1)])[0] is Verdict.REFUTED
    assert statuses([two], [replace(two, groups=4)])[0] is Verdict.REFUTED


def test_where_scopes_are_kept_one_term_is_not_settled_with_the_transfers_of_another():
    down = replace(GATHER, scope="layers/mlp/down")
    assert statuses([GATHER, down], [replace(GATHER, executions=8)])[0] is Verdict.REFUTED
    assert statuses([GATHER, down], [replace(GATHER, executions=8, scope="layers/mlp")])[0] is Verdict.EXACT


FORWARD, BACKWARD = replace(SCATTER, phase="forward"), replace(SCATTER, phase="backward")
NAMELESS = replace(BACKWARD, kind=Kind.ALL_REDUCE, scope="", phase=None)


def test_a_sum_that_a_behaviour_makes_stands_beside_the_term_of_its_phase():
    sums = [replace(BACKWARD, kind=Kind.ALL_REDUCE, scope=""), replace(FORWARD, kind=Kind.ALL_REDUCE, scope="")]
    terms = settle(Ledger((FORWARD, BACKWARD)), Ledger(tuple(sums)), TPU).terms
    assert [[t.phase for t in term.measured] for term in terms] == [["forward"], ["backward"]]


@pytest.mark.parametrize("phase", ["backward", None])
def test_a_sum_without_a_name_stands_for_a_gradients_scatter_in_its_phase_or_in_none_that_is_known(phase):
    assert statuses([BACKWARD], [replace(NAMELESS, phase=phase)], TPU)[:2] == (Verdict.ATTRIBUTED, [Status.ATTRIBUTED])


def test_what_a_text_says_of_phase_and_scope_is_compared_and_what_it_does_not_say_is_counted():
    other = replace(BACKWARD, scope="head")
    for wrong in (FORWARD, replace(BACKWARD, phase="update"), other):
        assert statuses([BACKWARD], [replace(wrong, op_name="jit(step)/psum_scatter")])[0] is Verdict.REFUTED
    for right in (replace(BACKWARD, scope="layers/mlp/up/fsdp"), replace(BACKWARD, scope="layers")):
        assert statuses([BACKWARD], [right])[0] is Verdict.EXACT
    settlement = settle(Ledger((BACKWARD,)), Ledger((replace(BACKWARD, scope="", phase=None),)), GPU)
    assert (settlement.verdict, settlement.scope_not_stated, settlement.phase_not_stated) == (Verdict.EXACT, 1, 1)
    settlement = settle(Ledger((BACKWARD,)), Ledger((BACKWARD,)), GPU)
    assert (settlement.scope_not_stated, settlement.phase_not_stated) == (0, 0)


def test_a_partitioner_names_a_transfer_after_an_operation_of_its_block_and_of_no_other():
    for names, found, verdict in (
        (("layers/mlp/norm",), "layers/mlp/norm", Verdict.EXACT),
        (("layers/mlp/norm",), "layers/mlp/down", Verdict.REFUTED),
        (("head",), "head", Verdict.EXACT),
        (("layers/attention/norm",), "layers/attention/norm", Verdict.REFUTED),
    ):
        term = replace(BACKWARD, provenance=Provenance(named_after=names))
        assert statuses([term], [replace(BACKWARD, scope=found)])[0] is verdict


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": Kind.ALL_GATHER},
        {"kind": Kind.COLLECTIVE_PERMUTE},
        {"is_masked_gather": True},
        {"axes": ("data",)},
        {"phase": "forward"},
        {"dtype": "f16"},
        {"payload_bytes": 1025},
        {"executions": 3},
        {"scope": "head"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_transfer_without_a_name_settles_nothing_where_but_one_thing_differs(wrong):
    other = replace(GATHER, scope="head", payload_bytes=8)
    predicted, found = [BACKWARD, other, replace(other, kind=Kind.REDUCE_SCATTER)], replace(NAMELESS, **wrong)
    named = replace(found, op_name="jit(step)/add")
    assert BACKWARD in [term.predicted for term in settle(Ledger(tuple(predicted)), Ledger((named,)), TPU).missing]
    is_refused = BACKWARD in [
        term.predicted for term in settle(Ledger(tuple(predicted)), Ledger((found,)), TPU).missing
    ]
    assert is_refused or "scope" in wrong  # Its scope is that of what it was made from.


def test_what_was_taken_by_its_size_is_counted_and_what_its_scope_tells_is_not():
    named, told = replace(NAMELESS, op_name="jit(step)/add"), replace(NAMELESS, scope=BACKWARD.scope)
    assert [
        len(settle(Ledger((BACKWARD,)), Ledger((found,)), TPU).taken_by_size) for found in (NAMELESS, named, told)
    ] == [1, 0, 0]


def test_a_sum_that_gathers_is_no_sum():
    gathers = replace(GATHER, kind=Kind.ALL_REDUCE, is_masked_gather=True)
    assert statuses([GATHER], [gathers], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([GATHER], [replace(gathers, is_masked_gather=False)], TPU)[0] is Verdict.REFUTED
    assert statuses([replace(GATHER, kind=Kind.ALL_REDUCE)], [gathers], TPU)[0] is Verdict.REFUTED


def test_a_term_takes_what_has_its_name_before_what_has_none():
    """A term without a phase: a job of a pipeline that lies in no pass of JAX."""
    largest, other = replace(LOSS, scope="loss/largest"), replace(LOSS, scope="loss/target")
    measured = [replace(LOSS, scope="", phase=None), replace(largest, phase="update")]
    terms = settle(Ledger((other, largest)), Ledger(tuple(measured)), GPU).terms
    assert [[t.scope for t in term.measured] for term in terms] == [[""], ["loss/largest"]]


def test_a_term_takes_what_has_its_own_scope_before_what_lies_around_it():
    inner, outer = replace(LOSS, scope="loss/target"), replace(LOSS, scope="loss")
    terms = settle(Ledger((outer, inner)), Ledger((inner, outer)), GPU).terms
    assert [[t.scope for t in term.measured] for term in terms] == [["loss"], ["loss/target"]]


def test_a_sum_that_gathers_under_a_name_is_for_the_gather_of_that_name():
    other = replace(GATHER, scope="head", payload_bytes=8)
    named = replace(
        GATHER, kind=Kind.ALL_REDUCE, is_masked_gather=True, scope="head", op_name="jit(step)/head/all_gather"
    )
    settlement = settle(Ledger((GATHER, other)), Ledger((named, other)), TPU)
    assert [term.status for term in settlement.terms] == [Status.MISSING, Status.EXACT]


def test_the_phase_of_sums_in_one_is_that_of_one_of_them():
    both = replace(NAMELESS, phase="forward", payload_bytes=1028, parts=(Part("bf16", 1024), Part("bf16", 4)))
    assert statuses([BACKWARD, replace(LOSS, dtype="bf16", executions=4)], [both], TPU)[1] == [
        Status.ATTRIBUTED,
        Status.EXACT,
    ]


def test_a_term_whose_own_scope_stands_leaves_what_has_none_to_another():
    """XLA moved the second sum out of its loop, and left the first where it was."""
    norm = Transfer(
        Kind.ALL_REDUCE,
        ("fsdp",),
        16,
        3,
        "bf16",
        64,
        phase="backward",
        scope="layers/attention/norm",
        provenance=Provenance(iterations=3),
    )
    other = replace(norm, scope="layers/mlp/norm")
    stack = replace(norm, executions=1, payload_bytes=192, scope="", provenance=Provenance())
    assert statuses([norm, other], [replace(norm, provenance=Provenance()), stack], TPU)[1] == [
        Status.EXACT,
        Status.EXPLAINED,
    ]


def test_what_could_not_be_read_refutes():
    assert settle(Ledger((GATHER,)), Ledger((GATHER,), is_complete=False), GPU).verdict is Verdict.REFUTED
    assert statuses([GATHER], [GATHER, replace(GATHER, group_size=None, axes=None)])[0] is Verdict.REFUTED


def test_axes_of_one_device_and_loops_that_do_not_run_need_no_prediction():
    mesh = {"fsdp": 16, "tensor": 1}
    wide = replace(GATHER, axes=("fsdp", "tensor"))
    assert (
        settle(Ledger((wide,), mesh=mesh), Ledger((GATHER, replace(LOSS, executions=0)), mesh=mesh), GPU).verdict
        is Verdict.EXACT
    )


def test_a_predictable_behaviour_that_did_not_happen_is_told():
    settlement = settle(Ledger((SCATTER,)), Ledger((SCATTER,)), CPU)
    assert settlement.verdict is Verdict.EXACT
    assert "C2" in settlement.terms[0].explanation
    assert (settlement.terms[0].did_not_happen, settlement.did_not_happen) == (("C2", "C1"), {"C2": 1, "C1": 1})


def test_seventeen_permutes_of_a_shard_or_fifteen_are_a_windowed_gather_over_sixteen():
    loop = Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 16, 64, "bf16", 64, shift=1)
    last = replace(loop, executions=4, instruction="last")
    assert statuses([GATHER], [loop, last], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([GATHER], [replace(loop, executions=60)], TPU)[0] is Verdict.ATTRIBUTED
    assert statuses([GATHER], [loop], TPU)[0] is Verdict.REFUTED


def test_columns_split_the_wire_bytes_of_what_was_measured():
    stray = replace(LOSS, payload_bytes=8)
    settlement = settle(Ledger((GATHER, SCATTER)), Ledger((GATHER, PADDED, *HALO, stray)), TPU)
    assert settlement.predicted_wire_bytes == 4 * 1024 * 15 / 16
    assert settlement.attributed_wire_bytes == 4 * (1120 * 15 / 16 + 90)
    assert settlement.unexplained_wire_bytes == 2 * 8 * 15 / 16


def test_of_two_terms_that_look_alike_the_scope_decides():
    down = replace(GATHER, scope="layers/mlp/down")
    settlement = settle(Ledger((GATHER, down)), Ledger((down,)), GPU)
    assert [term.status for term in settlement.terms] == [Status.MISSING, Status.EXACT]


@pytest.mark.parametrize("behaviour", CATALOGUE, ids=lambda b: b.id)
def test_only_a_predictable_behaviour_rewrites_a_prediction(behaviour):
    assert behaviour.rewrite is None or behaviour.certainty == "predictable"
    assert behaviour.rewrite or behaviour.certainty != "predictable"


@pytest.mark.parametrize("behaviour", CATALOGUE, ids=lambda b: b.id)
def test_an_id_of_the_catalogue_is_code_that_decides(behaviour):
    rules = (behaviour.rewrite, behaviour.recognise, behaviour.recognise_together, behaviour.recognise_added)
    assert rules.count(None) == 3


def test_ids_are_unique():
    assert len({entry.id for entry in (*CATALOGUE, *NOTES)}) == len(CATALOGUE) + len(NOTES)


def test_what_was_not_settled_has_no_row_and_counts_nothing():
    assert not any(astuple(SettlementJson()))


ENTERED = Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 2, "f32", 1024, scope="layers/attention/enter", phase="backward")


@pytest.mark.parametrize(
    "term, found",
    [
        (GATHER, GATHER),
        (GATHER, replace(GATHER, dtype="f32", payload_bytes=2048, is_widened=True)),
        (replace(ENTERED, provenance=Provenance(partial_products=3)), replace(ENTERED, executions=6)),
        (replace(ENTERED, provenance=Provenance(partial_products=3)), ENTERED),
    ],
    ids=["as it stands", "as it shows in the text", "as the compiler rewrites it", "as it stands, not rewritten"],
)
def test_what_settles_a_term_in_its_own_scope_settles_none_in_another(term, found):
    """By name: what has lost its name may be for another scope."""
    mesh = {"tensor": 4, "fsdp": 16}
    context = Context("cpu", "declared", mesh)

    def verdict(scope: str) -> Verdict:
        named = replace(found, scope=scope, op_name=f"jit(step)/{scope}/add")
        return settle(Ledger((term,), mesh=mesh), Ledger((named,), mesh=mesh), context).verdict

    assert verdict(term.scope) is not Verdict.REFUTED
    assert (verdict("head"), verdict("layers/attention/leave")) == (Verdict.REFUTED, Verdict.REFUTED)
