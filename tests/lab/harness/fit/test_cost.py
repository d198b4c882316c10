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
from lab.programs.composed.flops import flops, idle_flops
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
    """Of the busiest stage."""
    of = configuration(shape, axes)
    return max(flops(of, sized(of, shape)).totals)


def test_tiles_make_scores_once_more_in_a_step_that_recomputes_nothing():
    axes, whole = Axes.parse("data=4,tensor=2"), ComposedShape(remat="none")
    tiles = replace(whole, attention="tiles")
    scores = 2 * 8 * 512 * 512 * 8 * 128 * 4  # Of 8 sequences and 8 heads a device, in 4 layers.
    assert (recomputed_flops(whole, axes), recomputed_flops(tiles, axes)) == (0, scores)


def test_stages_of_a_pipeline_recompute_their_own_layers():
    axes, shape = Axes.parse("data=2,pipe=2,tensor=2"), ComposedShape(layers=8, accumulation=4, remat="full")
    none = replace(shape, remat="none")
    more = step_flops(shape, axes) - step_flops(none, axes)
    assert recomputed_flops(shape, axes) - recomputed_flops(none, axes) == more > 0


PIPELINE = ComposedShape(layers=8, batch=64, accumulation=4, remat="full")


def test_more_micro_batches_of_a_pipeline_compute_as_much_send_fewer_messages_and_wait_less():
    """The second stage, which has the head, waits for the first stage's micro-batch forward and, at the end, back."""
    axes, target = Axes.parse("pipe=2,tensor=4"), parse_target("gpu:h100:1x8")
    four, eight = (of(replace(PIPELINE, accumulation=m), str(axes), target, load("ch24_3d")) for m in (4, 8))
    assert eight.recomputed_flops == four.recomputed_flops > 0
    of_all = 64 * 512 // 4 * PIPELINE.embed * 2  # In m + 1 ticks of each pass, an m-th of the tokens.
    fewer = 2 * (4 + 1) * of_all // 4 - 2 * (8 + 1) * of_all // 8
    assert four.wire_bytes - eight.wire_bytes == fewer
    how = configuration(PIPELINE, axes)
    first, last = flops(how, sized(how, PIPELINE)).totals
    assert last > first
    h100 = chip("h100")
    waits = float(first) * (1 / 4 - 1 / 8) / h100.flops_per_s["bf16"].value
    assert four.seconds - eight.seconds == pytest.approx(waits + fewer / h100.fast.value)


def test_in_lockstep_a_stage_computes_in_vain_what_it_would_wait():
    """Five turns of each job for four micro-batches, nine for eight."""
    axes, shape = Axes.parse("pipe=2,context=2"), replace(PIPELINE, schedule="gpipe")
    four, eight = (recomputed_flops(replace(shape, accumulation=m), axes) for m in (4, 8))
    how = configuration(shape, axes)
    assert idle_flops(how, sized(how, shape)) == 0
    assert four - eight == step_flops(shape, axes) / 5 / 2


def test_a_pipeline_sends_what_its_busiest_stage_does_and_not_as_much_as_if_every_branch_ran():
    axes, experiment = Axes.parse("pipe=2,tensor=4"), load("ch24_3d")
    found = of(PIPELINE, str(axes), parse_target("gpu:h100:1x8"), experiment)
    assert found.wire_bytes == max(experiment.composition(PIPELINE, axes, None).sent_by_stages)
    assert found.wire_bytes < experiment.predict(PIPELINE, axes).totals().wire_bytes / 2


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
