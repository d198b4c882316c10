from dataclasses import replace

import pytest

from lab.harness.fit.levers import Change, Lever, changed, levers
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.models.shape import DecoderShape

COMPOSED = load("ch24_3d")
HYBRID = load("ch24_hybrid")


def found(experiment, mesh, **sizes):
    parameters = replace(experiment.parameters, **sizes)
    every = levers(experiment, parameters, Axes.parse(mesh))
    return {lever: [str(change) for change in some] for lever, some in every.items()}


def test_remat_goes_on_to_policies_that_keep_less():
    assert found(COMPOSED, "data=2", remat="dots")[Lever.REMAT] == ["remat=names", "remat=full", "remat=offload"]
    assert found(COMPOSED, "data=2", remat="offload")[Lever.REMAT] == []


def test_micro_batches_divide_the_batch():
    every = found(COMPOSED, "data=2", batch=48, accumulation=4)[Lever.MICRO_BATCHES]
    assert every == ["accumulation=8", "accumulation=12", "accumulation=16", "accumulation=24", "accumulation=48"]


def test_state_is_sharded_by_zero_1_and_2_and_by_replicas_that_become_shards():
    assert found(COMPOSED, "data=4,pipe=2,tensor=2")[Lever.SHARDING] == [
        "zero=1",
        "zero=2",
        "mesh data=2,fsdp=2,pipe=2,tensor=2",
        "mesh fsdp=4,pipe=2,tensor=2",
    ]


def test_attention_goes_by_tiles_where_it_is_a_parameter_and_no_ring_goes_by_pieces():
    assert found(COMPOSED, "data=4")[Lever.ATTENTION] == ["attention=tiles"]
    assert found(COMPOSED, "data=4", attention="tiles")[Lever.ATTENTION] == []
    assert found(COMPOSED, "context=4")[Lever.ATTENTION] == found(HYBRID, "data=2,fsdp=2")[Lever.ATTENTION] == []


def test_zero_2_without_replicas_becomes_zero_0():
    of_zero_2 = found(COMPOSED, "data=2,tensor=2", zero=2)[Lever.SHARDING]
    assert of_zero_2 == ["mesh fsdp=2,tensor=2 zero=0"]


def test_ranks_of_experts_are_replicas_of_all_else():
    assert found(COMPOSED, "expert=4,tensor=2", experts=8)[Lever.SHARDING] == ["zero=1", "zero=2"]
    both = found(COMPOSED, "data=2,expert=4", experts=8, zero=2)[Lever.SHARDING]
    assert both == ["mesh fsdp=2,expert=4"]


def test_hybrid_sharding_moves_devices_between_its_two_axes():
    assert found(HYBRID, "data=4,fsdp=2")[Lever.SHARDING] == ["mesh data=2,fsdp=4", "mesh data=1,fsdp=8"]


def test_a_strategy_that_is_the_experiment_shards_no_further():
    assert found(load("ch20_zero1"), "data=8")[Lever.SHARDING] == []


def test_a_program_that_is_no_decoder_has_no_lever():
    kernel = load("ch11_primitives")
    assert not any(levers(kernel, kernel.parameters, Axes.of({"data": 8})).values())


def test_changes_are_the_settings_of_a_run():
    axes, changes = (
        Axes.parse("fsdp=4"),
        (Change(Lever.REMAT, (("remat", "full"),)), Change(Lever.MICRO_BATCHES, (("accumulation", "2"),))),
    )
    sizes, mesh = changed(DecoderShape(remat="none"), axes, changes)
    assert (sizes.remat, sizes.accumulation, mesh) == ("full", 2, axes)
    other = Change(Lever.SHARDING, axes=Axes.parse("data=2,fsdp=2"))
    assert changed(DecoderShape(), axes, (other,)) == (DecoderShape(), other.axes)
    with pytest.raises(UsageError, match="not divisible"):
        changed(DecoderShape(batch=3), axes, changes)
