"""What is lost, and what machine remains."""

import pytest

from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.resilience.loss import Loss, holding, remaining


@pytest.mark.parametrize(
    ("loss", "target", "left"),
    [
        ("host", "gpu:h100:16x8", "gpu:h100:15x8"),
        ("rack", "gpu:h100:16x8", "gpu:h100:12x8"),
        ("device", "gpu:h100:16x8", "gpu:h100:15x8"),
        ("9", "gpu:h100:16x8", "gpu:h100:14x8"),
        ("1", "gpu:h100:1x8", "gpu:h100:1x7"),
        ("slice", "tpu:v5p:4x4x4*2", "tpu:v5p:4x4x4"),
        ("host", "tpu:v5p:4x4x4*2", "tpu:v5p:4x4x4"),
        ("host", "tpu:v5p:4x4x4", "tpu:v5p:2x4x4"),
        ("3", "cpu:8", "cpu:5"),
    ],
)
def test_whole_hosts_and_slices_remain(loss, target, left):
    whole = parse_target(target)
    assert str(remaining(whole, Loss.parse(loss).lost(whole))) == left


@pytest.mark.parametrize(
    ("loss", "target", "line"),
    [
        ("slice", "gpu:h100:16x8", "--lose slice: target gpu:h100:16x8 has none"),
        ("rack", "gpu:h100:4x8", "--lose rack: that is 32 of the 32 devices of gpu:h100:4x8; nothing remains"),
        ("host", "cpu:8", "--lose host: target cpu:8 has none"),
        ("hots", "cpu:8", "no loss 'hots'; did you mean host"),
        ("0", "cpu:8", "no loss '0'"),
    ],
)
def test_what_cannot_be_lost_is_refused(loss, target, line):
    with pytest.raises(UsageError, match=line):
        Loss.parse(loss).lost(parse_target(target))


def test_a_mesh_takes_whole_hosts():
    assert str(holding(parse_target("gpu:h100:16x8"), 64)) == "gpu:h100:8x8"
    assert holding(parse_target("gpu:h100:16x8"), 12) is None
    assert str(holding(parse_target("gpu:h100:16x8"), 4)) == "gpu:h100:1x4"
