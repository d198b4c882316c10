"""What each behaviour makes of a prediction, on ledgers written by hand for a mesh of 2 replicas, 4 shards and 2 parts
of a tensor."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger, Provenance, Transfer
from lab.settle import Context, Status, Verdict, named_refusal, settle

MESH = {"data": 2, "fsdp": 4, "tensor": 2}
# Of the release of jax whose rules these are, whichever is installed; tests of another say so.
CPU, GPU, TPU = (Context(platform, "declared", MESH, jax=(0, 10)) for platform in ("cpu", "gpu", "tpu"))

ENTER = Transfer(
    Kind.ALL_REDUCE,
    ("tensor",),
    2,
    4,
    "f32",
    640,
    phase="backward",
    scope="layers/attention/enter",
    provenance=Provenance(partial_products=3),
)
NORM = Transfer(
    Kind.ALL_REDUCE,
    ("data", "tensor"),
    4,
    4,
    "f32",
    96,
    phase="backward",
    scope="layers/mlp/norm",
    provenance=Provenance(reduced_separately_over=(("data",), ("tensor",))),
)
SPLIT = Provenance(sum_over=("data", "fsdp"), sibling_reduction_axes=frozenset({("fsdp",)}))
SCATTER = Transfer(
    Kind.REDUCE_SCATTER, ("fsdp",), 4, 3, "f32", 3072, phase="backward", scope="layers/mlp/up", provenance=SPLIT
)
PARTS = Transfer(
    Kind.ALL_REDUCE, ("data",), 2, 3, "f32", 768, phase="backward", scope="layers/mlp/up", provenance=SPLIT
)
WHOLE = Transfer(Kind.ALL_REDUCE, ("data", "fsdp"), 8, 3, "f32", 3072, phase="backward", scope="layers/mlp/up")
LOOKED_UP = Transfer(
    Kind.REDUCE_SCATTER,
    ("tensor",),
    2,
    1,
    "bf16",
    640,
    phase="forward",
    scope="embedding",
    provenance=Provenance(replicated_first=True),
)
STACK = Transfer(
    Kind.ALL_REDUCE,
    ("data",),
    2,
    1,
    "f32",
    3 * 7680,
    phase="backward",
    scope="layers/mlp/up",
    provenance=Provenance(stacked_layers=3),
)
LARGEST = Transfer(
    Kind.ALL_REDUCE,
    ("tensor",),
    2,
    1,
    "f32",
    128,
    phase="forward",
    scope="loss/largest",
    provenance=Provenance(product="bf16"),
)
NARROW = replace(LARGEST, dtype="bf16", payload_bytes=64)


def explicit(context: Context) -> Context:
    return replace(context, style="explicit")


def verdict(predicted: list[Transfer], measured: list[Transfer], context: Context) -> Verdict:
    return settle(Ledger(tuple(predicted), mesh=MESH), Ledger(tuple(measured), mesh=MESH), context).verdict


def explained_by(predicted: list[Transfer], measured: list[Transfer], context: Context) -> set[str]:
    """The first behaviour of each explained term; fails where anything else is the case."""
    settlement = settle(Ledger(tuple(predicted), mesh=MESH), Ledger(tuple(measured), mesh=MESH), context)
    assert (settlement.unexplained, {term.status for term in settlement.terms}) == ((), {Status.EXPLAINED})
    return {term.behaviours[0] for term in settlement.terms}


def test_three_products_are_reduced_three_times_by_a_declared_program_on_cpu_alone():
    each = replace(ENTER, executions=12)
    assert explained_by([ENTER], [each], CPU) == {"C3"}
    assert verdict([ENTER], [replace(ENTER, executions=8)], CPU) is Verdict.REFUTED
    assert {verdict([ENTER], [each], context) for context in (GPU, TPU, explicit(CPU))} == {Verdict.REFUTED}


def test_a_norm_of_split_tokens_is_summed_over_data_and_over_tensor_apart_on_cpu_alone():
    apart = [replace(NORM, axes=("data",), group_size=2), replace(NORM, axes=("tensor",), group_size=2)]
    assert explained_by([NORM], apart, CPU) == {"C4"}
    assert verdict([NORM], apart[:1], CPU) is Verdict.REFUTED
    assert {verdict([NORM], apart, context) for context in (GPU, TPU, explicit(CPU))} == {Verdict.REFUTED}


def test_over_one_rank_of_data_the_norm_is_summed_over_tensor_alone_on_cpu():
    mesh = {"data": 1, "fsdp": 4, "tensor": 2}
    once = replace(NORM, axes=("tensor",), group_size=2, provenance=Provenance())
    settled = settle(
        Ledger((replace(NORM, group_size=2),), mesh=mesh), Ledger((once,), mesh=mesh), replace(CPU, mesh=mesh)
    )
    assert settled.verdict is Verdict.EXACT


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_a_sharded_gradient_inside_the_loop_is_summed_over_both_axes_at_once_where_declared(context):
    assert explained_by([SCATTER, PARTS], [WHOLE], context) == {"X3"}
    assert verdict([SCATTER, PARTS], [WHOLE], explicit(context)) is Verdict.REFUTED


def test_a_sum_over_both_axes_stands_for_the_scatter_and_leaves_no_second_one():
    terms = settle(Ledger((SCATTER, PARTS), mesh=MESH), Ledger((WHOLE,), mesh=MESH), GPU).terms
    assert [len(term.measured) for term in terms] == [1, 0]
    assert settle(Ledger((SCATTER, PARTS), mesh=MESH), Ledger((WHOLE, PARTS), mesh=MESH), GPU).unexplained == (PARTS,)


def test_a_sum_over_the_second_axis_is_missing_where_the_first_was_not_taken_as_the_sum_over_both():
    settlement = settle(Ledger((SCATTER, PARTS), mesh=MESH), Ledger((SCATTER,), mesh=MESH), GPU)
    assert [term.status for term in settlement.terms] == [Status.EXACT, Status.MISSING]


@pytest.mark.parametrize("wrong", [{"payload_bytes": 772}, {"executions": 2}, {"axes": ("tensor",)}, {"scope": "head"}])
def test_a_sum_over_both_axes_does_not_stand_for_another_rest_than_its_own(wrong):
    settlement = settle(Ledger((SCATTER, replace(PARTS, **wrong)), mesh=MESH), Ledger((WHOLE,), mesh=MESH), GPU)
    assert [term.status for term in settlement.terms] == [Status.EXPLAINED, Status.MISSING]


TWO_AXES = {"data": 2, "fsdp": 4}
ONCE = [replace(t, executions=1, dtype="bf16") for t in (SCATTER, PARTS)]
AT_ONCE = [replace(WHOLE, executions=1, dtype="bf16")]


def in_f32(transfers: list[Transfer]) -> list[Transfer]:
    return [replace(t, dtype="f32") for t in transfers]


@pytest.mark.parametrize("mesh", [TWO_AXES, TWO_AXES | {"tensor": 1}], ids=["two axes", "a third of one device"])
def test_beside_a_sum_over_fsdp_gpus_scatter_and_then_sum_and_others_sum_at_once(mesh):
    assert verdict(ONCE, ONCE, replace(GPU, mesh=mesh)) is Verdict.EXACT
    assert verdict(ONCE, AT_ONCE, replace(GPU, mesh=mesh)) is Verdict.REFUTED
    assert {*explained_by(in_f32(ONCE), in_f32(AT_ONCE), CPU), *explained_by(ONCE, AT_ONCE, TPU)} == {"X3"}


@pytest.mark.parametrize(
    ("mesh", "provenance"),
    [
        (TWO_AXES, {"sibling_reduction_axes": frozenset({("data", "fsdp")})}),
        (MESH, {}),
    ],
    ids=["no other sum over fsdp or data", "not all devices"],
)
def test_gpus_too_sum_at_once_where(mesh, provenance):
    changed = [replace(t, provenance=replace(t.provenance, **provenance)) for t in ONCE]
    assert explained_by(changed, AT_ONCE, replace(GPU, mesh=mesh)) == {"X3"}


def test_gpus_sum_float32_at_once_outside_loops_where_its_part_goes_to_the_norm_and_to_the_optimizer():
    assert explained_by(in_f32(ONCE), in_f32(AT_ONCE), replace(GPU, mesh=TWO_AXES)) == {"X3"}
    layers = [replace(t, executions=3, provenance=replace(SPLIT, iterations=3)) for t in in_f32(ONCE)]
    assert verdict(layers, layers, replace(GPU, mesh=TWO_AXES)) is Verdict.EXACT


def test_gpus_sum_at_once_where_parts_lie_far_apart_before_jax_0_11():
    apart, mesh = (
        [replace(t, provenance=replace(SPLIT, sum_over=("fsdp", "data"))) for t in ONCE],
        {"fsdp": 4, "data": 2},
    )
    assert explained_by(apart, AT_ONCE, replace(GPU, mesh=mesh, jax=(0, 10))) == {"X3"}
    assert verdict(apart, ONCE, replace(GPU, mesh=mesh, jax=(0, 11))) is Verdict.EXACT


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_a_sum_beside_parts_along_one_device_stays_as_it_is(context):
    assert verdict([PARTS], [PARTS], replace(context, mesh={"data": 2, "fsdp": 1})) is Verdict.EXACT


def test_a_gradient_summed_over_one_axis_knows_no_second():
    alone = replace(SCATTER, provenance=Provenance())
    assert explained_by([alone], [replace(alone, kind=Kind.ALL_REDUCE)], CPU) == {"C2"}
    assert verdict([alone], [WHOLE], CPU) is Verdict.REFUTED


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_a_stack_of_three_is_reduced_in_three_iterations_where_declared(context):
    layers = replace(STACK, executions=3, payload_bytes=7680)
    assert explained_by([STACK], [layers], context) == {"X7"}
    assert verdict([STACK], [replace(layers, executions=2)], context) is Verdict.REFUTED
    assert verdict([STACK], [layers], explicit(context)) is Verdict.REFUTED


def test_no_rule_divides_what_it_cannot_divide_exactly():
    """A stack of 4 bytes more, executions of no whole number of passes."""
    layers = replace(STACK, executions=3, payload_bytes=7680)
    assert verdict([replace(STACK, payload_bytes=STACK.payload_bytes + 4)], [layers], GPU) is Verdict.REFUTED
    twice = replace(STACK, provenance=Provenance(stacked_layers=3, micro_batches=2))
    assert verdict([twice], [replace(layers, executions=6)], GPU) is Verdict.EXPLAINED
    more = replace(twice, payload_bytes=twice.payload_bytes + 4)
    assert verdict([more], [replace(layers, executions=6)], GPU) is Verdict.REFUTED
    stored = replace(FULL, executions=8, provenance=Provenance(iterations=4, repeats=2))
    once_a_pass = replace(FULL, executions=2, payload_bytes=10_240)
    added = replace(STACK, executions=4, provenance=Provenance(accumulated_in_loop=4))
    gather = replace(GATHER, dtype="f32")
    gathered = replace(gather, executions=4, provenance=Provenance(repeats=4))
    for right, found, context in (
        (stored, once_a_pass, TPU),
        (added, replace(STACK, executions=1), GPU),
        (gathered, replace(gather, executions=1), explicit(CPU)),
    ):
        assert verdict([right], [found], context) is Verdict.EXPLAINED
        for wrong in range(right.executions + 1, right.executions + 4):
            assert verdict([replace(right, executions=wrong)], [found], context) is Verdict.REFUTED


def test_with_jax_0_11_what_gpus_move_out_of_the_loop_over_micro_batches_keeps_the_name_of_its_pass():
    added_up = Provenance(micro_batches=4, product="bf16", made_in="backward")
    old, new = (replace(GPU, jax=release) for release in ((0, 10), (0, 11)))
    table = replace(STACK, scope="embedding", payload_bytes=960, phase="update", provenance=added_up)
    norms = replace(table, payload_bytes=9600, provenance=replace(added_up, stacked_layers=5))
    for late in (table, norms):
        narrow = replace(late, dtype="bf16", payload_bytes=late.payload_bytes // 2, op_name="jit(step)/add")
        assert explained_by([late], [replace(narrow, phase="backward")], new) == {"X9"}
        assert verdict([late], [narrow], new) is Verdict.REFUTED
        assert verdict([late], [replace(narrow, phase="backward")], old) is Verdict.REFUTED


def test_with_jax_0_11_a_stack_leaves_all_micro_batches_and_no_other_number_of_them():
    new, once = replace(GPU, jax=(0, 11)), replace(FULL, executions=1, payload_bytes=10_240)
    for executions in (4, 12, 16):
        passes = replace(FULL, executions=executions, provenance=Provenance(iterations=4, repeats=2))
        assert verdict([passes], [once], new) is Verdict.REFUTED


def test_with_jax_0_11_a_stack_leaves_the_micro_batches_of_a_step_and_not_the_steps_of_a_round():
    new = replace(GPU, jax=(0, 11))
    stated = Provenance(iterations=4, repeats=2, steps=3)
    of_round = replace(FULL, executions=3 * 2 * 4, provenance=stated)
    for steps, expected in ((3, Verdict.EXPLAINED), (1, Verdict.REFUTED)):
        assert verdict([of_round], [replace(FULL, executions=steps, payload_bytes=10_240)], new) is expected


def test_a_stack_reduced_at_once_is_exact_and_tells_what_was_expected():
    (term,) = settle(Ledger((STACK,)), Ledger((STACK,)), GPU).terms
    assert (term.status, term.behaviours) == (Status.EXACT, ()) and "X7" in term.explanation


FULL = replace(STACK, executions=4, payload_bytes=2560, provenance=Provenance(iterations=4))
"""Four layers of 2,560 B: 10 KiB together."""


@pytest.mark.parametrize("context", [GPU, TPU, explicit(GPU)], ids=["gpu", "tpu", "explicit"])
def test_ten_kib_that_a_loop_stores_are_summed_once_and_a_byte_more_layer_by_layer(context):
    more = replace(FULL, payload_bytes=2561)
    assert explained_by([FULL], [replace(FULL, executions=1, payload_bytes=10_240)], context) == {"X8"}
    assert verdict([FULL], [replace(FULL, executions=2, payload_bytes=10_240)], context) is Verdict.REFUTED
    assert verdict([more], [more], context) is Verdict.EXACT
    assert verdict([more], [replace(more, executions=1, payload_bytes=10_244)], context) is Verdict.REFUTED


@pytest.mark.parametrize(
    ("context", "provenance", "is_late"),
    [
        (GPU, {"is_reshaped": True}, False),
        (TPU, {"is_reshaped": True, "is_matrix_product": True}, True),
        (replace(TPU, is_typed=True), {"is_matrix_product": True}, False),
        (replace(TPU, is_typed=True), {}, True),
        (explicit(GPU), {"is_reshaped": True, "is_matrix_product": True}, True),
    ],
    ids=["reshaped on gpus", "reshaped on tpus", "resharded on tpus", "a typed norm", "explicit"],
)
def test_a_small_stack_leaves_the_loop_where_it_is_stored_as_it_is_summed(context, provenance, is_late):
    stack = replace(FULL, provenance=Provenance(iterations=4, **provenance))
    late = replace(FULL, executions=1, payload_bytes=10_240)
    assert verdict([stack], [late], context) is (Verdict.EXPLAINED if is_late else Verdict.REFUTED)
    (term,) = settle(Ledger((stack,), mesh=MESH), Ledger((FULL,), mesh=MESH), context).terms
    assert (term.status, term.did_not_happen) == (Status.EXACT, ("X8",) if is_late else ())


def test_of_two_micro_batches_gpus_sum_a_small_stack_in_each_and_with_jax_0_11_of_both_at_once():
    passes, each, once = (
        replace(FULL, executions=8, provenance=Provenance(iterations=4, repeats=2)),
        replace(FULL, executions=2, payload_bytes=10_240),
        replace(FULL, executions=1, payload_bytes=10_240),
    )
    old, new = (replace(GPU, jax=release) for release in ((0, 10), (0, 11)))
    assert explained_by([passes], [each], old) == explained_by([passes], [once], new) == {"X8"}
    assert verdict([passes], [once], old) is verdict([passes], [each], new) is Verdict.REFUTED
    assert explained_by([passes], [each], replace(TPU, jax=(0, 11))) == {"X8"}


def test_cpus_sum_small_values_where_a_loop_makes_them_and_nobody_scatters_them_later():
    late = replace(FULL, executions=1, payload_bytes=10_240)
    assert verdict([FULL], [FULL], CPU) is Verdict.EXACT
    assert verdict([FULL], [late], CPU) is Verdict.REFUTED
    assert (
        verdict([replace(FULL, kind=Kind.REDUCE_SCATTER)], [replace(late, kind=Kind.REDUCE_SCATTER)], explicit(GPU))
        is Verdict.REFUTED
    )


@pytest.mark.parametrize("context", [GPU, TPU, explicit(GPU)], ids=["gpu", "tpu", "explicit"])
def test_a_small_stack_that_is_summed_late_anyway_is_exact(context):
    late = replace(FULL, executions=1, payload_bytes=10_240, provenance=Provenance(stacked_layers=4))
    (term,) = settle(Ledger((late,)), Ledger((late,)), context).terms
    assert (term.status, term.explanation) == (Status.EXACT, None)


def test_a_lookup_is_summed_whole_by_a_declared_program_on_gpu_and_scattered_on_tpu():
    whole = replace(LOOKED_UP, kind=Kind.ALL_REDUCE)
    assert explained_by([LOOKED_UP], [whole], GPU) == {"G9"}
    assert verdict([LOOKED_UP], [whole], explicit(GPU)) is Verdict.REFUTED
    assert verdict([replace(LOOKED_UP, provenance=Provenance())], [whole], GPU) is Verdict.REFUTED
    (scattered,) = settle(Ledger((LOOKED_UP,)), Ledger((LOOKED_UP,)), TPU).terms
    assert (scattered.status, scattered.explanation) == (Status.EXACT, None)


@pytest.mark.parametrize("style", ["declared", "explicit"])
def test_a_maximum_of_widened_numbers_is_found_in_16_bits_on_tpu_alone(style):
    assert explained_by([LARGEST], [NARROW], replace(TPU, style=style)) == {"T5"}
    # A pipeline's terms state no phase, and what stands in a branch has none.
    of_a_stage, narrow = (replace(t, phase=None) for t in (LARGEST, NARROW))
    assert explained_by([of_a_stage], [narrow], replace(TPU, style=style)) == {"T5"}
    assert {verdict([LARGEST], [NARROW], replace(context, style=style)) for context in (CPU, GPU)} == {Verdict.REFUTED}


@pytest.mark.parametrize(
    "provenance", [Provenance(), Provenance(product="f32"), Provenance(product="bf16", micro_batches=4)]
)
def test_what_was_not_widened_or_is_added_up_in_32_bits_is_reduced_in_32_bits(provenance):
    assert verdict([replace(LARGEST, provenance=provenance)], [NARROW], TPU) is Verdict.REFUTED
    assert verdict([replace(LARGEST, provenance=provenance)], [LARGEST], TPU) is Verdict.EXACT


def test_on_cpu_a_scattered_lookup_of_bf16_is_summed_whole_in_f32():
    (term,) = settle(
        Ledger((LOOKED_UP,)),
        Ledger((replace(LOOKED_UP, kind=Kind.ALL_REDUCE, dtype="f32", payload_bytes=1280, is_widened=True),)),
        CPU,
    ).terms
    assert (term.status, term.behaviours) == (Status.EXPLAINED, ("C2", "C1"))


def test_an_error_of_a_compiler_is_named_after_the_note_that_knows_it():
    error = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.157 = bf16[18,8]{1,0} dot(%a, %b), ..."
    assert named_refusal(error, "gpu").startswith("G12: ") and named_refusal(error, "gpu").endswith(error)
    assert named_refusal(error, "tpu") == error
    assert named_refusal("INTERNAL: out of memory", "gpu") == "INTERNAL: out of memory"


TABLE = Transfer(
    Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 960, phase="backward", scope="embedding", provenance=Provenance(uses=2)
)


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_a_table_used_at_both_ends_is_summed_twice_where_declared(context):
    twice = [replace(TABLE, executions=2)]
    assert explained_by([TABLE], twice, context) == {"X4"}
    assert verdict([TABLE], [replace(TABLE, executions=3)], context) is Verdict.REFUTED
    assert verdict([TABLE], twice, explicit(context)) is Verdict.REFUTED


@pytest.mark.parametrize("context", [GPU, TPU], ids=lambda c: c.platform)
def test_with_shardings_in_types_both_gradients_of_a_table_are_added_before_they_are_summed_but_on_cpus(context):
    typed, twice = replace(context, is_typed=True), [replace(TABLE, executions=2)]
    assert explained_by([TABLE], twice, replace(CPU, is_typed=True)) == {"X4"}
    assert verdict([TABLE], [TABLE], typed) is Verdict.EXACT
    assert verdict([TABLE], twice, typed) is Verdict.REFUTED
    (term,) = settle(Ledger((TABLE,)), Ledger((TABLE,)), typed).terms
    assert term.did_not_happen == ()


def test_with_shardings_in_types_tpus_sum_a_table_of_two_uses_in_each_micro_batch():
    """Of one use once, after the last."""
    late = replace(
        TABLE, phase="update", provenance=Provenance(uses=2, micro_batches=4, product="bf16", made_in="backward")
    )
    each = replace(TABLE, executions=4, dtype="bf16", payload_bytes=480)
    typed = replace(TPU, is_typed=True)
    assert explained_by([late], [each], typed) == {"X9"}
    once = replace(late, provenance=replace(late.provenance, uses=1))
    assert verdict([once], [once], typed) is Verdict.EXACT
    assert verdict([once], [each], typed) is Verdict.REFUTED


def test_the_second_use_of_a_sharded_table_is_summed_whole_over_all_axes():
    scatter = replace(SCATTER, scope="embedding", executions=1, dtype="bf16", provenance=replace(SPLIT, uses=2))
    whole = replace(WHOLE, scope="embedding", executions=1, dtype="bf16")
    gpu = replace(GPU, mesh=TWO_AXES)
    assert verdict([scatter], [scatter, whole], gpu) is Verdict.EXPLAINED
    assert verdict([scatter], [scatter, replace(whole, axes=("data",), group_size=2)], gpu) is Verdict.REFUTED


@pytest.mark.parametrize(
    "lost",
    [{"scope": "head", "op_name": "jit(step)/head/dot_general"}, {"scope": "", "phase": None}],
    ids=["another name", "no name"],
)
def test_the_second_gradient_of_a_table_is_found_under(lost):
    twice = Provenance(uses=2, named_after=("head",))
    scatter = replace(SCATTER, scope="embedding", executions=1, provenance=twice)
    for table in (scatter, replace(TABLE, provenance=twice)):
        second = replace(table, kind=Kind.ALL_REDUCE, **lost)
        assert explained_by([table], [table, second], replace(GPU, mesh={"data": 2, "fsdp": 4})) == {"X4"}


def test_the_one_sum_of_a_hybrid_table_with_shardings_in_types_is_found_under_the_name_of_its_other_use():
    twice = replace(SPLIT, uses=2, named_after=("head",))
    scatter, parts = (replace(t, scope="embedding", executions=1, provenance=twice) for t in (SCATTER, PARTS))
    whole, typed = replace(WHOLE, scope="head", executions=1), replace(TPU, mesh=TWO_AXES, is_typed=True)
    assert verdict([scatter, parts], [whole], typed) is Verdict.EXPLAINED
    assert verdict([scatter, parts], [replace(whole, scope="norm")], typed) is Verdict.REFUTED


def test_one_sum_is_not_both_gradients_of_a_scattered_table():
    scatter = replace(SCATTER, scope="embedding", executions=1, provenance=Provenance(uses=2))
    tpu, sums = replace(TPU, mesh={"fsdp": 4}), replace(scatter, kind=Kind.ALL_REDUCE, provenance=Provenance())
    assert [verdict([scatter], [sums] * count, tpu) for count in (1, 2)] == [Verdict.REFUTED, Verdict.ATTRIBUTED]
    assert verdict([scatter], [sums], explicit(tpu)) is Verdict.ATTRIBUTED


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_the_sum_of_a_product_that_is_kept_is_not_repeated_where_declared(context):
    forward = Transfer(Kind.ALL_REDUCE, ("tensor",), 2, 4, "f32", 640, phase="forward", scope="layers/attention/leave")
    again = replace(forward, phase="backward", provenance=Provenance(saved_by_remat=True))
    assert verdict([forward, again], [forward], context) is Verdict.EXPLAINED
    assert verdict([forward, replace(again, provenance=Provenance())], [forward], context) is Verdict.REFUTED
    assert verdict([forward, replace(again, payload_bytes=644)], [forward], context) is Verdict.REFUTED
    assert verdict([again], [], context) is Verdict.REFUTED
    assert verdict([forward, again], [forward], explicit(context)) is Verdict.REFUTED


def test_small_norms_of_two_micro_batches_leave_the_loop_twice_in_the_dtype_of_the_products():
    gpu = replace(GPU, jax=(0, 10))
    norm = Transfer(
        Kind.ALL_REDUCE,
        ("data",),
        2,
        1,
        "f32",
        5 * 32,
        phase="backward",
        scope="layers/mlp/norm",
        provenance=Provenance(stacked_layers=5, micro_batches=2, product="bf16"),
    )
    stacks = replace(norm, dtype="bf16", payload_bytes=5 * 16, executions=2)
    assert verdict([norm], [stacks], gpu) is Verdict.EXPLAINED
    assert verdict([norm], [replace(stacks, executions=3)], gpu) is Verdict.REFUTED
    assert verdict([norm], [replace(stacks, executions=1)], gpu) is Verdict.REFUTED


MASKED = Transfer(Kind.ALL_REDUCE, ("fsdp",), 4, 3, "bf16", 3072, phase="forward", is_masked_gather=True)
GATHER = replace(MASKED, kind=Kind.ALL_GATHER, scope="layers/mlp/up", is_masked_gather=False)


def test_a_gather_that_a_tpu_does_by_a_masked_sum_is_attributed_and_not_where_another_compiler_does_nor_for_fewer():
    assert verdict([GATHER], [MASKED], TPU) is Verdict.ATTRIBUTED
    assert {verdict([GATHER], [MASKED], context) for context in (CPU, GPU)} == {Verdict.REFUTED}
    assert verdict([GATHER], [replace(MASKED, executions=2)], TPU) is Verdict.REFUTED


@pytest.mark.parametrize("style", ["declared", "explicit"])
def test_a_gather_over_all_of_64_tpus_is_predicted_to_be_a_masked_sum_and_not_over_all_of_48_nor_over_half(style):
    def found(mesh: dict[str, int]) -> Status:
        over = {"group_size": mesh["fsdp"]}
        (term,) = settle(
            Ledger((replace(GATHER, **over),)), Ledger((replace(MASKED, **over),)), Context("tpu", style, mesh)
        ).terms
        return term.status

    assert [found(mesh) for mesh in ({"fsdp": 64}, {"fsdp": 48}, {"data": 2, "fsdp": 64})] == [
        Status.EXPLAINED,
        Status.ATTRIBUTED,
        Status.ATTRIBUTED,
    ]


@pytest.mark.parametrize(
    "moved", [GATHER, replace(GATHER, kind=Kind.COLLECTIVE_PERMUTE, shift=1)], ids=["gather", "permute"]
)
def test_what_moves_in_float32_and_in_part_feeds_products_alone_is_rounded_in_that_part_on_tpu_alone(moved):
    wide = replace(moved, dtype="f32", payload_bytes=2 * moved.payload_bytes)
    some = [replace(wide, executions=2), replace(moved, executions=1)]
    assert [verdict([wide], found, TPU) for found in ([moved], some, some[:1])] == [
        Verdict.ATTRIBUTED,
        Verdict.ATTRIBUTED,
        Verdict.REFUTED,
    ]
    assert {verdict([wide], [moved], context) for context in (CPU, GPU)} == {Verdict.REFUTED}


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.REDUCE_SCATTER])
def test_a_scatter_of_each_of_three_micro_batches_that_is_one_in_f32_after_them_is_attributed_on_tpu_alone(kind):
    scatter = Transfer(
        Kind.REDUCE_SCATTER,
        ("fsdp",),
        4,
        3,
        "bf16",
        640,
        phase="backward",
        scope="head",
        provenance=Provenance(repeats=3, product="bf16"),
    )
    whole = Transfer(kind, ("fsdp",), 4, 1, "f32", 1280)
    assert verdict([scatter], [whole], explicit(TPU)) is Verdict.ATTRIBUTED
    assert {verdict([scatter], [whole], explicit(context)) for context in (CPU, GPU)} == {Verdict.REFUTED}
    assert {
        verdict([scatter], [replace(whole, **wrong)], explicit(TPU))
        for wrong in ({"payload_bytes": 640}, {"executions": 3}, {"dtype": "bf16"})
    } == {Verdict.REFUTED}
    assert verdict([replace(scatter, provenance=Provenance(product="bf16"))], [whole], explicit(TPU)) is Verdict.REFUTED


def test_a_sum_over_two_micro_batches_that_is_reduced_in_16_bits_is_attributed_on_tpu_alone():
    late = Transfer(
        Kind.ALL_REDUCE,
        ("data",),
        2,
        1,
        "f32",
        1280,
        phase="backward",
        scope="head",
        provenance=Provenance(micro_batches=2, product="bf16"),
    )
    narrow = replace(late, dtype="bf16", payload_bytes=640, scope="")
    assert verdict([late], [narrow], TPU) is Verdict.ATTRIBUTED
    assert verdict([late], [narrow], CPU) is Verdict.REFUTED
    of_each = settle(Ledger((late,)), Ledger((replace(narrow, executions=2),)), TPU)
    assert (len(of_each.missing), of_each.unexplained[0].executions) == (1, 2)
    assert verdict([replace(late, provenance=Provenance(product="bf16"))], [narrow], TPU) is Verdict.REFUTED


@pytest.mark.parametrize("context", [CPU, GPU, TPU], ids=lambda c: c.platform)
def test_the_sum_of_a_gradient_that_no_layer_makes_stays_after_two_micro_batches_on_tpu_alone(context):
    head = Transfer(
        Kind.ALL_REDUCE,
        ("data",),
        2,
        1,
        "f32",
        1280,
        phase="update",
        scope="head",
        provenance=Provenance(micro_batches=2, product="f32", made_in="backward"),
    )
    (term,) = settle(Ledger((head,)), Ledger((head,)), context).terms
    assert (term.status, term.explanation is None) == (Status.EXACT, context.platform != "cpu")
    layers = replace(head, payload_bytes=12800, provenance=replace(head.provenance, stacked_layers=2))
    each = replace(layers, payload_bytes=6400, executions=4, phase="backward")
    assert explained_by([layers], [each], context) == {"X9"}
    assert verdict([layers], [replace(each, phase="update")], context) is Verdict.REFUTED


def test_the_scatter_of_a_gradient_that_no_layer_makes_is_done_in_each_of_two_micro_batches_on_tpu():
    head = Transfer(
        Kind.REDUCE_SCATTER,
        ("data",),
        2,
        1,
        "f32",
        1280,
        phase="backward",
        scope="head",
        provenance=Provenance(micro_batches=2),
    )
    assert explained_by([head], [replace(head, executions=2)], TPU) == {"X9"}


def test_of_a_table_used_at_both_ends_one_gradient_may_be_scattered_by_a_sum():
    table = Transfer(
        Kind.REDUCE_SCATTER,
        ("fsdp",),
        4,
        2,
        "bf16",
        960,
        phase="backward",
        scope="embedding",
        provenance=Provenance(uses=2, repeats=2),
    )
    sum_of_one = replace(table, kind=Kind.ALL_REDUCE, provenance=Provenance())
    tpu = replace(TPU, mesh={"fsdp": 4})
    assert [verdict([table], [sum_of_one] * sums, tpu) for sums in (2, 3)] == [Verdict.ATTRIBUTED, Verdict.REFUTED]


def test_one_of_four_sums_of_micro_batches_is_not_the_sum_after_them():
    scatter = Transfer(
        Kind.REDUCE_SCATTER,
        ("fsdp",),
        4,
        4,
        "f32",
        640,
        phase="backward",
        scope="head",
        provenance=Provenance(repeats=4),
    )
    (term,) = settle(Ledger((scatter,)), Ledger((replace(scatter, kind=Kind.ALL_REDUCE),)), explicit(TPU)).terms
    assert [t.executions for t in term.measured] == [4] and term.behaviours == ("T15",)


@pytest.mark.parametrize(("dtype", "payload"), [("f32", 1280), ("bf16", 640)])
def test_a_scatter_of_each_pass_is_one_float32_sum_after_them_on_tpus_where_declared(dtype, payload):
    passes = Transfer(
        Kind.REDUCE_SCATTER,
        ("data",),
        2,
        2,
        dtype,
        payload,
        phase="backward",
        scope="embedding",
        provenance=Provenance(replicated_first=True, repeats=2),
    )
    once = replace(passes, kind=Kind.ALL_REDUCE, executions=1, dtype="f32", payload_bytes=1280, phase="update")
    assert explained_by([passes], [once], TPU) == {"T9"}
    assert {verdict([passes], [once], context) for context in (CPU, GPU)} == {Verdict.REFUTED}


def test_the_rest_of_a_sum_has_as_many_elements_whatever_its_dtype():
    """768 numbers of 8 bits, scattered over 4, and 192 of 32."""
    narrow = [replace(t, dtype="f8e8m0fnu", payload_bytes=768) for t in (SCATTER, WHOLE)]
    assert explained_by([narrow[0], PARTS], [narrow[1]], CPU) == {"X3"}
    assert verdict([narrow[0], replace(PARTS, payload_bytes=1536)], [narrow[1]], CPU) is Verdict.REFUTED


@pytest.mark.parametrize(("dtype", "summed"), [("u8", "u32"), ("s8", "u32"), ("s32", "s32"), ("bf16", "bf16")])
def test_bytes_gathered_by_a_masked_sum_are_summed_four_in_a_word(dtype, summed):
    gather, found = replace(GATHER, dtype=dtype, group_size=64), replace(MASKED, dtype=summed, group_size=64)
    context = Context("tpu", "explicit", {"fsdp": 64})
    assert verdict([gather], [found], context) is Verdict.EXPLAINED
    assert verdict([gather], [replace(found, dtype="u16")], context) is Verdict.REFUTED
