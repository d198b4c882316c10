"""What theory puts on a device at its fullest, against XLA's plan for H100s; sizes nobody fitted."""

from dataclasses import replace

import pytest

from lab.models.shape import DecoderShape
from lab.strategies import program
from lab.strategies.data_parallel import DATA_PARALLEL
from lab.strategies.fsdp_tensor import FSDP_TENSOR
from lab.strategies.peak import peak_terms, saved_layer_bytes
from lab.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.strategies.zero1 import ZERO1
from lab.strategies.zero3 import ZERO3
from meshes.axes import Axes
from meshes.targets import make_mesh, parse_target, prepare

SHAPE = DecoderShape(layers=5, batch=8, length=1280, embed=3072, kv_heads=8, queries=3, head_dim=128, mlp=8192, vocab=24000)
LAYOUTS = {
    "data": (DATA_PARALLEL, {"data": 8}),
    "zero1": (ZERO1, {"data": 8}),
    "zero3": (ZERO3, {"fsdp": 8}),
    "data x tensor": (DATA_PARALLEL | TENSOR_PARALLEL, {"data": 2, "tensor": 4}),
    "data x sequence": (DATA_PARALLEL | SEQUENCE_PARALLEL, {"data": 2, "tensor": 4}),
    "fsdp x tensor": (FSDP_TENSOR, {"fsdp": 2, "tensor": 4}),
}


@pytest.mark.parametrize("remat", ["full", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_on_8_h100s_peaks_within_5_percent_of_the_sum_of_terms(layout, remat):
    target = parse_target("gpu:h100:1x8")
    prepare([target])
    strategy, sizes = LAYOUTS[layout]
    axes, shape = Axes.of(sizes), replace(SHAPE, remat=remat)
    function, args = program.step(strategy, "explicit", shape, make_mesh(target, axes))
    memory = function.lower(*args).compile().memory_analysis()
    terms = peak_terms(strategy, "explicit", shape, axes)
    assert terms["arguments"] == memory.argument_size_in_bytes
    assert sum(terms.values()) == pytest.approx(memory.peak_memory_in_bytes, rel=0.05)


# 1280 tokens of 3072 bf16 numbers.
STREAM = 1280 * 3072 * 2


def kept(strategy, sizes, remat):
    return saved_layer_bytes(strategy, replace(SHAPE, remat=remat), Axes.of(sizes))


def test_a_layer_keeps_its_input_and_with_saved_names_what_attention_adds():
    assert (kept(ZERO3, {"fsdp": 8}, "full"), kept(ZERO3, {"fsdp": 8}, "names")) == (STREAM, 2 * STREAM)


def test_tensor_parallelism_keeps_whole_inputs_and_split_sequences_a_quarter():
    mesh = {"data": 2, "tensor": 4}
    assert kept(DATA_PARALLEL | SEQUENCE_PARALLEL, mesh, "full") == 4 * STREAM // 4
    assert kept(DATA_PARALLEL, mesh, "full") == 4 * STREAM


@pytest.mark.parametrize(("name", "micro_batches", "size"), [("gradients added up over micro-batches", 4, 4), ("gradients added up over micro-batches", 1, 0)])
def test_sums_over_micro_batches_are_another_4_bytes_a_parameter(name, micro_batches, size):
    shape = replace(SHAPE, batch=32, accumulation=micro_batches)
    assert peak_terms(DATA_PARALLEL, "explicit", shape, Axes.of({"data": 8}))[name] == size * shape.parameters
