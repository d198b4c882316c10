"""Every term of every moment at which a pipeline's step may be fullest, worked out by hand in the letters of one small
decoder."""

from dataclasses import replace

import pytest

from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.memory.saved import saved_layer_bytes
from lab.programs.memory.terms import MemoryTerm as Term
from lab.programs.pipelines.memory import Stage, moments, peak_terms
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies.context_parallel import ZIGZAG_RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3

L, T, D, K, Q, H, F, V = 2, 20, 24, 4, 3, 10, 56, 88
"""Layers of a stage, tokens of the one sequence that a device has of a micro-batch, and the decoder's sizes."""
A = K * Q
SHAPE = PipelineShape(
    layers=2 * L, batch=8, length=T, embed=D, kv_heads=K, queries=Q, head_dim=H, mlp=F, vocab=V, accumulation=4
)
X, QUERIES, KEYS, SCORES, HIDDEN, LOGITS = 2 * T * D, 2 * T * A * H, 2 * T * K * H, 4 * T * A * T, 2 * T * F, T * V
"""Bytes of a message, of queries, of keys or of values, of float32 scores, of one of the MLP's tensors; logits."""
QUERY, ATTENTION, MATRIX, END = D * A * H, 2 * D * H * (A + K), D * F, V * D
LAYER, NORMS = ATTENTION + 3 * MATRIX, (2 * L + 1) * D
STAGE = L * LAYER + 2 * END
"""Numbers of the matrices of a stage, with both ends, of which it has copies."""
DATA = {"data": 2, "pipe": 2}
ARGUMENTS = {Term.ARGUMENTS: 12 * (STAGE + NORMS) + 4 + 2 * 4 * 4 * T}
IN_LOOP = {
    # Of the second stage's two micro-batches one waits for its forward as the other does for its backward.
    Term.STASHED_INPUTS: 2 * X,
    Term.STASHED_COTANGENTS: X,
    Term.MESSAGES: 2 * X,
    Term.ACCUMULATED_GRADS: 4 * (STAGE + NORMS),
}
SAVED = {Term.SAVED_ACTIVATIONS: L * X}
FORWARD = {Term.SCORES_AND_PROBABILITIES: SCORES * 3 // 2, Term.ATTENTION_MASK: SCORES * 5 // 4}
AT_HEAD = {
    Term.LOGITS: 4 * LOGITS,
    Term.TARGETS_MASK: LOGITS,
    Term.LOGITS_GRAD: 2 * LOGITS,
    Term.HEAD_WEIGHTS_IN_USE: 2 * END,
    # Float32 before the norm, and after it both times in 16 bits; and their gradient.
    Term.HEAD_INPUT: 2 * X + 2 * X + X,
}
AT_ATTENTION = {
    Term.SCORES_AND_GRADS: SCORES * 5 // 2,
    Term.LAYER_ACTIVATIONS: 4 * X + QUERIES + 2 * KEYS + 4 * HIDDEN,
    Term.LAYER_WEIGHTS_IN_USE: 2 * ATTENTION,
}
HEAD, LAYERS, EMBEDDING = (
    {Term.HEAD_GRAD: 4 * END},
    {Term.LAYERS_GRADS: 4 * L * LAYER},
    {Term.EMBEDDING_GRAD: 4 * END},
)
LAYER_FORWARD = {Term.SCORES_AND_PROBABILITIES: SCORES * 3 // 2}
HEAD_FORWARD = {Term.LOGITS: 2 * LOGITS, Term.HEAD_WEIGHTS_IN_USE: 2 * END}


def stage(strategy=DATA_PARALLEL, sizes=DATA, is_cramped=False, **changes) -> Stage:
    return Stage.of(strategy, replace(SHAPE, **changes), Axes.of(sizes), is_cramped)


AT = 3
"""The moment at the head; those of layers and of the embedding follow."""


def at_layers(found: Stage) -> dict:
    return given(found)[AT + 1]


def given(found: Stage) -> list[dict]:
    """Of each moment the terms that are something."""
    return [{name: size for name, size in terms.items() if size} for terms in moments(found)]


def test_a_stage_has_its_layers_copies_of_both_ends_what_is_in_flight_and_one_job():
    standing = ARGUMENTS | IN_LOOP
    zeros = HEAD | LAYERS | EMBEDDING
    assert given(stage()) == [
        standing | zeros | LAYER_FORWARD,
        standing | zeros | HEAD_FORWARD,
        standing | SAVED | FORWARD,
        standing | SAVED | AT_HEAD | HEAD,
        standing | SAVED | HEAD | LAYERS | AT_ATTENTION,
        standing | HEAD | LAYERS | EMBEDDING,
        ARGUMENTS,
    ]


@pytest.mark.parametrize(("schedule", "inputs"), [("gpipe", 4), ("1f1b", 2), ("eager_1f1b", 2)])
def test_gpipe_holds_the_inputs_of_all_micro_batches(schedule, inputs):
    assert given(stage(schedule=schedule))[0][Term.STASHED_INPUTS] == inputs * X


def test_gathered_weights_are_laid_out_again_and_their_gradients_are_whole_before_they_are_scattered():
    """Halves of all matrices; down, out and the embedding are split along their last dim. One sequence's probabilities
    wait."""
    norms = NORMS * 12
    standing = {
        Term.ARGUMENTS: 12 * STAGE // 2 + norms + 4 + 2 * 4 * 4 * T,
        Term.WEIGHTS_RELAYOUT: 4 * (L * (QUERY + MATRIX) + END) // 2,
    } | (IN_LOOP | {Term.ACCUMULATED_GRADS: 4 * (STAGE // 2 + NORMS)})
    head, layers = {Term.HEAD_GRAD: 4 * END // 2}, {Term.LAYERS_GRADS: 4 * L * LAYER // 2}
    kept = {Term.SAVED_PROBABILITIES: SCORES // 2, Term.NEXT_LAYER_WEIGHTS: 2 * LAYER}
    zeros = head | layers | {Term.EMBEDDING_GRAD: 4 * END // 2}
    assert given(stage(ZERO3, {"fsdp": 2, "pipe": 2})) == [
        standing | zeros | LAYER_FORWARD,
        standing | zeros | HEAD_FORWARD,
        standing | SAVED | FORWARD,
        standing | SAVED | AT_HEAD | {Term.HEAD_GRAD: 2 * END + END},
        standing | SAVED | head | layers | AT_ATTENTION | kept,
        standing | head | layers | {Term.EMBEDDING_GRAD: 2 * END + END, Term.LAYER_GRADS_UNSCATTERED: 2 * LAYER},
        {Term.ARGUMENTS: standing[Term.ARGUMENTS]},
    ]


def test_halves_of_backwards_wait_and_a_job_has_one_that_it_takes_or_leaves():
    """Of each product its input, once where several have the same, and the gradient of what it gives."""
    half = L * (X + 2 * QUERIES + 2 * KEYS + X + X + 3 * HIDDEN + X)
    assert half == L * (4 * X + 2 * QUERIES + 2 * KEYS + 3 * HIDDEN)
    halves = {Term.STASHED_HALVES: 2 * half, Term.HALF_TAKEN_AND_LEFT: half}
    standing = ARGUMENTS | IN_LOOP | halves
    found = stage(schedule="zb_h1")
    assert (found.half, found.table.kept) == (half, 2)
    # Where nothing of the MLP waits in the layer, its part of the half does.
    split = stage(DATA_PARALLEL | SEQUENCE_PARALLEL, {**DATA, "tensor": 2}, schedule="zb_h1")
    assert at_layers(split)[Term.LAYER_HALF] == split.half // L
    assert given(found) == [
        standing | HEAD | EMBEDDING | LAYER_FORWARD,
        standing | HEAD | EMBEDDING | HEAD_FORWARD,
        standing | SAVED | FORWARD,
        standing | SAVED | AT_HEAD | HEAD,
        standing | SAVED | HEAD | AT_ATTENTION,
        standing | HEAD | EMBEDDING,
        standing | LAYERS,
        ARGUMENTS,
    ]


def test_of_several_chunks_the_weights_of_one_are_cut_out_as_they_are_stored():
    chunks = {"layers": 8, "chunks": 2, "schedule": "interleaved"}
    whole, half = stage(layers=8), stage(**chunks)
    assert half.chunk.shape.layers == whole.chunk.shape.layers // 2 == half.share.shape.layers // 2 == L
    terms, all_layers = (at_layers(found) for found in (half, whole))
    assert terms[Term.CHUNK_WEIGHTS] == 4 * L * LAYER and Term.CHUNK_WEIGHTS not in all_layers
    assert terms[Term.ACCUMULATED_GRADS] == all_layers[Term.ACCUMULATED_GRADS]
    assert terms[Term.LAYERS_GRADS] == all_layers[Term.LAYERS_GRADS] // 2
    assert at_layers(stage(ZERO1, **chunks))[Term.CHUNK_WEIGHTS] == 2 * L * LAYER


def test_zero1_has_16_bit_gradients_and_float32_sums_and_zero2_those_of_its_parts():
    head, layers, embedding = given(stage(ZERO1))[AT : AT + 3]
    assert head[Term.HEAD_GRAD] == layers[Term.HEAD_GRAD] == embedding[Term.EMBEDDING_GRAD] == 2 * END
    assert layers[Term.LAYERS_GRADS] == 2 * L * LAYER and layers[Term.ACCUMULATED_GRADS] == 4 * (STAGE + NORMS)
    assert given(stage(ZERO1))[-1][Term.GATHERED_NEW_WEIGHTS] == 2 * L * QUERY
    head, layers, embedding = given(stage(ZERO2))[AT : AT + 3]
    assert head[Term.HEAD_GRAD] == embedding[Term.EMBEDDING_GRAD] == 2 * END + END
    assert layers[Term.HEAD_GRAD] == 4 * END // 2
    assert layers[Term.ACCUMULATED_GRADS] == 4 * (STAGE // 2 + NORMS)


def test_of_a_split_stream_messages_are_parts_and_zeros_begin_before_the_head():
    found = stage(DATA_PARALLEL | SEQUENCE_PARALLEL, {**DATA, "tensor": 2})
    head, layers = given(found)[AT : AT + 2]
    assert head[Term.STASHED_INPUTS] == X and head[Term.LAYERS_GRADS] == layers[Term.LAYERS_GRADS] == 2 * L * LAYER
    assert head[Term.LOGITS] == 4 * LOGITS // 2 and head[Term.HEAD_INPUT] == 2 * X + 2 * X
    assert layers[Term.LAYER_ACTIVATIONS] == 5 * X // 2 + QUERIES // 2 + KEYS
    gathered = stage(ZERO3 | SEQUENCE_PARALLEL, {"fsdp": 2, "pipe": 2, "tensor": 2})
    for none in stage(), gathered:
        assert Term.LAYERS_GRADS not in given(none)[AT]


def test_experts_of_a_stage_are_not_laid_out_again():
    found = stage(DATA_PARALLEL | EXPERT_PARALLEL, {**DATA, "expert": 2}, experts=4, batch=16)
    assert all(Term.WEIGHTS_RELAYOUT not in terms for terms in given(found))


def test_probabilities_wait_in_a_branch_for_one_sequence_where_there_is_room():
    split = DATA_PARALLEL | SEQUENCE_PARALLEL, {**DATA, "tensor": 2}
    assert at_layers(stage(*split))[Term.SAVED_PROBABILITIES] == SCORES // 2 // 2
    for none in stage(*split, batch=16), stage(*split, is_cramped=True), stage():
        assert Term.SAVED_PROBABILITIES not in given(none)[2]


def test_of_a_ring_zeros_begin_before_the_head():
    head, layers = given(stage(DATA_PARALLEL | ZIGZAG_RING, {**DATA, "context": 2}))[AT : AT + 2]
    assert head[Term.LAYERS_GRADS] == layers[Term.LAYERS_GRADS] == 4 * L * LAYER


def test_where_chunks_differ_a_layers_weights_are_cut_out_for_its_branch_and_in_lockstep_there_is_none():
    uneven = {"layers": 3, "stage_layers": "Ett|tL"}
    for moment, terms in enumerate(given(stage(**uneven))):
        assert terms.get(Term.LAYER_WEIGHTS) == (4 * LAYER if moment in (0, AT + 1) else None)
    assert at_layers(stage(ZERO1, **uneven))[Term.LAYER_WEIGHTS] == 2 * LAYER
    ring = stage(DATA_PARALLEL | ZIGZAG_RING, {**DATA, "context": 2}, **uneven)
    assert all(Term.LAYER_WEIGHTS not in terms for terms in given(ring))


def test_without_recomputation_float32_gradients_of_scores_stand_in_both_layouts_beside_slices():
    layers = at_layers(stage(remat="none"))
    assert layers[Term.SCORES_AND_GRADS] == 3 * SCORES + SCORES // 2
    assert layers[Term.ATTENTION_MASK] == SCORES // 4 and Term.ATTENTION_MASK not in at_layers(
        stage(remat="none", causal=False)
    )
    assert layers[Term.SAVED_WEIGHTS] == 2 * L * LAYER


def test_the_peak_is_the_fullest_moment_and_of_a_step_without_room_another():
    axes = Axes.of({**DATA, "tensor": 2})
    strategy = DATA_PARALLEL | SEQUENCE_PARALLEL
    long = replace(SHAPE, length=4000)
    roomy, cramped = (list(moments(Stage.of(strategy, long, axes, no_room))) for no_room in (False, True))
    largest = max(roomy, key=lambda terms: sum(terms.values()))
    assert peak_terms(strategy, long, axes) == peak_terms(strategy, long, axes, 10**12) == largest
    assert peak_terms(strategy, long, axes, 10**6) == max(cramped, key=lambda terms: sum(terms.values())) != largest


@pytest.mark.parametrize(
    ("strategy", "changes", "problem"),
    [
        (ZERO2, {"schedule": "zb_h1"}, "ZeRO-2 with schedule=zb_h1"),
        (DATA_PARALLEL, {"layers": 2}, "layers=2: one layer per chunk, whose loop XLA removes; expected 4 or more"),
        (DATA_PARALLEL, {"batch": 4}, "batch"),
        (EXPERT_PARALLEL, {}, "experts=0 and experts are sharded over expert"),
    ],
)
def test_what_does_not_run_in_stages_is_refused(strategy, changes, problem):
    with pytest.raises(UsageError, match=problem):
        peak_terms(strategy, replace(SHAPE, **changes), Axes.of({**DATA, "expert": 2}))


def test_a_second_prediction_leaves_its_matrices_whole_and_its_gradients_and_its_lookups_wait():
    """Its layer, and a matrix of 2 D x D that joins two streams."""
    *_, head, further, layers, embedding, _ = given(stage(mtp=1))
    further_matrices = LAYER + 2 * D * D
    waiting = 4 * (further_matrices + END)
    assert {terms[Term.FURTHER_GRADS] for terms in (head, further, layers, embedding)} == {waiting}
    assert head[Term.SAVED_WEIGHTS] == further[Term.SAVED_WEIGHTS] == 2 * further_matrices
    # Both norms' inputs in float32, and what they give side by side; before the layers go back all of it is gone.
    of_layer = saved_layer_bytes(DATA_PARALLEL, replace(SHAPE, remat="none"), Axes.of(DATA))
    assert head[Term.SAVED_ACTIVATIONS] == L * X + of_layer + (2 * 2 + 2) * X
    assert layers[Term.SAVED_ACTIVATIONS] == L * X and Term.SAVED_WEIGHTS not in layers
    assert (head[Term.LOGITS], head[Term.HEAD_INPUT]) == (2 * 4 * LOGITS, 2 * 5 * X)
    assert given(stage())[-4][Term.HEAD_INPUT] == 5 * X and Term.LOGITS not in further


def test_every_stage_has_room_for_the_dense_layers_that_the_first_computes():
    """Two of them, as wide as two experts; and the loop of a chunk is that of the others."""
    sizes = {"experts": 4, "dense_layers": 2, "stage_layers": "Ett|ttL", "batch": 16}
    found = stage(DATA_PARALLEL | EXPERT_PARALLEL, {**DATA, "expert": 2}, **sizes)
    assert (found.looped, found.chunk.shape.layers, found.share.shape.layers) == (2, 4, 4)
    dense, experts = 2 * (ATTENTION + 3 * D * 2 * F), 2 * (ATTENTION + 3 * D * 2 * F + 4 * D)
    norms = (2 * 4 + 1) * D
    assert given(found)[0][Term.ACCUMULATED_GRADS] == 4 * (dense + experts + 2 * END + norms)
