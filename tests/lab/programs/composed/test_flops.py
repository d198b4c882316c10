"""FLOPs of a step by cause, by hand and as compiled."""

from dataclasses import asdict, replace

import pytest

from lab.harness.registry import load
from lab.harness.run import run
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.flops import Cause, flops
from lab.programs.models.shape import DecoderShape
from tests.long_tests import long

MODEL = DecoderShape(
    layers=3, batch=32, length=1024, embed=512, kv_heads=4, queries=2, head_dim=64, mlp=1408, vocab=4096
)


def test_of_dense_attention_by_hand():
    tokens, layer, head = 32 * 1024 // 8, 512 * 64 * 2 * (8 + 4) + 3 * 512 * 1408, 512 * 4096
    found = flops(Configuration(fsdp=8), replace(MODEL, remat="full"))
    one = 2 * tokens * 1024 * 8 * 64 * 3
    assert found == {
        Cause.WEIGHTS: 6 * tokens * (3 * layer + head),
        Cause.WEIGHTS_AGAIN: 2 * tokens * 3 * (layer - 512 * 1408),
        Cause.ATTENTION: 6 * one,
        Cause.ATTENTION_AGAIN: 2 * one,
    }


def test_what_is_not_derived_is_not_told():
    assert flops(Configuration(pipe=2, micro_batches=2), MODEL) is None
    assert flops(Configuration(context=2), MODEL) is None
    assert flops(Configuration(data=2), replace(MODEL, experts=4)) is None


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@pytest.mark.parametrize(
    "choices",
    [
        {"remat": "names", "attention": "tiles", "activation": "relu2"},
        *(
            pytest.param({"remat": remat, "attention": attention}, marks=long)
            for remat in ("full", "none", "selective", "dots")
            for attention in ("tiles", "zigzag")
        ),
        pytest.param({"remat": "full", "attention": "tiles", "length": 512}, marks=long),
    ],
    ids=str,
)
def test_a_compiled_step_computes_what_theory_says_to_the_operation(choices):
    experiment = load("ch24_3d")
    shape = replace(experiment.parameters, **asdict(MODEL) | {"accumulation": 2} | choices)
    axes = Axes.parse("fsdp=4,tensor=2")
    found = run(experiment, target=parse_target("gpu:h100:1x8"), style="explicit", axes=axes, parameters=shape)
    assert found.measured.flops == sum(found.composition.flops.values())
