"""Every term of every moment at which a step may be fullest, worked out by hand in the letters of one small decoder."""

from dataclasses import replace
from math import ceil

import pytest

from lab.meshes.axes import Axes
from lab.programs.memory.device import Device
from lab.programs.memory.gradients import ends_waiting, gradients, head_later
from lab.programs.memory.layer_backward import in_attention, in_gathers, in_mlp, in_tiles, layer_at_work, points
from lab.programs.memory.moments import going_forward, moments
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.saved import choices, saved_in_layer, saved_weights
from lab.programs.memory.state import static_bytes
from lab.programs.memory.terms import MemoryTerm as Term
from lab.programs.memory.xla_gpu import (
    budget,
    finds_head_grad_at_once,
    is_moved_in_layers,
    scores_relayout,
    weights_relayout,
)
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import GATHERED_KEYS, RING, ULYSSES, ZIGZAG_RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_TENSOR
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3

L, S, D, K, Q, H, F, V = 3, 20, 24, 4, 3, 10, 56, 88
A = K * Q
SHAPE = DecoderShape(layers=L, batch=10, length=S, embed=D, kv_heads=K, queries=Q, head_dim=H, mlp=F, vocab=V)
T = 5 * S
"""Tokens of one of two devices."""
X, QUERIES, KEYS, SCORES, HIDDEN, LOGITS = 2 * T * D, 2 * T * A * H, 2 * T * K * H, 4 * T * A * S, 2 * T * F, 2 * T * V
"""Bytes of the stream, of queries, of keys or of values, of float32 scores, of one of the MLP's tensors, of logits."""
QUERY, ATTENTION, MATRIX, END = D * A * H, 2 * D * H * (A + K), D * F, V * D
LAYER = ATTENTION + 3 * MATRIX
ALL = L * LAYER + 2 * END + (2 * L + 1) * D
"""Numbers of the query's matrix, of attention's, of one of the MLP's, of the embedding or the head; and of them all."""
WHOLE_LAYER = 8 * X + 2 * QUERIES + 2 * KEYS + SCORES * 3 // 2 + 6 * HIDDEN
"""What a layer keeps without recomputation."""


def device(strategy, style, sizes, is_cramped=False, **changes) -> Device:
    return Device(strategy, style, replace(SHAPE, **changes), Axes.of(sizes), is_cramped)


def given(terms) -> dict:
    """Without those that are nothing."""
    return {str(name): size for name, size in terms.items() if size}


def moments_of(*arguments, **changes) -> list[dict]:
    return [given(terms) for terms in moments(device(*arguments, **changes))]


FORWARD = {Term.SCORES_AND_PROBABILITIES: SCORES * 3 // 2, Term.ATTENTION_MASK: SCORES * 5 // 4}
HEAD_LATER = {Term.LOGITS_GRAD: LOGITS, Term.HEAD_INPUT: X}
HEAD = {Term.HEAD_GRAD: 2 * END}
ZEROS = {Term.EMBEDDING_GRAD_ZEROS: 2 * END}
AT_HEAD = {Term.LOGITS: LOGITS, Term.HEAD_WEIGHTS_IN_USE: 2 * END}
ENDS = {Term.EMBEDDING_AND_HEAD_GRADS: 2 * 2 * END}
AT_ATTENTION = {
    Term.SCORES_AND_GRADS: SCORES * 5 // 2,
    Term.LAYER_ACTIVATIONS: 4 * X + QUERIES + 2 * KEYS + 4 * HIDDEN,
}
SAVED = {Term.SAVED_ACTIVATIONS: L * X}


@pytest.mark.parametrize(
    ("strategy", "sizes", "state"),
    [
        (DATA_PARALLEL, {"data": 2}, 12 * ALL),
        (ZERO3, {"fsdp": 2}, 12 * (ALL + (2 * L + 1) * D) // 2),
        (ZERO1, {"data": 2}, 12 * (ALL + (2 * L + 1) * D) // 2 + 2 * ALL),
    ],
)
def test_arguments_are_12_bytes_a_parameter_a_copy_where_there_is_one_a_count_and_two_integers_a_token(
    strategy, sizes, state
):
    assert static_bytes(strategy, SHAPE, Axes.of(sizes)) == state + 4 + 2 * 4 * T


def test_data_parallelism_has_whole_gradients_in_float32():
    waiting, gradients = SAVED | HEAD, {Term.LAYERS_GRADS: 4 * L * LAYER}
    assert moments_of(DATA_PARALLEL, "explicit", {"data": 2}) == [
        SAVED | FORWARD,
        HEAD | SAVED | AT_HEAD,
        waiting | gradients,
        waiting | gradients | AT_ATTENTION | {Term.LAYER_WEIGHTS_IN_USE: 2 * ATTENTION},
        gradients | ENDS,
        {},
    ]


def test_a_small_batchs_logits_wait_in_place_of_the_heads_gradient_and_the_embeddings_begins_with_zeros():
    small = {"data": 2}, {"batch": 2, "vocab": 1000, "length": 4}
    tokens, end = 4, 2 * 1000 * D
    later = {Term.LOGITS_GRAD: 2 * tokens * 1000, Term.HEAD_INPUT: 2 * tokens * D}
    waits = ends_waiting(device(DATA_PARALLEL, "explicit", small[0], **small[1]))
    assert waits == later | {Term.EMBEDDING_GRAD_ZEROS: end}
    cramped = ends_waiting(device(DATA_PARALLEL, "explicit", small[0], is_cramped=True, **small[1]))
    assert given(cramped) == later
    for strategy, sizes in (ZERO1, small[0]), (ZERO3, {"fsdp": 2}):
        assert ends_waiting(device(strategy, "explicit", sizes, **small[1])) == later


@pytest.mark.parametrize(("batch", "is_smaller"), [(2, False), (4, True)])
def test_the_heads_gradient_waits_only_where_it_is_smaller_than_what_it_is_made_of(batch, is_smaller):
    """It is 24 rows of 8, and a token has 24 logits and 8 numbers: 6 tokens need as many bytes."""
    found = device(DATA_PARALLEL, "explicit", {"data": 2}, batch=batch, embed=8, vocab=24, length=6)
    assert sum(head_later(found).values()) == (768 if is_smaller else 384)
    assert (ends_waiting(found) == {Term.HEAD_GRAD: 384}) == is_smaller


@pytest.mark.parametrize(
    ("remat", "kept"),
    [
        ("full", X),
        ("names", 2 * X),
        ("dots", 2 * X + QUERIES + 2 * KEYS + 2 * HIDDEN),
        ("selective", WHOLE_LAYER - SCORES * 3 // 2),
        ("none", WHOLE_LAYER),
    ],
)
def test_a_layer_keeps_what_its_backward_pass_does_not_compute_again(remat, kept):
    assert saved_in_layer(device(DATA_PARALLEL, "explicit", {"data": 2}, remat=remat)) == kept


def test_without_recomputation_weights_as_used_and_a_second_layout_of_scores_wait_with_all_activations():
    saved = {Term.SAVED_ACTIVATIONS: L * WHOLE_LAYER, Term.SAVED_WEIGHTS: 2 * L * LAYER}
    waiting, gradients = saved | HEAD, {Term.LAYERS_GRADS: 4 * L * LAYER}
    assert moments_of(DATA_PARALLEL, "explicit", {"data": 2}, remat="none") == [
        saved | FORWARD,
        waiting | AT_HEAD,
        waiting | gradients | {Term.SCORES_RELAYOUT: L * SCORES},
        waiting | gradients | {Term.LAYER_ACTIVATIONS: SCORES * 3 // 2},
        gradients | ENDS,
        {},
    ]


def test_where_scores_alone_are_recomputed_they_and_their_gradients_are_at_work():
    found = device(DATA_PARALLEL, "explicit", {"data": 2}, remat="selective")
    assert given(layer_at_work(found)) == {Term.SCORES_AND_GRADS: SCORES * 5 // 2}
    assert scores_relayout(found) == 0


def test_at_work_in_the_mlp_are_four_of_its_tensors_what_attention_will_need_and_seven_streams():
    found = device(DATA_PARALLEL, "explicit", {"data": 2})
    assert given(in_mlp(found)) == {
        Term.LAYER_ACTIVATIONS: 2 * QUERIES + 2 * KEYS + SCORES + 4 * HIDDEN + 7 * X,
        Term.LAYER_WEIGHTS_IN_USE: 2 * (ATTENTION + 2 * MATRIX),
    }
    assert points(found) == [in_mlp(found), in_attention(found)]
    wide = device(DATA_PARALLEL, "explicit", {"data": 2}, mlp=7000, length=4)
    assert sum(in_mlp(wide).values()) > sum(in_attention(wide).values())
    assert given(layer_at_work(wide)) == given(in_mlp(wide))


def test_probabilities_of_one_sequence_wait_where_something_is_moved_in_layers_and_there_is_room():
    one = ZERO3, "explicit", {"fsdp": 2}
    assert in_attention(device(*one, batch=2))[Term.SAVED_PROBABILITIES] == 2 * S * A * S
    for other in (
        device(*one, batch=4),
        device(*one, batch=2, is_cramped=True),
        device(DATA_PARALLEL, "explicit", {"data": 2}, batch=2),
        device(ZERO3, "declared", {"fsdp": 2}, batch=2),
        device(*one, batch=2, remat="names"),
    ):
        assert in_attention(other)[Term.SAVED_PROBABILITIES] == 0


@pytest.mark.parametrize(
    ("strategy", "style", "sizes", "is_left"),
    [
        (DATA_PARALLEL, "explicit", {"data": 2}, False),
        (ZERO3, "explicit", {"fsdp": 2}, True),
        (ZERO1, "explicit", {"data": 2}, True),
        (ZERO1, "declared", {"data": 2}, False),
        (DATA_PARALLEL | SEQUENCE_PARALLEL, "declared", {"data": 2, "tensor": 2}, True),
        (DATA_PARALLEL | TENSOR_PARALLEL, "explicit", {"data": 2, "tensor": 2}, True),
        (DATA_PARALLEL | TENSOR_PARALLEL, "declared", {"data": 2, "tensor": 2}, False),
        (DATA_PARALLEL | RING, "explicit", {"data": 2, "context": 2}, False),
        (DATA_PARALLEL | EXPERT_PARALLEL, "explicit", {"data": 2, "expert": 2}, False),
    ],
)
def test_the_heads_gradient_is_left_for_later_where_it_hides_a_transfer(strategy, style, sizes, is_left):
    changes = {"experts": 4, "batch": 20} if "expert" in sizes else {}
    waiting = ends_waiting(device(strategy, style, sizes, **changes))
    assert (Term.LOGITS_GRAD in waiting) == is_left and (Term.HEAD_GRAD in waiting) != is_left


def test_a_model_that_does_not_look_back_alone_has_no_mask():
    found = device(DATA_PARALLEL, "explicit", {"data": 2}, causal=False)
    assert given(going_forward(found)) == {Term.SCORES_AND_PROBABILITIES: SCORES * 3 // 2}


def test_float32_doubles_what_products_read_and_not_the_gradients():
    found = device(DATA_PARALLEL, "explicit", {"data": 2}, dtype="f32")
    assert (found.logits, found.stream, gradients(found)[Term.LAYERS_GRADS]) == (2 * LOGITS, 2 * X, 4 * L * LAYER)
    assert ends_waiting(found) == {Term.HEAD_GRAD: 4 * END}


def test_sums_over_micro_batches_are_float32_numbers_of_all_parameters():
    found = device(DATA_PARALLEL, "explicit", {"data": 2}, batch=20, accumulation=2)
    assert gradients(found) == {Term.LAYERS_GRADS: 4 * L * LAYER, Term.ACCUMULATED_GRADS: 4 * ALL}


@pytest.mark.parametrize(
    ("strategy", "sizes", "changes", "size"),
    [
        (DATA_PARALLEL, {"data": 2}, {}, 12 * END),
        (DATA_PARALLEL, {"data": 2}, {"tied": True}, 0),
        (DATA_PARALLEL, {"data": 2}, {"batch": 20, "accumulation": 2}, 0),
        (ZERO3, {"fsdp": 2}, {}, 0),
        (DATA_PARALLEL | SEQUENCE_PARALLEL, {"data": 2, "tensor": 2}, {}, 0),
    ],
    ids=["untied", "tied", "accumulated", "gathered", "split vocabulary"],
)
def test_typed_an_untied_embedding_of_whole_rows_has_its_new_state_beside_the_old(strategy, sizes, changes, size):
    *_, update = moments_of(strategy, "typed", sizes, **changes)
    assert update.get(Term.OPTIMIZER_STATE_RELAYOUT, 0) == size
    if size:
        assert update == {Term.LAYERS_GRADS: 4 * L * LAYER} | ENDS | {Term.OPTIMIZER_STATE_RELAYOUT: size}
    assert moments_of(strategy, "explicit", sizes, **changes)[-1] == {}


ZERO_UPDATE = {
    Term.GATHERED_NEW_WEIGHTS: 2 * L * QUERY,
    # Matrices whose last dim is not the one that is split: query, key and value, gate and up, the head.
    Term.OPTIMIZER_STATE_RELAYOUT: 12 * (L * (QUERY + 2 * D * K * H + 2 * MATRIX) + END) // 2,
}


def test_zero1_has_gradients_in_the_dtype_of_products_and_renews_a_whole_stack():
    waiting, gradients = SAVED | HEAD_LATER, {Term.LAYERS_GRADS: 2 * L * LAYER}
    at_attention = AT_ATTENTION | {Term.LAYER_ACTIVATIONS: AT_ATTENTION[Term.LAYER_ACTIVATIONS] - 4 * HIDDEN}
    assert moments_of(ZERO1, "explicit", {"data": 2}) == [
        SAVED | FORWARD,
        waiting | {Term.LOGITS: LOGITS},
        waiting | gradients,
        waiting | gradients | at_attention,
        gradients | ENDS,
        ZERO_UPDATE,
    ]


def test_zero2_has_float32_gradients_of_its_parts_and_one_layers_whole_ones():
    waiting, gradients = SAVED | HEAD_LATER, {Term.LAYERS_GRADS: 4 * L * LAYER // 2}
    at_work = AT_ATTENTION | {Term.LAYER_GRADS_UNSCATTERED: 2 * LAYER}
    assert moments_of(ZERO2, "explicit", {"data": 2}) == [
        SAVED | FORWARD,
        waiting | {Term.LOGITS: LOGITS},
        waiting | gradients,
        waiting | gradients | at_work,
        gradients | ENDS,
        ZERO_UPDATE,
    ]
    none = device(ZERO2, "explicit", {"data": 2}, remat="none")
    assert saved_weights(none) == 0
    assert saved_weights(device(ZERO2, "declared", {"data": 2}, remat="none")) == 2 * L * LAYER


@pytest.mark.parametrize("strategy", [ZERO1, ZERO2])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_declared_zero1_and_2_scatter_as_they_come_and_in_layers_where_micro_batches_are_added_up(
    strategy, accumulation
):
    found = device(strategy, "declared", {"data": 2}, batch=10 * accumulation, accumulation=accumulation)
    parts = (L * LAYER + END) // 2 + (2 * L + 1) * D
    assert given(gradients(found)) == {Term.LAYERS_GRADS: 2 * L * LAYER // 2} | (
        {Term.ACCUMULATED_GRADS: 4 * (END + parts)} if accumulation > 1 else {}
    )
    unscattered = {Term.LAYER_GRADS_UNSCATTERED: 2 * LAYER} if accumulation > 1 else {}
    assert given(layer_at_work(found)) == AT_ATTENTION | unscattered


RELAID = {Term.WEIGHTS_RELAYOUT: 4 * L * (QUERY + MATRIX) // 2}


@pytest.mark.parametrize("is_cramped", [False, True])
def test_explicit_zero3_peels_a_layer_off_gathers_the_next_and_leaves_the_head_for_later(is_cramped):
    waiting, gradients = SAVED | HEAD_LATER, {Term.LAYERS_GRADS: 4 * L * LAYER // 2}
    weights = {Term.LAYER_WEIGHTS_IN_USE: 2 * ATTENTION, Term.NEXT_LAYER_WEIGHTS: 2 * LAYER} | RELAID
    at_work = AT_ATTENTION | weights
    assert moments_of(ZERO3, "explicit", {"fsdp": 2}, is_cramped) == [
        SAVED | FORWARD | RELAID,
        waiting | AT_HEAD,
        waiting | at_work | ({} if is_cramped else gradients),
        waiting | gradients | at_work,
        gradients | ENDS | HEAD_LATER | {Term.LAYER_GRADS_UNSCATTERED: 2 * LAYER},
        {},
    ]


def test_without_recomputation_the_peeled_layer_of_explicit_zero3_has_slices_of_its_own():
    found = device(ZERO3, "explicit", {"fsdp": 2}, remat="none")
    assert given(layer_at_work(found)) == {Term.LAYER_ACTIVATIONS: WHOLE_LAYER}


@pytest.mark.parametrize("is_cramped", [False, True])
def test_declared_zero3_has_the_heads_gradient_and_what_the_loop_begins_with_at_once(is_cramped):
    saved = {Term.SAVED_ACTIVATIONS: L * WHOLE_LAYER, Term.SAVED_WEIGHTS: 2 * L * LAYER}
    gradients = {Term.LAYERS_GRADS: 4 * L * LAYER // 2}
    waiting, begins = saved | HEAD | ({} if is_cramped else ZEROS), {} if is_cramped else gradients
    assert moments_of(ZERO3, "declared", {"fsdp": 2}, is_cramped, remat="none") == [
        saved | FORWARD | RELAID,
        saved | HEAD | RELAID | begins | AT_HEAD,
        waiting | {Term.SCORES_RELAYOUT: L * SCORES} | begins,
        waiting | gradients | {Term.LAYER_ACTIVATIONS: SCORES * 3 // 2},
        gradients | ENDS,
        {},
    ]


@pytest.mark.parametrize(
    ("strategy", "style", "sizes", "is_at_once"),
    [
        (ZERO3, "declared", {"fsdp": 2}, True),
        (ZERO3, "explicit", {"fsdp": 2}, False),
        (ZERO1, "declared", {"data": 2}, False),
        (DATA_PARALLEL, "declared", {"data": 2}, False),
        (DATA_PARALLEL | ZERO3, "declared", {"data": 2, "fsdp": 1}, False),
        (FSDP_TENSOR, "declared", {"fsdp": 2, "tensor": 2}, False),
    ],
)
def test_the_heads_gradient_is_made_at_once_where_nothing_but_a_scatter_over_all_devices_follows(
    strategy, style, sizes, is_at_once
):
    assert finds_head_grad_at_once(device(strategy, style, sizes)) == is_at_once
    assert finds_head_grad_at_once(device(strategy, style, sizes, tied=True)) == is_at_once


def test_a_stream_that_is_split_between_blocks_is_gathered_eight_times_beside_a_layer():
    """Over tensor: heads, the MLP, the vocabulary, and the stream between blocks are halves."""
    saved, gradients = {Term.SAVED_ACTIVATIONS: L * X // 2}, {Term.LAYERS_GRADS: 4 * L * LAYER // 2}
    head = {Term.LOGITS_GRAD: LOGITS // 2, Term.HEAD_INPUT: X}
    waiting = saved | head
    inner = QUERIES + KEYS + 2 * HIDDEN + 2 * X
    gathers = {
        Term.GATHERED_RESIDUALS_AND_GRADS: 8 * X,
        Term.LAYER_ACTIVATIONS: inner,
        Term.LAYER_WEIGHTS_IN_USE: ATTENTION + 2 * MATRIX,
    }
    attention = {
        Term.SCORES_AND_GRADS: SCORES * 5 // 4,
        Term.SAVED_PROBABILITIES: SCORES // 4,
        Term.LAYER_ACTIVATIONS: X * 5 // 2 + QUERIES // 2 + KEYS + 2 * HIDDEN,
        Term.LAYER_WEIGHTS_IN_USE: ATTENTION,
    }
    split = DATA_PARALLEL | SEQUENCE_PARALLEL, "explicit", {"data": 2, "tensor": 2}
    assert moments_of(*split) == [
        saved | {name: size // 2 for name, size in FORWARD.items()},
        waiting | {Term.LOGITS: LOGITS // 2, Term.HEAD_WEIGHTS_IN_USE: END},
        waiting | gradients,
        waiting | gradients | attention,
        gradients | {Term.EMBEDDING_AND_HEAD_GRADS: 2 * END},
        {},
    ]
    found = device(*split)
    assert given(in_gathers(found)) == gathers and points(found) == [in_gathers(found), in_attention(found)]
    none = device(*split, remat="none")
    assert given(in_gathers(none)) == {Term.GATHERED_RESIDUALS_AND_GRADS: 6 * X}


def test_a_ring_has_scores_of_a_tile_and_float32_gradients_of_queries_keys_and_values():
    """Over context: half of a sequence, which meets half of its keys at a time."""
    saved, gradients = {Term.SAVED_ACTIVATIONS: L * X // 2}, {Term.LAYERS_GRADS: 4 * L * LAYER}
    waiting = saved | HEAD
    at_work = {
        Term.TILE_SCORES_AND_GRADS: SCORES * 7 // 8,
        Term.QUERIES_AND_OUTPUTS_RELAYOUT: 7 * QUERIES // 2,
        Term.QUERY_GRADS_F32: 2 * QUERIES,
        Term.KEYS_AND_VALUES: 2 * KEYS,
        Term.KEY_AND_VALUE_GRADS_F32: 6 * KEYS,
        Term.RESIDUALS_AND_MLP_ACTIVATIONS: 2 * X + 2 * HIDDEN,
        Term.LAYER_WEIGHTS_IN_USE: 2 * (ATTENTION + 2 * MATRIX),
    }
    assert moments_of(DATA_PARALLEL | RING, "explicit", {"data": 2, "context": 2}) == [
        saved,
        waiting | {Term.LOGITS: LOGITS // 2, Term.HEAD_WEIGHTS_IN_USE: 2 * END},
        waiting | gradients,
        waiting | gradients | at_work,
        gradients | ENDS,
        {},
    ]


@pytest.mark.parametrize(("strategy", "hidden"), [(DATA_PARALLEL, 4), (ZERO1, 1), (ZERO2, 4)])
def test_in_a_ring_the_mlps_tensors_wait_for_gradients_that_are_not_made_at_once(strategy, hidden):
    found = device(strategy | RING, "explicit", {"data": 2, "context": 2})
    assert in_tiles(found)[Term.RESIDUALS_AND_MLP_ACTIVATIONS] == 2 * X + hidden * HIDDEN // 2


def test_gathered_keys_are_whole_and_their_gradients_stand_once():
    found = device(DATA_PARALLEL | GATHERED_KEYS, "explicit", {"data": 2, "context": 2}, remat="none")
    assert given(layer_at_work(found)) == {
        Term.TILE_SCORES_AND_GRADS: SCORES * 7 // 4,
        Term.QUERIES_AND_OUTPUTS_RELAYOUT: 6 * QUERIES // 2,
        Term.QUERY_GRADS_F32: QUERIES,
        Term.KEYS_AND_VALUES: 4 * KEYS,
        Term.KEY_AND_VALUE_GRADS_F32: 4 * KEYS,
        Term.RESIDUALS_AND_MLP_ACTIVATIONS: 2 * X + HIDDEN // 2,
    }
    assert found.remat == "selective" and scores_relayout(found) == 0


def test_of_a_zigzag_one_of_two_pieces_meets_another_at_a_time():
    found = device(DATA_PARALLEL | ZIGZAG_RING, "explicit", {"data": 2, "context": 2})
    assert found.keys == S // 4
    assert in_tiles(found)[Term.TILE_SCORES_AND_GRADS] == SCORES * 7 // 8 // 2 // 2


@pytest.mark.parametrize(("length", "keys"), [(20, 10), (1024, 512), (2048, 512), (1200, 300), (2052, 342), (1042, 1)])
def test_a_tile_has_as_many_keys_as_divide_a_ranks_and_512_at_most(length, keys):
    found = device(DATA_PARALLEL | RING, "explicit", {"data": 2, "context": 2}, length=length)
    assert found.keys == keys
    assert device(DATA_PARALLEL | RING, "declared", {"data": 2, "context": 2}, length=length).keys == length // 2


@pytest.mark.parametrize(("kv_heads", "met"), [(K, KEYS // 2), (1, KEYS // 4)])
def test_of_exchanged_heads_a_rank_has_its_share_and_one_at_least(kv_heads, met):
    found = device(DATA_PARALLEL | ULYSSES, "explicit", {"data": 2, "context": 2}, kv_heads=kv_heads)
    assert (found.keys_met, found.tensors["k"]) == (met, met)


EXPERTS = {"experts": 4, "batch": 20}
SPLIT = DATA_PARALLEL | EXPERT_PARALLEL, "explicit", {"data": 2, "expert": 2}


@pytest.mark.parametrize(
    ("changes", "rows", "chosen"),
    [
        ({}, 5 * 4 * 13, 4 * T * 2),
        ({"dispatch": "padded"}, T * 2 * 2, 4 * T * 2),
        ({"router": "expert_choice"}, 5 * 4 * 13, 4 * 5 * 4 * 13),
    ],
    ids=["slots", "padded", "expert choice"],
)
def test_experts_have_tensors_of_slots_or_of_room_for_all_and_keep_what_a_router_chose(changes, rows, chosen):
    """13 slots: 1.25 times 20 tokens of 2 experts each, over 4 experts."""
    found = device(*SPLIT, **EXPERTS, **changes)
    assert found.tensors["hidden"] == found.tensors["up"] == 2 * rows * F
    assert found.tensors["mlp_in"] == X + 2 * 2 * rows * D
    assert (choices(found), saved_in_layer(found)) == (chosen, X + chosen)


def test_experts_gates_and_first_matrices_are_laid_out_again():
    found = device(*SPLIT, **EXPERTS)
    assert weights_relayout(found) == 4 * L * 2 * (2 * MATRIX)
    assert gradients(found)[Term.LAYERS_GRADS] == 4 * L * (ATTENTION + 2 * 3 * MATRIX + 4 * D)
    assert is_moved_in_layers(found) and not is_moved_in_layers(device(DATA_PARALLEL, "explicit", {"data": 2}))
    assert weights_relayout(device(DATA_PARALLEL, "explicit", {"data": 2})) == 0


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, L * (QUERY + MATRIX)),
        ({"batch": 20, "accumulation": 2}, L * (QUERY + MATRIX) + END),
        ({"experts": 4}, L * (QUERY + 4 * 3 * MATRIX)),
    ],
    ids=["down and out", "in a loop the embedding", "all of experts"],
)
def test_gathered_matrices_whose_split_dim_is_not_their_first_are_laid_out_again(changes, numbers):
    assert weights_relayout(device(ZERO3, "explicit", {"fsdp": 2}, **changes)) == 4 * numbers // 2


def test_a_step_has_room_up_to_its_budget_and_is_cramped_beyond_it():
    step = ZERO3, "explicit", replace(SHAPE, batch=200), Axes.of({"fsdp": 2})
    roomy = peak_terms(*step)
    whole, arguments = sum(roomy.values()), roomy[Term.ARGUMENTS]
    assert whole - arguments == max(sum(terms.values()) for terms in moments(Device(*step, is_cramped=False)))
    enough = next(m for m in range(ceil(whole), 2 * whole) if budget(m, arguments) == whole)
    assert peak_terms(*step, enough) == roomy
    cramped = peak_terms(*step, enough - 2)
    assert budget(enough - 2, arguments) < whole and Term.SAVED_PROBABILITIES not in given(cramped)
    fullest = max(moments(Device(*step, is_cramped=True)), key=lambda terms: sum(terms.values()))
    assert cramped == {Term.ARGUMENTS: arguments} | fullest


@pytest.mark.parametrize(("arguments", "limit"), [(6_025_756_676, 64_914_517_376), (22_086_279_172, 65_717_543_506)])
def test_xla_names_a_limit_of_65_gb_beside_6_or_22_gb_of_arguments_where_it_finds_no_room_on_an_h100(arguments, limit):
    assert budget(85_017_493_504, arguments) == pytest.approx(limit, rel=1e-5)
