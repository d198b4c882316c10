"""What changes cost by theory."""

from dataclasses import replace

import pytest

from lab.book.sharding import zero_volume_bytes
from lab.harness.fit.cost import cost
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.hardware import chip
from lab.meshes.targets import parse_target
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.flops import Cause, flops
from lab.programs.models.recomputed import recomputed_flops
from lab.programs.models.shape import REMATS, DecoderShape

ZERO3 = load("ch20_zero3")
HOSTS = parse_target("gpu:h100:2x8")


def of(parameters, mesh="fsdp=16", target=HOSTS, experiment=ZERO3):
    axes = Axes.parse(mesh)
    return cost(parameters, axes, experiment.predict(parameters, axes), target)


@pytest.mark.parametrize("remat", REMATS)
def test_recomputed_products_are_those_of_the_composed_step(remat):
    shape = DecoderShape(remat=remat)
    causes = flops(Configuration(data=16, attention="ring", remat=remat), shape)
    assert recomputed_flops(shape) == 16 * (causes[Cause.WEIGHTS_AGAIN] + causes[Cause.ATTENTION_AGAIN])


def test_of_experts_only_slots_are_recomputed():
    dense = DecoderShape(remat="full", mlp=1024)
    experts = replace(dense, experts=8, top_k=2, capacity_factor=1.0)
    two_mlps = replace(dense, mlp=2048)
    assert recomputed_flops(experts) == recomputed_flops(two_mlps) > recomputed_flops(dense)


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
