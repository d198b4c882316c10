"""A published run on other numbers of devices: the batch stays, micro-batches follow."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind
from lab.harness import suite
from lab.harness.decoder.published import PublishedShape, placed
from lab.harness.registry import load
from lab.harness.settings import with_settings
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.zoo import published_run

MLPERF = load("ch34_mlperf_405b").parameters


def test_four_times_the_gpus_are_the_other_published_mesh():
    shape, target, axes = placed(replace(MLPERF, devices=2048), None)
    other = published_run("mlperf5-405b-2048")
    assert (str(target), axes, shape.accumulation) == (other.target, Axes.parse(other.mesh), other.accumulation)
    assert shape.batch == other.batch == 1152


def test_a_row_stands_for_all_sizes_and_a_target_for_the_number_of_devices():
    shape = with_settings(MLPERF, {"row": "llama3-405b-128k-16384", "remat": "names"})
    assert (shape.length, shape.batch, shape.remat, shape.row) == (131072, 128, "names", "llama3-405b-128k-16384")
    on_h200, target, axes = placed(MLPERF, parse_target("gpu:h200:128x8"))
    assert (str(target), axes["data"], on_h200.accumulation, on_h200.devices) == ("gpu:h200:128x8", 8, 144, 1024)


@pytest.mark.parametrize(("settings", "micro_batches"), [({}, 72), ({"accumulation": "144"}, 144)])
def test_a_named_row_on_more_devices_has_their_micro_batches_unless_others_are_set(settings, micro_batches):
    asked = {"row": "mlperf5-405b-512", "devices": "2048"} | settings
    (run,) = suite.placed([load("ch34_published")], (), (), asked)
    assert (run.experiment.parameters.accumulation, run.axes["data"]) == (micro_batches, 16)


def test_deepseek_v3_on_half_the_gpus_shards_all_but_experts_over_the_ranks_of_experts():
    experiment = load("ch35_deepseek_v3")
    shape, _, axes = placed(replace(experiment.parameters, devices=1024), None)
    scattered = {t.scope: t.axes for t in experiment.predict(shape, axes).transfers if t.kind == Kind.REDUCE_SCATTER}
    assert (axes["data"], scattered["layers/attention/out"]) == (1, ("expert",))
    assert "layers/mlp/up" not in scattered


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            replace(MLPERF, devices=520),
            "mlperf5-405b-512 on 520 devices: expected a multiple of 128, the other axes of data=4,pipe=8",
        ),
        (
            replace(MLPERF, devices=640),
            "mlperf5-405b-512: batch=1152 does not divide over data=5 with 1 sequences at once; make it a multiple of 5",
        ),
        (replace(MLPERF, devices=4), "devices=4: expected 512, or of GPUs a multiple of those of a host; name another"),
        (
            replace(PublishedShape.preset("maxtext-8b-v6e-8"), devices=16),
            "devices=16: expected 8, or of GPUs a multiple of those of a host; name another machine with --target",
        ),
    ],
)
def test_what_does_not_divide_is_refused_in_a_line(shape, message):
    with pytest.raises(UsageError) as refused:
        placed(shape, None)
    assert str(refused.value).startswith(message)
