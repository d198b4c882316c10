"""Sizes of decoders: presets against published counts, refusals in one line."""

from math import prod

import jax
import pytest

from lab import zoo
from lab.meshes.errors import UsageError
from lab.programs.models.decoder import weights
from lab.programs.models.shape import DecoderShape

PRESETS = [name for name in zoo.model_names() if not zoo.model(name).biased]
"""Their published counts are compared with the zoo's in tests/lab/zoo/test_models.py."""
SHAPES = {
    "untied": DecoderShape(),
    "tied": DecoderShape(tied=True),
    "small": DecoderShape().shrunk(queries=3, layers=5),
    "experts": DecoderShape(experts=4, shared=2),
    "squared ReLU, normed heads": DecoderShape(activation="relu2", normed_heads=True),
    "experts without a gate": DecoderShape(experts=4, shared=2, activation="gelu"),
    "dense layers first": DecoderShape(layers=7, experts=4, shared=2, dense_layers=3, router="sigmoid_bias"),
    "wide dense layers": DecoderShape(layers=4, experts=4, dense_layers=2, dense_mlp=7777),
    "latent attention": DecoderShape(queries=1, query_rank=96, kv_rank=64, rope_dim=32),
    "the token after the next": DecoderShape(mtp=1, tied=True, normed_heads=True),
    "and with experts": DecoderShape(mtp=1, layers=4, experts=4, shared=1, dense_layers=2, router="sigmoid_bias"),
    "biased": DecoderShape(experts=4, router="sigmoid_bias"),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_as_many_parameters_as_its_model(preset):
    shape, parameters = DecoderShape.preset(preset), zoo.model(preset).parameters
    assert (shape.parameters, _allocated(shape)) == (parameters, parameters)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_parameters_are_the_entries_of_all_arrays(shape):
    assert _allocated(shape) == shape.parameters


def _allocated(shape: DecoderShape) -> int:
    return sum(prod(array.shape) for array in jax.tree.leaves(weights(shape)))


def test_llama3_8b_has_8_groups_of_4_queries():
    shape = DecoderShape.preset("llama3-8b")
    assert (shape.layers, shape.embed, shape.kv_heads, shape.queries, shape.heads, shape.head_dim, shape.batch) == (
        32,
        4096,
        8,
        4,
        32,
        128,
        512,
    )


@pytest.mark.parametrize(
    ("preset", "left_out"),
    [
        # A layer's biases: of two norms, of four and of two matrices; and those of the last norm, and of positions.
        ("gpt3-175b", 96 * (2 * 12288 + 4 * 12288 + 5 * 12288) + 12288 + 2048 * 12288),
        ("gpt2", 12 * 11 * 768 + 768 + 1024 * 768),
        ("llama3-8b", 0),
        ("deepseek-v3", 0),
    ],
)
def test_a_preset_leaves_out_biases_and_positions_alone(preset, left_out):
    shape = DecoderShape.preset(preset)
    assert DecoderShape.left_out(preset) == left_out == zoo.model(preset).parameters - _allocated(shape)


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(UsageError, match="'llama9'.*llama3-8b"):
        DecoderShape.preset("llama9")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 1}, "layers=1: expected 2 or more"),
        ({"batch": 0}, "batch=0: expected 1 or more"),
        ({"queries": 0}, "queries=0: expected 1 or more"),
        ({"vocab": -1}, "vocab=-1: expected 1 or more"),
        ({"accumulation": 0}, "accumulation=0: expected 1 or more"),
        ({"head_dim": 7}, "head_dim=7: expected an even number, since rotary embeddings rotate pairs"),
        ({"head_dim": 0}, "head_dim=0: expected an even number, since rotary embeddings rotate pairs"),
        ({"dtype": "f64"}, "dtype=f64: expected one of bf16, f16, f32"),
        (
            {"kv_rank": 8},
            "query_rank=0, kv_rank=8, rope_dim=0: expected all of them above 0 and rope_dim even, or all of them 0",
        ),
        (
            {"query_rank": 8, "kv_rank": 8, "rope_dim": 4},
            "query_rank=8, kv_rank=8, rope_dim=4 with queries=2, normed_heads=False: expected queries=1, since every "
            "head has keys of its own, and normed_heads=False, since the latents are normalised",
        ),
        ({"activation": "relu"}, "activation=relu: expected one of swiglu, relu2, gelu"),
        ({"remat": "some"}, "remat=some: expected one of none, selective, dots, names, full, offload"),
        ({"experts": 4, "top_k": 5}, "top_k=5 of experts=4: expected top_k from 1 to experts, or experts=0"),
        (
            {"capacity_factor": 0.0},
            "capacity_factor=0.0, shared=0, balance=0.01, z=0.0: expected capacity_factor above 0 and the "
            "others 0 or more, all finite",
        ),
        (
            {"capacity_factor": float("inf")},
            "capacity_factor=inf, shared=0, balance=0.01, z=0.0: expected capacity_factor above 0 and the "
            "others 0 or more, all finite",
        ),
        (
            {"experts": 8, "capacity_factor": 1e300},
            "capacity_factor=1e+300 of experts=8: expected 8 at most, which gives every expert a slot for every "
            "copy of every token",
        ),
        (
            {"balance": float("nan")},
            "capacity_factor=1.25, shared=0, balance=nan, z=0.0: expected capacity_factor above 0 and the "
            "others 0 or more, all finite",
        ),
        (
            {"z": float("inf")},
            "capacity_factor=1.25, shared=0, balance=0.01, z=inf: expected capacity_factor above 0 and the "
            "others 0 or more, all finite",
        ),
        (
            {"layers": 4, "experts": 4, "dense_layers": 3},
            "dense_layers=3 of layers=4 with experts=4: expected 0, or 2 or more before 2 or more layers with experts, "
            "since of a loop that runs once XLA leaves no loop",
        ),
        ({"mtp": 2}, "mtp=2, mtp_weight=0.3: expected mtp 0 or 1 and a weight above 0"),
        ({"routed_scale": 0.0}, "routed_scale=0.0: expected a number above 0"),
        ({"dense_mlp": -1}, "dense_mlp=-1: expected 1 or more, or 0 for what experts come to"),
        ({"experts": 4, "router": "hash"}, "router=hash: expected one of softmax, sigmoid_bias, expert_choice"),
        ({"experts": 4, "dispatch": "sparse"}, "dispatch=sparse: expected one of slots, padded, ragged"),
        (
            {"experts": 6, "nodes": 4},
            "experts=6 on nodes=4, top_k=2 on node_limit=1 nodes: expected experts divisible by nodes, top_k divisible by "
            "node_limit, and node_limit from 1 to nodes",
        ),
        (
            {"experts": 4, "nodes": 4, "top_k": 2},
            "top_k=2 on node_limit=1 nodes of 1 experts: expected that many experts on these nodes",
        ),
        (
            {"experts": 4, "router": "expert_choice", "nodes": 2},
            "router=expert_choice with nodes=2, dispatch=slots and 320 slots for 512 tokens: expected nodes=1, "
            "dispatch=slots and no more slots than tokens, "
            "since experts choose their tokens",
        ),
        ({"vocab": 2**31}, "vocab=2147483648: expected less than 2^31, the range of int32 indices"),
        ({"window": 2**31}, "window=2147483648: expected less than 2^31, the range of int32 indices"),
        (
            {"batch": 2**16, "length": 2**15},
            "batch * length=2147483648: expected less than 2^31, the range of int32 indices",
        ),
        (
            {"experts": 32, "top_k": 32, "batch": 2**17, "dispatch": "padded"},
            "batch * length * top_k=2147483648: expected less than 2^31, the range of int32 indices",
        ),
        (
            {"head_dim": 2**27},
            "kv_heads * queries * head_dim=2147483648: expected less than 2^31, the range of int32 indices",
        ),
        (
            {"batch": 30, "accumulation": 4},
            "batch=30 is not divisible by accumulation=4 micro-batches; make it a multiple",
        ),
    ],
)
def test_sizes_that_make_no_decoder_are_refused_in_one_line(sizes, message):
    with pytest.raises(UsageError) as refused:
        DecoderShape(**sizes)
    assert str(refused.value) == message


def test_a_shrunk_decoder_keeps_its_architecture():
    shape = DecoderShape.preset("llama3-70b").shrunk(layers=3)
    assert (shape.queries, shape.tied, shape.layers, shape.dtype) == (8, False, 3, "f32")
    assert shape.parameters < 500_000


def test_a_micro_batch_is_a_share_of_the_batch_and_bf16_has_2_bytes():
    shape = DecoderShape(batch=32, accumulation=4)
    assert (shape.micro_batch, shape.bytes_per_element) == (8, 2)


def test_heads_of_the_default_decoder_are_together_as_wide_as_its_stream():
    shape = DecoderShape()
    assert shape.kv_heads * shape.queries * shape.head_dim == shape.embed
