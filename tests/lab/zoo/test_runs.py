"""Published runs: their degrees fit their machines, models and batches."""

import pytest

from lab.meshes.axes import AXIS_ORDER, PIPE, Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.zoo import model, published_run, run_names


@pytest.mark.parametrize("name", run_names())
def test_a_run_has_a_machine_of_its_size_and_a_batch_that_its_ranks_share(name):
    run = published_run(name)
    target, axes = parse_target(run.target), Axes.parse(run.mesh)
    assert target.devices == axes.size
    assert set(axes.names) <= set(AXIS_ORDER)
    ranks = axes.size // axes.shape.get(PIPE, 1) // axes.shape.get("tensor", 1) // axes.shape.get("context", 1)
    assert run.batch % (ranks * run.accumulation) == 0
    assert run.source and run.differs
    assert (run.step_s is None) != (run.mfu is None)


def test_steps_of_llama3_have_16_million_tokens():
    runs = [published_run(name) for name in run_names() if name.startswith("llama3-")]
    assert {run.batch * run.length for run in runs} == {16_777_216}


def test_the_published_mfu_is_the_published_rate_over_the_peak():
    rates = {"llama3-405b-8k-8192": 430, "llama3-405b-8k-16384": 400, "llama3-405b-128k-16384": 380}
    peak = parse_target("gpu:h100:1x8").hardware.flops_per_s["bf16"].value / 1e12
    assert {name: round(rate / peak, 2) for name, rate in rates.items()} == pytest.approx(
        {name: published_run(name).mfu for name in rates}, abs=0.011
    )


def test_every_model_is_one_of_the_zoo_and_an_unknown_run_is_refused():
    assert all(model(published_run(name).model).layers > 0 for name in run_names())
    with pytest.raises(UsageError, match="no published run 'mlperf5-405b-513'; did you mean mlperf5-405b-512"):
        published_run("mlperf5-405b-513")
