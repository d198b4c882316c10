"""Every layout in every style on a CPU, and in bf16 on GPUs and TPUs: no finding.

Collected only by name: `pytest tests/lab/diagnosis/every_layout.py`, 54 steps of some seconds.
"""

import pytest

from lab.meshes import plugins
from lab.programs.models.shape import DecoderShape
from tests.lab.diagnosis.diagnosing import kinds
from tests.lab.diagnosis.test_controls import diagnosed_step
from tests.lab.programs.strategies.layouts import LAYOUTS, SHAPE, STYLES

pytestmark = pytest.mark.compiles

PLACES = {"cpu:8": SHAPE, "gpu:h100:1x8": DecoderShape(), "tpu:v5e:2x4": DecoderShape()}


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_finding(layout, style, target):
    platform = target.partition(":")[0]
    if platform != "cpu" and not plugins.installed(platform):
        pytest.skip(f"nothing compiles for {platform}: its plugin is not installed")
    assert kinds(diagnosed_step(layout, style, target, PLACES[target])) == []
