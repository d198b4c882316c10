"""A configuration's mesh, strategy and sizes, and what it refuses."""

from dataclasses import replace

import pytest

from lab.attention import tiles
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.step import predict, sized
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import prediction
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero3 import ZERO3

MODEL = DecoderShape().shrunk(layers=8)


def test_axes_of_one_device_are_left_out_and_the_others_stand_in_their_order():
    found = Configuration(tensor=4, data=2, pipe=2)
    assert (found.axes, found.devices) == (Axes.parse("data=2,pipe=2,tensor=4"), 16)
    order = ("tensor", "pipe", "data", "fsdp", "context", "expert")
    assert replace(found, order=order).axes == Axes.parse("tensor=4,pipe=2,data=2")
    assert Configuration().axes == Axes.parse("data=1")


def test_each_axis_has_its_strategy():
    strategy = Configuration(fsdp=2, context=2, tensor=2, attention="ring").strategy
    axes = Axes.parse("fsdp=2,context=2,tensor=2")
    assert strategy.predict(MODEL, axes) == (ZERO3 | RING | SEQUENCE_PARALLEL).predict(MODEL, axes)


def test_a_pipeline_is_predicted_for_its_micro_batches_and_schedule():
    found = Configuration(
        data=2, pipe=2, tensor=2, sequence=False, micro_batches=4, schedule="gpipe", remat="none", dtype="f32"
    )
    shape = sized(found, MODEL)
    assert isinstance(shape, PipelineShape)
    assert (shape.accumulation, shape.schedule, shape.remat, shape.dtype) == (4, "gpipe", "none", "f32")
    assert predict(found, MODEL) == prediction.predict(DATA_PARALLEL | TENSOR_PARALLEL, shape, found.axes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": 0}, "data=0: expected 1 or more"),
        ({"zero": 3}, "zero=3: expected 0, 1 or 2; ZeRO-3 is the axis fsdp"),
        ({"zero": 1}, "zero=1 with data=1 and expert=1: there is nothing to shard over; set data, or zero=0"),
        ({"attention": "zigzags"}, "no attention over ranks 'zigzags'; did you mean zigzag?"),
        ({"order": ("data",)}, "order=data: expected each of data, fsdp, pipe, context, tensor, expert once"),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_line(wrong, message):
    with pytest.raises(UsageError) as refused:
        Configuration(**wrong)
    assert str(refused.value).startswith(message)


def test_without_stages_a_step_is_no_pipelines():
    model = PipelineShape(layers=8, chunks=2, schedule="interleaved")
    assert type(sized(Configuration(fsdp=8), model)) is DecoderShape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"chunks": 2}, "chunks=2 with pipe=1: there are no stages; set pipe, or leave it out"),
        ({"stage_layers": "Et*8L"}, "stage_layers=Et*8L with pipe=1: there are no stages; set pipe, or leave it out"),
    ],
)
def test_stages_without_a_pipeline_are_refused(sizes, message):
    with pytest.raises(UsageError) as refused:
        Configuration(data=8, **sizes)
    assert str(refused.value) == message


def test_tiles_are_attention_without_a_context_axis():
    assert Configuration(fsdp=8, attention="tiles").strategy.hooks.attend is tiles.attend
    with pytest.raises(UsageError, match="^no attention over ranks 'tiles'"):
        Configuration(context=2, attention="tiles")


@pytest.mark.parametrize("zero", [1, 2])
def test_ranks_that_share_experts_shard_the_state_of_all_else_as_replicas_in_the_meshs_order(zero):
    chosen = Configuration(data=2, expert=4, zero=zero, order=("expert", "data", "fsdp", "pipe", "context", "tensor"))
    matrix, expert = ("embed", "mlp"), ("experts", "expert_embed", "mlp")
    assert chosen.strategy.scattered_over(matrix) == {"data", "expert"} > chosen.strategy.scattered_over(expert)
    assert chosen.replicas == ("expert", "data")
    assert chosen.strategy.summed_apart(expert) == chosen.strategy.summed_apart(matrix) == frozenset()
    assert Configuration(data=8, zero=zero).strategy.scattered_over(matrix) == {"data"}


@pytest.mark.parametrize("zero", [1, 2])
def test_where_every_expert_is_on_one_rank_the_state_of_all_else_is_sharded_over_their_ranks(zero):
    strategy = Configuration(expert=4, tensor=2, zero=zero).strategy
    matrix, expert = ("embed", "mlp"), ("experts", "expert_embed", "mlp")
    assert (strategy.scattered_over(matrix), strategy.scattered_over(expert)) == ({"expert"}, set())
    assert strategy.summed_apart(matrix) == strategy.summed_apart(expert) == frozenset()
