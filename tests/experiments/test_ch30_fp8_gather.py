"""Chapter 30: what a matrix in 8 bits sends, by what theory asks for."""

import pytest

from lab.experiments.ch30_fp8_gather import EXPERIMENT
from lab.meshes.axes import Axes


@pytest.mark.parametrize("beside", [{}, {"data": 3}])
def test_beside_an_axis_of_copies_only_ranks_of_fsdp_count(beside):
    sizes, axes = EXPERIMENT.parameters, Axes.of({"fsdp": 4} | beside)
    found = EXPERIMENT.claims(sizes, axes, EXPERIMENT.predict(sizes, axes))
    assert {str(claim.verdict) for claim in found} == {"confirmed"}
    assert "a device sends 6,291,456 B of 4,194,304 numbers in bf16" in found[0].evidence
