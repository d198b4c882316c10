"""Predicted ledgers against numbers worked out by hand: two layers, 16 tokens, D = 24, F = 40, bf16."""

from dataclasses import replace

import pytest

from lab.ledger import Ledger
from lab.models.mlp import MlpShape
from lab.strategies.data_parallel import DATA_PARALLEL
from lab.strategies.fsdp_tensor import FSDP_TENSOR
from lab.strategies.tensor_parallel import DATA_TENSOR, TENSOR_PARALLEL
from lab.strategies.zero3 import ZERO3
from meshes.axes import Axes
from meshes.errors import Unusable

SHAPE = MlpShape(layers=2, batch=16, embed=24, mlp=40)


def _rows(ledger: Ledger) -> list[tuple]:
    rows = ledger.transfers
    return sorted((str(t.kind), *t.axes, t.scope, t.phase, t.executions, t.dtype, t.payload_bytes, t.group_size, t.groups) for t in rows)


def test_data_parallelism_over_8_sums_1920_bytes_a_matrix_and_4_of_loss():
    assert _rows(DATA_PARALLEL.predict(SHAPE, Axes.of({"data": 8}))) == [
        ("all_reduce", "data", "layers/mlp/down", "backward", 2, "bf16", 1920, 8, 1),
        ("all_reduce", "data", "layers/mlp/up", "backward", 2, "bf16", 1920, 8, 1),
        ("all_reduce", "data", "loss", "forward", 1, "f32", 4, 8, 1),
    ]


def test_zero3_over_8_gathers_each_matrix_twice_and_scatters_once():
    assert _rows(ZERO3.predict(SHAPE, Axes.of({"fsdp": 8}))) == [
        ("all_gather", "fsdp", "layers/mlp/down", "backward", 2, "bf16", 1920, 8, 1),
        ("all_gather", "fsdp", "layers/mlp/down", "forward", 2, "bf16", 1920, 8, 1),
        ("all_gather", "fsdp", "layers/mlp/up", "backward", 2, "bf16", 1920, 8, 1),
        ("all_gather", "fsdp", "layers/mlp/up", "forward", 2, "bf16", 1920, 8, 1),
        ("all_reduce", "fsdp", "loss", "forward", 1, "f32", 4, 8, 1),
        ("reduce_scatter", "fsdp", "layers/mlp/down", "backward", 2, "bf16", 1920, 8, 1),
        ("reduce_scatter", "fsdp", "layers/mlp/up", "backward", 2, "bf16", 1920, 8, 1),
    ]


def test_zero3_without_recomputation_gathers_once():
    ledger = ZERO3.predict(replace(SHAPE, remat=False), Axes.of({"fsdp": 8}))
    assert [t.phase for t in ledger.transfers if t.kind == "all_gather"] == ["forward", "forward"]


def test_tensor_parallelism_over_2_by_4_sums_384_bytes_of_activations_twice_a_layer():
    assert _rows(DATA_TENSOR.predict(SHAPE, Axes.of({"data": 2, "tensor": 4}))) == [
        ("all_reduce", "data", "layers/mlp/down", "backward", 2, "bf16", 480, 2, 4),
        ("all_reduce", "data", "layers/mlp/up", "backward", 2, "bf16", 480, 2, 4),
        ("all_reduce", "data", "loss", "forward", 1, "f32", 4, 2, 4),
        ("all_reduce", "tensor", "layers/mlp/down", "forward", 2, "bf16", 384, 4, 2),
        ("all_reduce", "tensor", "layers/mlp/up", "backward", 2, "bf16", 384, 4, 2),
    ]


def test_fsdp_by_tensor_over_2_by_4_moves_7300_bytes_of_payload():
    ledger = FSDP_TENSOR.predict(SHAPE, Axes.of({"fsdp": 2, "tensor": 4}))
    # Two layers: six gathers or scatters of 480 bytes each and two sums of 384; once 4 bytes of loss.
    assert ledger.totals().payload_bytes == 2 * (6 * 480 + 2 * 384) + 4 == 7300


def test_f32_doubles_all_but_the_loss():
    axes = Axes.of({"data": 2, "tensor": 4})
    halves, wholes = (DATA_TENSOR.predict(replace(SHAPE, dtype=dtype), axes).totals().payload_bytes for dtype in ("bf16", "f32"))
    assert wholes - 4 == 2 * (halves - 4)


def test_composition_does_not_depend_on_the_order():
    axes = Axes.of({"data": 2, "tensor": 4})
    assert _rows((TENSOR_PARALLEL | DATA_PARALLEL).predict(SHAPE, axes)) == _rows(DATA_TENSOR.predict(SHAPE, axes))


def test_17_tokens_do_not_split_over_8_ranks():
    with pytest.raises(Unusable, match="dim 'batch' of size 17 does not split over data=8; make it a multiple of 8"):
        DATA_PARALLEL.predict(replace(SHAPE, batch=17), Axes.of({"data": 8}))


def test_25_rows_do_not_split_over_8_ranks():
    with pytest.raises(Unusable, match="dim 'embed' of size 25 does not split over fsdp=8"):
        ZERO3.predict(replace(SHAPE, embed=25), Axes.of({"fsdp": 8}))


def test_a_mesh_without_the_axis_is_refused():
    with pytest.raises(Unusable, match="no axis 'fsdp' in the mesh"):
        ZERO3.predict(SHAPE, Axes.of({"data": 8}))
