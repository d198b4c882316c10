"""Which interventions a step could take."""

from dataclasses import replace

from lab.diagnosis.remedy import PartitionableKeys, ShardArgument
from lab.experiments.ch30_fp8_step import EXPERIMENT as NARROW
from lab.frontier.intervention import Lever
from lab.frontier.step import Step, interventions, of_parameters
from lab.meshes.axes import Axes
from lab.programs.models.shape import DecoderShape
from tests.lab.frontier.test_frontier import outcome

STEP = Step(outcome(1.0, 900), frozenset(), (), ())


def orders(axes: Axes | None) -> list[str]:
    return [str(one.mesh) for one in interventions(STEP, axes, ()) if one.lever is Lever.AXIS_ORDER]


def test_axes_of_a_mesh_are_tried_in_every_other_order_and_those_of_one_device_stay_at_the_end():
    assert orders(Axes.of({"data": 2, "fsdp": 1, "tensor": 4})) == ["tensor=4,data=2,fsdp=1"]
    assert len(set(orders(Axes.of({"data": 2, "fsdp": 2, "tensor": 2})))) == 5
    assert orders(Axes.of({"data": 8, "fsdp": 1})) == orders(None) == []


def test_keys_that_are_partitionable_draw_other_numbers_and_another_sharding_changes_nothing():
    step = replace(STEP, remedies=((PartitionableKeys(),), (ShardArgument("x", (("data",),)),)))
    told = {str(one): one.mathematics for one in interventions(step, None, ()) if one.lever is Lever.PLACEMENT}
    assert list(told.values()) == ["other random numbers", ""]


def test_of_a_decoder_remat_and_micro_batches_change_nothing_and_dtypes_the_numbers():
    found = {one.settings: one.mathematics for one in of_parameters(DecoderShape(batch=8, remat="full", dtype="bf16"))}
    assert {value for ((name, value),) in found if name == "accumulation"} == {"2", "4"}
    assert {name for ((name, _),), told in found.items() if not told} == {"remat", "accumulation"}
    assert (("remat", "full"),) not in found and found[("dtype", "f32"),].endswith("are f32")


def test_what_is_rounded_by_micro_batches_gives_other_numbers_with_more_of_them():
    step = replace(NARROW.parameters, batch=8)
    for change, is_other in (({}, False), ({"gradients": "int8"}, True), ({"products": "tensor"}, True)):
        told = {one.mathematics for one in of_parameters(replace(step, **change)) if "accumulation" in str(one)}
        assert told == ({"values are rounded micro-batch by micro-batch"} if is_other else {""})
