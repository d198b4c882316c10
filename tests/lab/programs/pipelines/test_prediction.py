"""What a pipelined step is predicted to send once, after its last tick."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind
from lab.meshes.axes import Axes
from lab.programs.pipelines.prediction import predict
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2

SHAPE = PipelineShape(
    layers=4, batch=16, length=8, embed=8, kv_heads=2, head_dim=4, mlp=16, vocab=32, dtype="bf16", accumulation=4
)


def test_no_stage_sums_what_another_has_room_for_but_of_what_joins_two_predictions_all_have_copies():
    shape = replace(SHAPE, layers=6, experts=4, dense_layers=2, mtp=1, stage_layers="Et*2|t*4mL")
    once = [t for t in predict(DATA_PARALLEL, shape, Axes.parse("pipe=2,data=2")).transfers if t.executions == 1]
    sums = {t.scope: (t.axes, t.payload_bytes) for t in once if t.kind is Kind.ALL_REDUCE}
    # Two dense layers of 3 experts' width, all that one chunk has room for of the others, and one layer.
    assert sums["dense/mlp/up"] == (("data",), 2 * 8 * (2 * 16) * 4)
    assert sums["layers/mlp/up"] == (("data",), 4 * (4 * 8 * 16) * 4)
    assert sums["mtp/mlp/up"] == (("data",), 4 * 8 * 16 * 4)
    assert sums["join/projection"] == (("pipe", "data"), 16 * 8 * 4)


@pytest.mark.parametrize(
    ("strategy", "scatters"),
    [
        # Two layers of 8 x 16 in float32, after all ticks.
        (ZERO1, [("layers/mlp/up", 1, 2 * 8 * 16 * 4)]),
        # Each layer's in the dtype of the products, in every one of 2 (4 + 2 - 1) ticks.
        (ZERO2, [("backward/layers/mlp/up", 2 * 10, 8 * 16 * 2)]),
    ],
    ids=["zero1", "zero2"],
)
def test_zero1_scatters_a_gradient_once_a_step_and_zero2_in_every_backward_alone(strategy, scatters):
    ledger = predict(strategy, SHAPE, Axes.parse("pipe=2,data=2"))
    assert scatters == [
        (term.scope, term.executions, term.payload_bytes)
        for term in ledger.transfers
        if term.kind is Kind.REDUCE_SCATTER and term.scope.endswith("mlp/up")
    ]
