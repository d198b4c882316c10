"""What each stage of a pipeline really sends, against a count of its tasks."""

from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial

import pytest

from lab.core.known import known
from lab.harness.decoder.step import SMALL
from lab.meshes.axes import Axes
from lab.programs.pipelines.prediction import predict
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.schedule import Work
from lab.programs.pipelines.taken import sent_by_axes, sent_by_stages
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero3 import ZERO3

SHAPE = PipelineShape(**asdict(replace(SMALL, layers=8, accumulation=4)))
MESH = Axes.parse("data=2,pipe=2,tensor=2")


def sent(strategy, shape: PipelineShape, axes: Axes = MESH) -> tuple[Fraction, ...]:
    return sent_by_stages(strategy, shape, axes, predict(strategy, shape, axes))


def test_a_layer_sends_once_for_each_task_and_not_in_each_tick():
    shape = replace(SHAPE, stage_layers="Et*3|t*5L")
    ledger, order = predict(TENSOR_PARALLEL, shape, MESH), shape.order(2)
    ticks = {known(t.executions) for t in ledger.transfers if t.scope == "forth"}.pop()
    (of_one,) = [t for t in ledger.transfers if t.scope == "forward/layers/mlp/leave"]
    assert known(of_one.executions) == ticks * 5
    alone = replace(ledger, transfers=(of_one,))
    forwards = [sum(task.work is Work.FORWARD for task in stage) for stage in order.orders]
    assert sent_by_stages(TENSOR_PARALLEL, shape, MESH, alone) == tuple(
        layers * tasks * of_one.wire_bytes for layers, tasks in zip((3, 5), forwards, strict=True)
    )


def times(scope: str, shape: PipelineShape) -> list[Fraction]:
    """[stages]: how often its devices send what tensor parallelism has in this scope."""
    ledger = predict(TENSOR_PARALLEL, shape, MESH)
    alone = replace(ledger, transfers=tuple(t for t in ledger.transfers if t.scope == scope))
    each = alone.transfers[0].wire_bytes
    return [total / each for total in sent_by_stages(TENSOR_PARALLEL, shape, MESH, alone)]


def test_ends_send_on_their_own_stages_and_messages_where_there_is_a_next():
    of = partial(times, shape=SHAPE)
    ticks = of("forth")[0]
    assert of("forward/embedding") == [4, 0]
    assert of("forward/loss/target") == [0, 4]
    assert (of("forth"), of("back")) == ([ticks, 0], [0, ticks])


def test_what_a_stage_sends_is_that_along_each_of_its_axes():
    strategy = DATA_PARALLEL | TENSOR_PARALLEL
    ledger = predict(strategy, SHAPE, MESH)
    along = sent_by_axes(strategy, SHAPE, MESH, ledger)
    (message,) = {t.payload_bytes for t in ledger.transfers if t.scope == "forth"}
    (ticks,) = {t.executions for t in ledger.transfers if t.scope == "forth"}
    assert along["pipe"] == (ticks * message, ticks * message) and along["data"][0] > along["pipe"][0]
    assert sent(strategy, SHAPE) == tuple(sum(stages) for stages in zip(*along.values(), strict=True))


def test_dense_layers_send_on_the_first_stage_the_second_prediction_on_the_last_and_lookups_on_both():
    of = partial(times, shape=replace(SHAPE, experts=4, dense_layers=2, mtp=1, stage_layers="Et*3|t*5mL"))
    assert of("forward/dense/mlp/leave") == [4 * 2, 0]
    assert of("forward/layers/mlp/leave") == [4 * 1, 4 * 5]
    assert of("forward/mtp/mlp/leave") == [0, 4]
    assert of("forward/embedding") == [4, 4]


def test_in_lockstep_stages_send_as_much_in_vain():
    shape, axes = replace(SHAPE, schedule="gpipe", length=64), Axes.parse("pipe=2,context=2,tensor=2")
    first, last = sent(RING, shape, axes)
    at_most = sum(known(t.executions) * t.wire_bytes for t in predict(RING, shape, axes).transfers)
    assert max(first, last) < at_most
    # Five ticks of each job for four micro-batches.
    in_layers = [t for t in predict(RING, shape, axes).transfers if "/layers/attention/core" in t.scope]
    alone = replace(predict(RING, shape, axes), transfers=tuple(t for t in in_layers if t.scope.startswith("forward/")))
    once = sum(known(t.executions) * t.wire_bytes for t in alone.transfers)
    assert sent_by_stages(RING, shape, axes, alone) == (once / 2, once / 2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_no_stage_sends_more_than_all_branches_in_every_tick(schedule):
    strategy, shape = DATA_PARALLEL | TENSOR_PARALLEL, replace(SHAPE, schedule=schedule, tied=True)
    at_most = sum(known(t.executions) * t.wire_bytes for t in predict(strategy, shape, MESH).transfers)
    assert all(0 < each < at_most for each in sent(strategy, shape))


def test_a_tied_table_is_gathered_at_both_ends():
    shape, axes = replace(SHAPE, tied=True), Axes.parse("fsdp=4,pipe=2")
    ledger = predict(ZERO3, shape, axes)
    alone = replace(ledger, transfers=tuple(t for t in ledger.transfers if t.scope == "forward/embedding"))
    (gathered,) = alone.transfers
    assert sent_by_stages(ZERO3, shape, axes, alone) == (4 * gathered.wire_bytes, 4 * gathered.wire_bytes)
