"""Claims where a compiler is known to do otherwise than theory asks: by hand-made ledgers, of steps at the small sizes
of `tests.experiments.test_claims`."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim
from lab.harness.claims import claims_of
from lab.harness.experiment import Experiment
from lab.harness.registry import load
from lab.settle import Context, settle
from lab.settle.behaviours import emitted
from tests.experiments.test_claims import (
    AXES,
    SMALL,
    changed,
    claims,
    ideal,
    is_activation,
)

VOLUMES = {"ch14.dp_allreduce_volume", "ch14.partition_theorem"}
SUMS = {"ch15.ar_count", "ch15.tp_allreduce_volume"}


def context(name: str, platform: str) -> Context:
    return Context(platform, "declared", AXES[name].shape)


def as_compiled(name: str, platform: str, **sizes) -> Ledger:
    """Theory's ledger, as it is known that a compiler makes it."""
    asked = ideal(name, **sizes)
    return replace(
        asked, transfers=tuple(new for t in asked.transfers for new in emitted(t, context(name, platform))[0])
    )


def settled(name: str, measured: Ledger, platform: str, **sizes) -> tuple[Claim, ...]:
    return settled_of(load(name), measured, platform, **sizes)


def settled_of(experiment: Experiment, measured: Ledger, platform: str, **sizes) -> tuple[Claim, ...]:
    asked = ideal(experiment.name, **sizes)
    settlement = settle(asked, measured, context(experiment.name, platform))
    return claims_of(experiment, replace(SMALL, **sizes), AXES[experiment.name], asked, measured, settlement)


@pytest.mark.parametrize(
    ("name", "platform", "sizes", "undecided"),
    [
        ("ch14_data_parallel", "cpu", {"accumulation": 2}, VOLUMES),
        ("ch14_data_parallel", "gpu", {"accumulation": 2}, VOLUMES),
        ("ch14_data_parallel", "cpu", {"tied": True}, VOLUMES),
        ("ch15_tensor_parallel", "cpu", {}, SUMS),
        ("ch15_tensor_parallel", "gpu", {"remat": "dots"}, SUMS),
        ("ch17_sequence_parallel", "cpu", {}, {"ch17.megatron_sp_pattern"}),
        ("ch17_sequence_parallel", "gpu", {}, {"ch17.megatron_sp_pattern"}),
        ("ch20_zero1", "cpu", {}, {"ch20.comm"}),
        ("ch20_zero2", "cpu", {}, {"ch20.comm"}),
        ("ch20_zero3", "cpu", {"accumulation": 2}, {"ch20.comm"}),
        ("ch24_hybrid", "gpu", {}, {"ch24.hsdp"}),
        ("ch24_fsdp_tensor_parallel", "cpu", {}, {"ch24.comm_per_axis"}),
        ("ch24_llama3_405b", "gpu", {}, {"ch24.comm_per_axis"}),
    ],
)
def test_what_a_compiler_alone_makes_of_a_step_leaves_a_formula_undecided(name, platform, sizes, undecided):
    measured = as_compiled(name, platform, **sizes)
    assert {claim.id for claim in claims(name, measured, **sizes) if claim.is_undisputed_refutation} == undecided
    found = settled(name, measured, platform, **sizes)
    assert {
        claim.id
        for claim in found
        if claim.verdict == "calculated" and "cannot be decided by the compiled ones" in claim.evidence
    } == undecided
    assert not any(claim.is_undisputed_refutation for claim in found)


def test_the_same_of_a_compiler_that_is_not_known_to_do_so_refutes_the_formula():
    measured = as_compiled("ch24_hybrid", "gpu")
    alike = changed(measured, lambda t: t.scope == "head" and t.kind is Kind.ALL_REDUCE, executions=2)
    assert [claim.is_undisputed_refutation for claim in settled("ch24_hybrid", alike, "gpu")] == [True]


def test_what_theory_itself_does_not_give_stays_refuted():
    """A count of one micro-batch's sums, of a step of two, on a compiler that sums q, k and v apart as well."""
    right = load("ch15_tensor_parallel")
    of_one = replace(
        right,
        claims=lambda shape, axes, measured: right.claims(replace(shape, batch=8, accumulation=1), axes, measured),
    )
    measured = as_compiled(right.name, "cpu", accumulation=2)
    for experiment, is_undisputed_refutation in ((right, False), (of_one, True)):
        count = settled_of(experiment, measured, "cpu", accumulation=2)[0]
        assert (count.id, count.is_undisputed_refutation) == ("ch15.ar_count", is_undisputed_refutation)


def test_a_claim_that_finds_no_transfers_by_the_names_that_a_compiler_leaves_is_no_matter_of_the_compiler():
    nameless = changed(
        as_compiled("ch15_tensor_parallel", "cpu"),
        lambda t: is_activation(t) and "attention" in t.scope,
        phase="forward",
    )
    assert {
        claim.id for claim in settled("ch15_tensor_parallel", nameless, "cpu") if claim.is_undisputed_refutation
    } == {"ch15.ar_count", "ch15.tp_allreduce_volume", "ch15.tp_backward_table"}


def test_activations_between_hosts_refute_the_order_of_axes_since_theory_says_nothing_of_links():
    measured = as_compiled("ch24_llama3_405b", "gpu")
    swapped = changed(
        changed(measured, lambda t: t.axes == ("tensor",), link="network"), lambda t: t.axes == ("fsdp",), link="host"
    )
    assert {claim.id for claim in settled("ch24_llama3_405b", swapped, "gpu") if claim.is_undisputed_refutation} == {
        "ch24.order_3d"
    }
