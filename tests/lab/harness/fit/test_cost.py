"""What changes cost by theory."""

from dataclasses import replace

import pytest

from lab.book.sharding import zero_volume_bytes
from lab.harness.decoder.composed import ComposedShape, configuration
from lab.harness.fit.cost import cost, recomputed_flops
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.hardware import chip
from lab.meshes.targets import parse_target
from lab.programs.composed.flops import flops
from lab.programs.composed.step import sized
from lab.programs.models.shape import REMATS, DecoderShape

ZERO3 = load("ch20_zero3")
HOSTS = parse_target("gpu:h100:2x8")


def of(parameters, mesh="fsdp=16", target=HOSTS, experiment=ZERO3):
    axes = Axes.parse(mesh)
    return cost(parameters, axes, experiment.predict(parameters, axes), experiment.host_bytes(parameters, axes), target)


@pytest.mark.parametrize("mesh", ["data=4,tensor=2", "fsdp=2,expert=4", "context=8", "data=2,hosts=4"])
@pytest.mark.parametrize("remat", REMATS)
def test_recomputed_products_are_what_a_policy_adds_to_the_step(remat, mesh):
    axes = Axes.parse(mesh)
    experts = {"experts": 8, "capacity_factor": 2.0} if "expert" in axes.names else {}
    shape = ComposedShape(remat=remat, attention="ring", accumulation=2, **experts)
    known = Axes.parse(mesh.partition(",hosts")[0])
    more, none = (step_flops(one, known) for one in (shape, replace(shape, remat="none")))
    of_layout = DecoderShape(remat=remat, accumulation=2, **experts)
    kept = replace(of_layout, remat="none")
    assert recomputed_flops(of_layout, axes) - recomputed_flops(kept, axes) == (more - none) * known.size // axes.size
    if known == axes:
        assert recomputed_flops(shape, axes) == recomputed_flops(of_layout, axes)


def step_flops(shape, axes):
    """Of the mean stage."""
    of = configuration(shape, axes)
    totals = flops(of, sized(of, shape)).totals
    return sum(totals) / len(totals)


def test_tiles_make_scores_once_more_in_a_step_that_recomputes_nothing():
    axes, whole = Axes.parse("data=4,tensor=2"), ComposedShape(remat="none")
    tiles = replace(whole, attention="tiles")
    scores = 2 * 8 * 512 * 512 * 8 * 128 * 4  # Of 8 sequences and 8 heads a device, in 4 layers.
    assert (recomputed_flops(whole, axes), recomputed_flops(tiles, axes)) == (0, scores)


def test_stages_of_a_pipeline_recompute_their_own_layers():
    axes, shape = Axes.parse("data=2,pipe=2,tensor=2"), ComposedShape(layers=8, accumulation=4, remat="full")
    more = step_flops(shape, axes) - step_flops(replace(shape, remat="none"), axes)
    assert recomputed_flops(shape, axes) == more > 0


def test_a_second_micro_batch_under_zero_3_gathers_the_weights_again():
    once, twice = (of(DecoderShape(accumulation=many)) for many in (1, 2))
    assert twice.recomputed_flops == once.recomputed_flops
    shape = DecoderShape()
    gathers = zero_volume_bytes(shape.layer_matrices, 2, 16, 3, 2) - zero_volume_bytes(
        shape.layer_matrices, 2, 16, 3, 1
    )
    assert twice.wire_bytes - once.wire_bytes > gathers > 0 and twice.seconds > once.seconds


def test_what_crosses_hosts_takes_as_long_as_the_network_lets_it():
    shape, h100 = DecoderShape(remat="none"), chip("h100")
    apart = of(shape)
    assert apart.recomputed_flops == 0
    assert apart.seconds == pytest.approx(float(apart.wire_bytes) / h100.slow.value)
    inside = of(shape, "fsdp=8", parse_target("gpu:h100:1x8"))
    assert inside.seconds == pytest.approx(float(inside.wire_bytes) / h100.fast.value)


def test_recomputing_takes_its_flops_at_the_rate_of_the_dtype_beside_the_wire():
    none, full = (of(DecoderShape(remat=remat)) for remat in ("names", "full"))
    more = full - none
    assert more.wire_bytes == 0 and more.host_bytes == 0
    assert more.seconds == pytest.approx(more.recomputed_flops / chip("h100").flops_per_s["bf16"].value)


def test_inputs_on_the_host_cross_its_link_twice_a_micro_batch_and_take_as_long_as_the_network_would():
    shape = DecoderShape(remat="offload", accumulation=2)
    more = of(shape) - of(replace(shape, remat="full"))
    a_layer = shape.micro_batch // 16 * shape.length * shape.embed * 2
    assert more.host_bytes == 2 * 2 * shape.layers * a_layer
    assert (more.recomputed_flops, more.wire_bytes) == (0, 0)
    assert more.seconds == pytest.approx(more.host_bytes / chip("h100").slow.value)


def test_a_stage_of_a_pipeline_sends_its_own_layers_inputs_to_the_host():
    axes, shape = Axes.parse("data=2,pipe=2,tensor=4"), ComposedShape(layers=8, accumulation=8, remat="offload")
    a_layer = shape.micro_batch // 2 * shape.length // 4 * shape.embed * 2
    assert load("ch24_3d").host_bytes(shape, axes) == 2 * 8 * 8 // 2 * a_layer
