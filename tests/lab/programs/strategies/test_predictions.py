"""Predicted ledgers against numbers worked out by hand: two layers, 16 sequences of 8 tokens, 24 wide, 4 x 2 heads of
6, mlp 40, 72 words, bf16."""

from dataclasses import replace
from math import prod

import pytest

from lab.core.ledger import Kind, Ledger
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_SEQUENCE, FSDP_TENSOR
from lab.programs.strategies.hybrid import HYBRID
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3

SHAPE = DecoderShape(layers=2, batch=16, length=8, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=72)
DATA_8, FSDP_8 = Axes.of({"data": 8}), Axes.of({"fsdp": 8})
DATA_TENSOR, FSDP_TENSOR_AXES, REPLICAS = (
    Axes.of(dict(zip(names, (2, 4), strict=True)))
    for names in (("data", "tensor"), ("fsdp", "tensor"), ("data", "fsdp"))
)

# Bytes of one layer's weight in bf16.
LAYERS = {
    "layers/attention/query": 2304,
    "layers/attention/key": 1152,
    "layers/attention/value": 1152,
    "layers/attention/out": 2304,
    "layers/mlp/gate": 1920,
    "layers/mlp/up": 1920,
    "layers/mlp/down": 1920,
}
ENDS = {"embedding": 3456, "head": 3456}
NORMS = {"layers/attention/norm": 48, "layers/mlp/norm": 48}
NORM = {"norm": 48}
# Bytes of the residual stream of 8 sequences: 8 x 8 x 24 x 2.
X = 3072
SUM, GATHER, SCATTER = Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
Row = tuple[str, str, str, str, int, int, str]


def times(factor: float, payloads: dict[str, int]) -> dict[str, int]:
    return {scope: int(factor * payload) for scope, payload in payloads.items()}


def each(kind: Kind, axes: str, phase: str, executions: int, payloads: dict[str, int], dtype: str = "bf16") -> set[Row]:
    return {(str(kind), axes, scope, phase, executions, payload, dtype) for scope, payload in payloads.items()}


def scalars(loss: str, clip: str = "", loss_in: str = FORWARD) -> set[Row]:
    """The loss summed over the axes of the batch, and the squares of the gradients over those that split weights."""
    return each(SUM, loss, loss_in, 1, {"loss": 4}, "f32") | (
        each(SUM, clip, UPDATE, 1, {"clip": 4}, "f32") if clip else set()
    )


def vocabulary(executions: int = 1) -> set[Row]:
    """Three numbers of 4 bytes for each of 64 tokens."""
    return each(
        SUM, "tensor", FORWARD, executions, {"loss/largest": 256, "loss/exponentials": 256, "loss/target": 256}, "f32"
    )


def rows(ledger: Ledger) -> set[Row]:
    found = [
        (str(t.kind), "+".join(t.axes), t.scope, t.phase, t.executions, t.payload_bytes, t.dtype)
        for t in ledger.transfers
    ]
    assert len(found) == len(set(found))
    return set(found)


def executions(strategy: Strategy, shape: DecoderShape, axes: Axes, kind: Kind, phase: str, scope: str) -> list[int]:
    return [
        t.executions
        for t in strategy.predict(shape, axes).transfers
        if (t.kind, t.phase, t.scope) == (kind, phase, scope)
    ]


def test_data_parallelism_over_8_sums_the_gradient_of_every_weight_and_the_loss():
    sums = each(SUM, "data", BACKWARD, 2, LAYERS | NORMS) | each(SUM, "data", BACKWARD, 1, ENDS | NORM)
    assert rows(DATA_PARALLEL.predict(SHAPE, DATA_8)) == sums | scalars("data")


def test_a_tied_decoder_has_no_head_to_sum():
    tied = DATA_PARALLEL.predict(replace(SHAPE, tied=True), DATA_8)
    assert rows(DATA_PARALLEL.predict(SHAPE, DATA_8)) - rows(tied) == each(SUM, "data", BACKWARD, 1, {"head": 3456})


def test_zero1_scatters_each_stack_once_and_gathers_the_new_weights():
    stacks = times(2, LAYERS) | ENDS
    moved = each(SCATTER, "data", UPDATE, 1, stacks) | each(
        GATHER, "data", UPDATE, 1, {f"renew/{scope}": size for scope, size in stacks.items()}
    )
    assert rows(ZERO1.predict(SHAPE, DATA_8)) == moved | each(SUM, "data", UPDATE, 1, times(2, NORMS) | NORM) | scalars(
        "data", "data", UPDATE
    )


def test_zero2_scatters_each_layer_where_zero1_scatters_a_stack():
    late, early = rows(ZERO1.predict(SHAPE, DATA_8)), rows(ZERO2.predict(SHAPE, DATA_8))
    assert (early - late, late - early) == (
        each(SCATTER, "data", BACKWARD, 2, LAYERS) | each(SCATTER, "data", BACKWARD, 1, ENDS),
        each(SCATTER, "data", UPDATE, 1, times(2, LAYERS) | ENDS),
    )


def test_zero3_gathers_a_layer_for_each_pass_and_the_ends_once():
    moved = (
        each(GATHER, "fsdp", FORWARD, 2, LAYERS)
        | each(GATHER, "fsdp", BACKWARD, 2, LAYERS)
        | each(SCATTER, "fsdp", BACKWARD, 2, LAYERS)
    )
    ends = each(GATHER, "fsdp", FORWARD, 1, ENDS) | each(SCATTER, "fsdp", BACKWARD, 1, ENDS)
    norms = each(SUM, "fsdp", BACKWARD, 2, NORMS) | each(SUM, "fsdp", BACKWARD, 1, NORM)
    assert rows(ZERO3.predict(SHAPE, FSDP_8)) == moved | ends | norms | scalars("fsdp", "fsdp")


def test_hybrid_sharding_sums_a_quarter_of_each_gradient_between_2_groups_of_4():
    within = {row for row in rows(ZERO3.predict(SHAPE, FSDP_8)) if row[0] != SUM}
    across = each(SUM, "data", BACKWARD, 2, times(1 / 4, LAYERS)) | each(SUM, "data", BACKWARD, 1, times(1 / 4, ENDS))
    norms = each(SUM, "data+fsdp", BACKWARD, 2, NORMS) | each(SUM, "data+fsdp", BACKWARD, 1, NORM)
    assert rows(HYBRID.predict(SHAPE, REPLICAS)) == within | across | norms | scalars("data+fsdp", "fsdp")


def summed_activations() -> set[Row]:
    leave, enter = (
        {"layers/attention/leave": X, "layers/mlp/leave": X},
        {"layers/attention/enter": X, "layers/mlp/enter": X},
    )
    ends = each(SUM, "tensor", FORWARD, 1, {"embedding": X}) | each(SUM, "tensor", BACKWARD, 1, {"head": X})
    again = each(SUM, "tensor", BACKWARD, 2, {"layers/attention/leave": X})
    return each(SUM, "tensor", FORWARD, 2, leave) | each(SUM, "tensor", BACKWARD, 2, enter) | ends | again


def test_tensor_parallelism_over_2_by_4_sums_3072_bytes_of_activations_and_quarters_of_gradients():
    gradients = each(SUM, "data", BACKWARD, 2, times(1 / 4, LAYERS) | NORMS) | each(
        SUM, "data", BACKWARD, 1, times(1 / 4, ENDS) | NORM
    )
    expected = summed_activations() | vocabulary() | gradients | scalars("data", "tensor")
    assert rows((DATA_PARALLEL | TENSOR_PARALLEL).predict(SHAPE, DATA_TENSOR)) == expected


def moved_activations() -> set[Row]:
    enter, leave = (
        {"layers/attention/enter": X, "layers/mlp/enter": X},
        {"layers/attention/leave": X, "layers/mlp/leave": X},
    )
    forward = each(GATHER, "tensor", FORWARD, 2, enter) | each(SCATTER, "tensor", FORWARD, 2, leave)
    backward = each(GATHER, "tensor", BACKWARD, 2, enter | leave) | each(
        SCATTER, "tensor", BACKWARD, 2, enter | {"layers/attention/leave": X}
    )
    first = each(SCATTER, "tensor", FORWARD, 1, {"embedding": X}) | each(
        GATHER, "tensor", BACKWARD, 1, {"embedding": X}
    )
    last = each(GATHER, "tensor", FORWARD, 1, {"head": X}) | each(SCATTER, "tensor", BACKWARD, 1, {"head": X})
    return forward | backward | first | last


def test_sequence_parallelism_gathers_and_scatters_the_same_bytes_and_sums_norms_over_both_axes():
    gradients = each(SUM, "data", BACKWARD, 2, times(1 / 4, LAYERS)) | each(
        SUM, "data", BACKWARD, 1, times(1 / 4, ENDS)
    )
    norms = each(SUM, "data+tensor", BACKWARD, 2, NORMS) | each(SUM, "data+tensor", BACKWARD, 1, NORM)
    expected = moved_activations() | vocabulary() | gradients | norms | scalars("data", "tensor")
    assert rows((DATA_PARALLEL | SEQUENCE_PARALLEL).predict(SHAPE, DATA_TENSOR)) == expected


@pytest.mark.parametrize(
    ("strategy", "activations", "over"),
    [(FSDP_TENSOR, summed_activations, "fsdp"), (FSDP_SEQUENCE, moved_activations, "fsdp+tensor")],
    ids=["tensor", "sequence"],
)
def test_fsdp_beside_tensor_moves_quarters_of_weights_and_the_activations_of_tensor_alone(strategy, activations, over):
    layers, ends = times(1 / 4, LAYERS), times(1 / 4, ENDS)
    weights = (
        each(GATHER, "fsdp", FORWARD, 2, layers)
        | each(GATHER, "fsdp", BACKWARD, 2, layers)
        | each(SCATTER, "fsdp", BACKWARD, 2, layers)
    )
    weights |= each(GATHER, "fsdp", FORWARD, 1, ends) | each(SCATTER, "fsdp", BACKWARD, 1, ends)
    norms = each(SUM, over, BACKWARD, 2, NORMS) | each(SUM, over, BACKWARD, 1, NORM)
    expected = activations() | vocabulary() | weights | norms | scalars("fsdp", "fsdp+tensor")
    assert rows(strategy.predict(SHAPE, FSDP_TENSOR_AXES)) == expected


@pytest.mark.parametrize(
    ("remat", "gathers"), [("none", []), ("selective", []), ("dots", [2]), ("names", [2]), ("full", [2])]
)
def test_zero3_gathers_again_where_products_or_their_inputs_are_made_again(remat, gathers):
    shape = replace(SHAPE, remat=remat)
    assert all(executions(ZERO3, shape, FSDP_8, GATHER, BACKWARD, scope) == gathers for scope in LAYERS)
    assert executions(ZERO3, shape, FSDP_8, GATHER, FORWARD, "layers/mlp/up") == [2]


@pytest.mark.parametrize(
    ("remat", "sums"), [("none", []), ("selective", []), ("dots", [2]), ("names", []), ("full", [2])]
)
def test_tensor_parallelism_sums_the_attention_again_unless_what_it_adds_is_kept(remat, sums):
    shape = replace(SHAPE, remat=remat)
    assert (
        executions(DATA_PARALLEL | TENSOR_PARALLEL, shape, DATA_TENSOR, SUM, BACKWARD, "layers/attention/leave") == sums
    )
    assert executions(DATA_PARALLEL | TENSOR_PARALLEL, shape, DATA_TENSOR, SUM, BACKWARD, "layers/mlp/leave") == []


@pytest.mark.parametrize(
    ("remat", "gathers", "scatters"),
    [("none", [], []), ("selective", [], []), ("dots", [2], [2]), ("names", [2], []), ("full", [2], [2])],
)
def test_sequence_parallelism_gathers_both_inputs_again_and_scatters_one_output(remat, gathers, scatters):
    strategy, shape = DATA_PARALLEL | SEQUENCE_PARALLEL, replace(SHAPE, remat=remat)
    for block in ("attention", "mlp"):
        assert executions(strategy, shape, DATA_TENSOR, GATHER, BACKWARD, f"layers/{block}/enter") == gathers
    assert executions(strategy, shape, DATA_TENSOR, SCATTER, BACKWARD, "layers/attention/leave") == scatters
    assert executions(strategy, shape, DATA_TENSOR, SCATTER, BACKWARD, "layers/mlp/leave") == []


FOUR = replace(SHAPE, batch=64, accumulation=4)
# Gradients that are added up before they are summed are float32: twice the bytes.
LATE = times(4, LAYERS | NORMS) | times(2, ENDS | NORM)


def test_data_parallelism_sums_four_micro_batches_once_in_f32():
    sums = each(SUM, "data", UPDATE, 1, LATE, "f32")
    assert rows(DATA_PARALLEL.predict(FOUR, DATA_8)) == sums | scalars("data", loss_in=UPDATE)


def test_of_four_micro_batches_zero1_scatters_once_in_f32_and_zero2_eight_times_in_bf16():
    late, early = rows(ZERO1.predict(FOUR, DATA_8)), rows(ZERO2.predict(FOUR, DATA_8))
    matrices = {scope: size for scope, size in LATE.items() if not scope.endswith("norm")}
    assert late - early == each(SCATTER, "data", UPDATE, 1, matrices, "f32")
    assert early - late == each(SCATTER, "data", BACKWARD, 8, LAYERS) | each(SCATTER, "data", BACKWARD, 4, ENDS)
    assert each(SUM, "data", UPDATE, 1, times(4, NORMS) | times(2, NORM), "f32") <= late & early


def test_zero3_moves_weights_for_each_of_four_micro_batches_and_sums_norms_once():
    found = rows(ZERO3.predict(FOUR, FSDP_8))
    assert {row for row in found if row[0] == GATHER and row[3] == BACKWARD} == each(
        GATHER, "fsdp", BACKWARD, 8, LAYERS
    )
    assert {row for row in found if row[0] == SCATTER} == each(SCATTER, "fsdp", BACKWARD, 8, LAYERS) | each(
        SCATTER, "fsdp", BACKWARD, 4, ENDS
    )
    assert {row for row in found if row[2].endswith("norm")} == each(
        SUM, "fsdp", UPDATE, 1, times(4, NORMS) | times(2, NORM), "f32"
    )


def test_tensor_parallelism_sums_activations_for_each_of_four_micro_batches():
    found = rows((DATA_PARALLEL | TENSOR_PARALLEL).predict(FOUR, DATA_TENSOR))
    four_times = {(*row[:4], 4 * row[4], *row[5:]) for row in summed_activations()}
    assert {row for row in found if row[1] == "tensor"} == four_times | vocabulary(4) | each(
        SUM, "tensor", UPDATE, 1, {"clip": 4}, "f32"
    )


def test_f32_doubles_all_but_the_4_byte_scalars_and_the_softmax():
    halves, wholes = (
        FSDP_SEQUENCE.predict(replace(SHAPE, dtype=dtype), FSDP_TENSOR_AXES).totals().payload_bytes
        for dtype in ("bf16", "f32")
    )
    assert wholes - 3 * 256 - 2 * 4 == 2 * (halves - 3 * 256 - 2 * 4)


EVERY = {
    "data": (DATA_PARALLEL, DATA_8),
    "zero1": (ZERO1, DATA_8),
    "zero2": (ZERO2, DATA_8),
    "zero3": (ZERO3, FSDP_8),
    "hybrid": (HYBRID, REPLICAS),
    "data x tensor": (DATA_PARALLEL | TENSOR_PARALLEL, DATA_TENSOR),
    "data x sequence": (DATA_PARALLEL | SEQUENCE_PARALLEL, DATA_TENSOR),
    "fsdp x tensor": (FSDP_TENSOR, FSDP_TENSOR_AXES),
    "fsdp x sequence": (FSDP_SEQUENCE, FSDP_TENSOR_AXES),
}
every_layout = pytest.mark.parametrize(("strategy", "axes"), EVERY.values(), ids=EVERY)


@every_layout
def test_groups_have_the_product_of_their_axes_and_fill_8_devices(strategy, axes):
    for transfer in strategy.predict(SHAPE, axes).transfers:
        assert transfer.group_size == prod(axes[axis] for axis in transfer.axes)
        assert transfer.group_size * transfer.groups == 8


@every_layout
@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_strategy_with_itself_asks_for_nothing_twice(strategy, axes, accumulation):
    shape = replace(SHAPE, batch=64, accumulation=accumulation)
    assert (strategy | strategy).predict(shape, axes).transfers == strategy.predict(shape, axes).transfers


@pytest.mark.parametrize(
    ("first", "second", "axes"),
    [
        (DATA_PARALLEL, ZERO3, REPLICAS),
        (DATA_PARALLEL, TENSOR_PARALLEL, DATA_TENSOR),
        (DATA_PARALLEL, SEQUENCE_PARALLEL, DATA_TENSOR),
        (ZERO1, TENSOR_PARALLEL, DATA_TENSOR),
        (ZERO2, SEQUENCE_PARALLEL, DATA_TENSOR),
        (ZERO3, TENSOR_PARALLEL, FSDP_TENSOR_AXES),
        (ZERO3, SEQUENCE_PARALLEL, FSDP_TENSOR_AXES),
        (HYBRID, SEQUENCE_PARALLEL, Axes.of({"data": 2, "fsdp": 2, "tensor": 2})),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_composition_does_not_depend_on_the_order(first, second, axes, accumulation):
    shape = replace(SHAPE, batch=64, accumulation=accumulation)
    assert rows((first | second).predict(shape, axes)) == rows((second | first).predict(shape, axes))


def test_composition_does_not_depend_on_the_brackets():
    axes = Axes.of({"data": 2, "fsdp": 2, "tensor": 2})
    left, right = (DATA_PARALLEL | ZERO3) | SEQUENCE_PARALLEL, DATA_PARALLEL | (ZERO3 | SEQUENCE_PARALLEL)
    assert rows(left.predict(SHAPE, axes)) == rows(right.predict(SHAPE, axes))


@pytest.mark.parametrize(
    ("strategy", "axes", "sizes", "message"),
    [
        (
            DATA_PARALLEL,
            DATA_8,
            {"batch": 17},
            "dim 'batch' of size 17 is not divisible by data=8; make it a multiple of 8",
        ),
        (
            ZERO2,
            DATA_8,
            {"accumulation": 4},
            "dim 'batch' of size 4 is not divisible by data=8; make it a multiple of 8",
        ),
        (
            HYBRID,
            REPLICAS,
            {"batch": 12},
            "dim 'batch' of size 12 is not divisible by data=2*fsdp=4; make it a multiple of 8",
        ),
        (ZERO3, FSDP_8, {"embed": 25}, "dim 'embed' of size 25 is not divisible by fsdp=8; make it a multiple of 8"),
        (ZERO1, DATA_8, {"embed": 28}, "dim 'embed' of size 28 is not divisible by data=8; make it a multiple of 8"),
        (
            FSDP_SEQUENCE,
            FSDP_TENSOR_AXES,
            {"length": 6},
            "dim 'length' of size 6 is not divisible by tensor=4; make it a multiple of 4",
        ),
        (ZERO3, DATA_8, {}, "no axis 'fsdp' in the mesh; known are data"),
        (FSDP_TENSOR, FSDP_8, {}, "no axis 'tensor' in the mesh; known are fsdp"),
    ],
)
def test_what_does_not_split_is_refused_in_one_line(strategy, axes, sizes, message):
    for refuse in (strategy.check, strategy.predict):
        with pytest.raises(UsageError) as refused:
            refuse(replace(SHAPE, **sizes), axes)
        assert str(refused.value) == message


@pytest.mark.parametrize("layout", [name for name, (_, axes) in EVERY.items() if "tensor" in axes.names])
@pytest.mark.parametrize(("dim", "size"), [("kv_heads", 6), ("kv_heads", 2), ("mlp", 42), ("vocab", 73)])
def test_heads_hidden_dims_or_words_that_4_tensor_ranks_cannot_share_are_refused_by_every_layout(layout, dim, size):
    strategy, axes = EVERY[layout]
    for refuse in (strategy.check, strategy.predict):
        with pytest.raises(
            UsageError, match=f"dim '{dim}' of size {size} is not divisible by tensor=4; make it a multiple of 4"
        ):
            refuse(replace(SHAPE, **{dim: size}), axes)


def test_tensor_parallelism_alone_splits_no_sequence_of_6():
    FSDP_TENSOR.predict(replace(SHAPE, length=6), FSDP_TENSOR_AXES)


@pytest.mark.parametrize(
    ("strategy", "axes", "size"),
    [
        # 16,248 parameters, of which 120 in norms; AdamW's count; 16 tokens a device, twice.
        (DATA_PARALLEL, DATA_8, 12 * 16_248 + 4 + 2 * 4 * 16),
        (ZERO1, DATA_8, 12 * (16_128 // 8 + 120) + 2 * 16_248 + 4 + 2 * 4 * 16),
        (ZERO3, FSDP_8, 12 * (16_128 // 8 + 120) + 4 + 2 * 4 * 16),
        (FSDP_TENSOR, FSDP_TENSOR_AXES, 12 * (16_128 // 8 + 120) + 4 + 2 * 4 * 64),
    ],
    ids=["data", "zero1", "zero3", "fsdp x tensor"],
)
def test_a_device_holds_12_bytes_for_each_parameter_of_its_part(strategy, axes, size):
    assert SHAPE.parameters == 16_248
    assert static_bytes(strategy, SHAPE, axes) == size


def test_a_second_prediction_needs_whole_sequences():
    message = (
        "mtp=1 with sequences sharded over context: the token after the next may be another rank's; set mtp=0, or "
    )
    with pytest.raises(UsageError, match=message + "drop the axis"):
        RING.predict(replace(SHAPE, mtp=1), Axes.of({"context": 8}))


LATENT = replace(SHAPE, queries=1, query_rank=16, kv_rank=8, rope_dim=4)


def test_latents_enter_an_attention_in_place_of_the_stream():
    """Of 8 sequences of 8 tokens, in bf16: 16 numbers a token for queries, 8 for keys and values, 4 that rotate."""
    found = rows((DATA_PARALLEL | TENSOR_PARALLEL).predict(LATENT, DATA_TENSOR))
    entered = {row for row in found if row[2] == "layers/attention/enter"}
    sizes = (16, 8, 4)
    assert entered == {(str(SUM), "tensor", "layers/attention/enter", BACKWARD, 2, 64 * n * 2, "bf16") for n in sizes}


def test_what_makes_latents_is_replicated_over_tensor_and_what_is_made_of_them_split():
    found = {row[2]: row[5] for row in rows(FSDP_TENSOR.predict(LATENT, FSDP_TENSOR_AXES)) if row[0] == GATHER}
    down, up = 24 * 16 * 2, 16 * 4 * (6 + 4) * 2
    assert (found["layers/attention/query_latent"], found["layers/attention/query"]) == (down, up // 4)


def test_both_predictions_leave_the_embedding_and_enter_the_head_together():
    found = rows((DATA_PARALLEL | TENSOR_PARALLEL).predict(replace(SHAPE, mtp=1), DATA_TENSOR))
    ends = {row[2]: row[5] for row in found if row[1] == "tensor" and row[2] in ("embedding", "head")}
    assert ends == {"embedding": 2 * X, "head": 2 * X}
    assert {row[4] for row in found if row[2] == "mtp/attention/leave" and row[1] == "tensor"} == {1}


def test_dense_layers_move_in_a_scope_of_their_own():
    shape = replace(SHAPE, layers=5, experts=4, dense_layers=3, dense_mlp=20)
    found = {row[2]: row[4:6] for row in rows(ZERO3.predict(shape, FSDP_8)) if row[0] == SCATTER}
    assert found["dense/mlp/up"] == (3, 24 * 20 * 2) and found["layers/mlp/up"] == (2, 4 * 24 * 40 * 2)
