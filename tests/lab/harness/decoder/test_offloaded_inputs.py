"""`remat=offload`: layers that are computed again from inputs that wait on the host."""

from dataclasses import replace

import pytest

from lab.harness.registry import load
from lab.harness.run import compiled_step, run
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

ZERO3 = load("ch20_zero3")
SMALL = ZERO3.parameters.shrunk(layers=6, batch=16, length=64, embed=256, head_dim=16, mlp=320, accumulation=2)
AWAY = replace(SMALL, dtype="bf16", remat="offload")


@pytest.mark.compiles
def test_inputs_lie_on_the_host_to_the_byte_and_one_of_them_on_the_device():
    target = parse_target("gpu:h100:1x2")
    axes = ZERO3.axes(target)
    away, full = (
        compiled_step(ZERO3, "declared", replace(AWAY, remat=remat), make_mesh(target, axes)).memory_analysis()
        for remat in ("offload", "full")
    )
    # Each of two micro-batches has 4 sequences on a device; inputs of 6 layers come and go.
    inputs = 6 * 4 * 64 * 256 * 2
    assert away.host_temp_size_in_bytes == inputs == ZERO3.host_bytes(AWAY, axes) // 4
    assert full.host_temp_size_in_bytes == ZERO3.host_bytes(replace(AWAY, remat="full"), axes) == 0
    here, there = (
        sum(ZERO3.memory("declared", replace(AWAY, remat=r), axes, None).values()) for r in ("full", "offload")
    )
    assert here - there == inputs * 5 // 6
    assert full.peak_memory_in_bytes - away.peak_memory_in_bytes == pytest.approx(inputs * 5 // 6, abs=64)


@pytest.mark.compiles
def test_a_step_with_inputs_on_the_host_is_that_of_one_device():
    """Of fake CPU devices, which have one memory, all the same."""
    found = run(
        ZERO3, target=parse_target("cpu:8"), style="explicit", parameters=replace(SMALL, layers=2, remat="offload")
    )
    assert found.numerics and found.numerics.worst_relative_error < found.numerics.tolerance
    assert found.failure is None and found.is_fine and str(found.verdict) in ("exact", "explained")
