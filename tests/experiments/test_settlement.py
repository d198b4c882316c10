"""Every experiment on a decoder's step: numbers, ledger and claims at small sizes on fake CPU devices; ledger and
claims at full size ahead of time."""

import pytest

from lab.harness.experiment import STYLES, Experiment
from lab.harness.registry import load, names
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes import plugins
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.settle import Status, Verdict
from tests.long_tests import long, long_but
from tests.small_runs import small_run

pytestmark = pytest.mark.compiles

STEPS = [name for name in names() if isinstance(load(name), Experiment) and type(load(name).parameters) is DecoderShape]
IN_STYLES = [(name, style) for name in STEPS for style in STYLES if style in load(name).styles]
# Numbers of the others stand in tests/lab/programs/strategies/test_experts.py and test_context_parallel.py.
ON_CPU = [
    each for each in IN_STYLES if each not in (("ch18_expert_parallel", "declared"), ("ch18_hierarchical", "explicit"))
]
ON_CPU = [
    each
    for each in ON_CPU
    if each not in ((f"ch17_{name}", "explicit") for name in ("ring_attention", "gathered_keys", "window", "ulysses"))
]
ON_GPU = [
    # Its tied table is looked at below.
    pytest.param("ch17_sequence_parallel", "declared", marks=long),
    ("ch17_zigzag", "explicit"),
    ("ch18_dropless_step", "explicit"),
    ("ch18_fsdp_experts", "declared"),
    # Rows go in two levels under ch35_node_limit, too.
    pytest.param("ch18_hierarchical", "explicit", marks=long),
    pytest.param("ch20_zero1", "declared", marks=long),
    ("ch20_zero2", "explicit"),
    ("ch24_hybrid", "declared"),
    ("ch24_llama3_405b", "declared"),
    ("ch35_node_limit", "explicit"),
]
"""Of what `lab verify` leaves to `lab verify --all`: each layout in one of its styles."""
EVERYDAY = {name: (name, style) for name, style in reversed(ON_CPU) if (name, style) not in ON_GPU}.values()
"""In one style each, another than on GPUs."""
ON_TPU = ["ch20_zero3", "ch24_fsdp_tensor_parallel"]


def result_of(name: str, style: str, target: str, parameters: DecoderShape) -> Result:
    return run(load(name), target=parse_target(target), style=style, parameters=parameters)


def at_common_sizes(parameters: DecoderShape) -> DecoderShape:
    """With what the experiment chooses otherwise than the decoder does by itself."""
    by_default = DecoderShape()
    chosen = {
        name: getattr(parameters, name)
        for name in ("experts", *DecoderShape.CHOICES)
        if getattr(parameters, name) != getattr(by_default, name)
    }
    return DecoderShape(**chosen)


def left_over(result: Result) -> list[str]:
    """What does not settle, in lines for people."""
    settled = result.settlement
    terms = [term for term in settled.terms if term.status in (Status.REFUTED, Status.MISSING)]
    return [f"{term.status} {term.predicted.scope}: {term.explanation}" for term in terms] + [
        f"unexplained {transfer}" for transfer in settled.unexplained
    ]


@pytest.mark.parametrize(("name", "style"), long_but(EVERYDAY, ON_CPU))
def test_f32_on_8_cpu_devices_computes_and_sends_what_theory_says(name, style):
    result = small_run(load(name), style)
    assert (result.failure, left_over(result)) == (None, [])
    assert result.numerics.worst_relative_error <= result.numerics.tolerance
    assert result.verdict is Verdict.EXACT or (style == "declared" and result.verdict is Verdict.EXPLAINED)
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@pytest.mark.parametrize(("name", "style"), ON_GPU)
def test_two_hosts_of_8_gpus_send_what_theory_says(name, style):
    result = result_of(name, style, "gpu:h100:2x8", at_common_sizes(load(name).parameters))
    assert (result.failure, left_over(result)) == (None, [])
    assert result.verdict in (Verdict.EXACT, Verdict.EXPLAINED)
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]


TIED = DecoderShape(
    layers=2, batch=16, length=64, embed=128, kv_heads=8, queries=1, head_dim=32, mlp=256, vocab=512, tied=True
)


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
@pytest.mark.parametrize("name", ["ch20_zero3", "ch17_sequence_parallel"])
def test_two_hosts_of_8_gpus_sum_two_gradients_of_a_tied_table_under_whatever_name(name):
    result = result_of(name, "declared", "gpu:h100:2x8", TIED)
    (table,) = (term for term in result.settlement.terms if term.predicted.provenance.uses == 2)
    assert (left_over(result), table.status, table.behaviours[0]) == ([], Status.EXPLAINED, "X4")
    assert sum(t.executions for t in table.measured) == 2
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
@pytest.mark.parametrize("name", ON_TPU)
def test_16_tpus_send_what_theory_says_and_what_the_catalogue_knows(name):
    result = result_of(name, "explicit", "tpu:v5p:2x2x4", DecoderShape())
    assert (result.failure, left_over(result)) == (None, [])
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]
