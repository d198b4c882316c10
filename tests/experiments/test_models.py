"""Layers of models as they were published, in small: numbers, ledger and claims on 8 fake CPU devices."""

from dataclasses import replace
from typing import Any

import pytest

from lab.harness.registry import load
from lab.settle import Verdict
from tests.experiments.test_settlement import left_over
from tests.long_tests import long
from tests.small_runs import small_run

pytestmark = pytest.mark.compiles

DENSE_FIRST = {"layers": 5, "dense_layers": 2, "dense_mlp": 40, "shared": 1, "router": "sigmoid_bias"}
LATENT = {"queries": 1, "query_rank": 24, "kv_rank": 16, "rope_dim": 6}
MTP = {"mtp": 1}
NODES = {"nodes": 4, "node_limit": 2, "top_k": 4, "routed_scale": 2.5}
QWEN3, NEMOTRON4 = {"normed_heads": True}, {"activation": "relu2"}
RUNS: list[Any] = [
    ("ch24_fsdp_tensor_parallel", "explicit", QWEN3 | NEMOTRON4),
    ("ch18_fsdp_experts", "explicit", DENSE_FIRST),
    pytest.param("ch24_fsdp_tensor_parallel", "explicit", LATENT, marks=long),
    pytest.param("ch17_sequence_parallel", "explicit", MTP, marks=long),
    pytest.param("ch20_zero3", "declared", MTP, marks=long),
    pytest.param("ch18_fsdp_experts", "explicit", DENSE_FIRST | MTP, marks=long),
    pytest.param("ch17_sequence_parallel", "declared", LATENT, marks=long),
    pytest.param("ch17_sequence_parallel", "typed", LATENT, marks=long),
    pytest.param("ch17_zigzag", "explicit", LATENT, marks=long),
    pytest.param("ch18_fsdp_experts", "explicit", LATENT | DENSE_FIRST | NODES, marks=long),
    pytest.param("ch15_tensor_parallel", "declared", QWEN3, marks=long),
    pytest.param("ch17_sequence_parallel", "typed", QWEN3 | NEMOTRON4, marks=long),
    pytest.param("ch18_expert_parallel", "explicit", QWEN3 | {"activation": "gelu", "shared": 1}, marks=long),
    pytest.param("ch18_dropless_step", "explicit", NEMOTRON4, marks=long),
    pytest.param("ch20_zero2", "explicit", QWEN3 | NEMOTRON4, marks=long),
]


@pytest.mark.parametrize(("name", "style", "sizes"), RUNS)
def test_f32_on_8_cpu_devices_computes_and_sends_what_theory_says(name: str, style: str, sizes: dict[str, Any]):
    experiment = load(name)
    parameters = replace(experiment.numeric_parameters, **sizes)
    # Numbers are those of these sizes, too.
    experiment = replace(experiment, parameters=parameters, numeric_parameters=parameters)
    result = small_run(experiment, style, parameters=parameters)
    assert (result.failure, left_over(result)) == (None, [])
    assert result.numerics.worst_relative_error <= result.numerics.tolerance
    assert result.verdict is Verdict.EXACT or (style != "explicit" and result.verdict is Verdict.EXPLAINED)
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]
