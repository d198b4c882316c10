"""Steps of three to five parallelisms on one mesh, and published runs at their true size."""

import pytest

from lab.harness.registry import load
from lab.harness.run import run
from lab.harness.suite import placed
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.settle import Verdict
from lab.zoo import published_run
from tests.experiments.test_settlement import left_over
from tests.long_tests import long
from tests.small_runs import small_run

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed"),
]


@pytest.mark.parametrize("name", [pytest.param("ch24_3d", marks=long), "ch25_4d", pytest.param("ch25_5d", marks=long)])
def test_three_steps_on_8_cpu_devices_are_one_devices_and_send_what_theory_says(name):
    result = small_run(load(name), "explicit")
    assert (result.failure, left_over(result), result.verdict) == (None, [], Verdict.EXACT)
    assert result.numerics.worst_relative_error <= result.numerics.tolerance


@pytest.mark.parametrize("name", ["ch24_3d", "ch25_4d", "ch25_5d"])
@long
def test_several_parallelisms_settle_on_gpus(name):
    experiment = load(name)
    result = run(experiment, target=parse_target(experiment.targets[0]), style="explicit")
    assert (left_over(result), result.verdict) == ([], Verdict.EXACT)
    assert [claim.id for claim in result.claims if claim.verdict != "confirmed"] == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ch34_llama3_405b", {}),
        pytest.param("ch34_llama3_405b", {"row": "llama3-405b-8k-8192"}, marks=long),
        pytest.param("ch34_llama3_405b", {"row": "llama3-405b-128k-16384"}, marks=long),
        pytest.param("ch34_mlperf_405b", {}, marks=long),
        pytest.param("ch34_mlperf_405b", {"devices": "2048"}, marks=long),
        pytest.param("ch34_published", {}, marks=long),
        pytest.param("ch35_deepseek_v3", {}, marks=long),
    ],
)
def test_published_runs_settle_to_the_byte_on_their_own_meshes(name, settings):
    (one,) = placed([load(name)], (), (), settings)
    result = run(one.experiment, target=one.target, style=one.style, axes=one.axes)
    assert (left_over(result), result.verdict) == ([], Verdict.EXACT)
    assert result.published == published_run(one.experiment.parameters.row)
    held, memory = result.held, result.measured.memory
    assert held["arguments"] == memory.arguments
    sent = result.composition.sent_by_stages
    assert max(sent, default=0) <= sum(t.executions * t.wire_bytes for t in result.measured.transfers)


def test_uneven_stages_settle_where_a_stage_has_no_layers_left():
    experiment = load("ch25_4d")
    shape = experiment.numeric_parameters.choosing(stage_layers="Et*3|t*2L")
    result = run(
        experiment,
        target=parse_target("gpu:h100:1x8"),
        style="explicit",
        axes=Axes.parse("data=2,pipe=2,tensor=2"),
        parameters=shape,
    )
    assert (left_over(result), result.verdict) == ([], Verdict.EXACT)


@long
def test_three_steps_of_a_pipeline_with_dense_layers_a_second_prediction_and_zero1_are_one_devices():
    experiment = load("ch25_5d")
    shape = experiment.numeric_parameters.choosing(
        experts=8, dense_layers=2, stage_layers="Et*3|t*4mL", zero=1, schedule="1f1b"
    )
    result = run(
        experiment,
        target=parse_target("cpu:8"),
        style="explicit",
        axes=Axes.parse("data=2,pipe=2,expert=2"),
        parameters=shape,
    )
    assert (left_over(result), result.verdict) == ([], Verdict.EXACT)
    assert "weights in use" in result.numerics.compared
    assert result.numerics.worst_relative_error <= result.numerics.tolerance
