"""Every experiment: numbers, ledger and claims at small sizes on fake CPU devices; ledger and claims at full size ahead of time."""

import pytest

from lab.experiment import STYLES, ClaimVerdict, load, names
from lab.models.mlp import SMALL, MlpShape
from lab.run import Result, run
from lab.settle import Verdict
from meshes import plugins
from meshes.targets import parse_target

# The experiments of whole train steps, in both styles.
STEPS = [name for name in names() if isinstance(load(name).parameters, MlpShape)]


def _run(name: str, style: str, target: str, parameters: MlpShape) -> Result:
    return run(load(name), target=parse_target(target), style=style, parameters=parameters)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", STEPS)
def test_f32_on_8_cpu_devices_computes_and_sends_what_theory_says(name, style):
    result = _run(name, style, "cpu:8", SMALL)
    assert result.numerics.worst_relative_error <= result.numerics.tolerance
    scatters = style == "declared" and name in ("ch20_zero3", "ch24_fsdp_tensor_parallel")
    assert result.verdict is (Verdict.EXPLAINED if scatters else Verdict.EXACT)
    assert ClaimVerdict.REFUTED not in {claim.verdict for claim in result.claims}


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", STEPS)
def test_two_hosts_of_8_gpus_send_exactly_what_theory_says(name, style):
    result = _run(name, style, "gpu:h100:2x8", MlpShape())
    assert result.verdict is Verdict.EXACT
    assert {claim.verdict for claim in result.claims} == {ClaimVerdict.CONFIRMED}


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
@pytest.mark.parametrize("name", ["ch20_zero3", "ch24_fsdp_tensor_parallel"])
def test_16_tpus_send_what_theory_says_but_for_scatters_over_the_whole_slice(name):
    result = _run(name, "explicit", "tpu:v5p:2x2x4", MlpShape())
    assert result.verdict is (Verdict.ATTRIBUTED if name == "ch20_zero3" else Verdict.EXACT)
