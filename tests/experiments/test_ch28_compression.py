"""Chapter 28: what eight exchanges of gradients send, and what refutes it."""

import math
from dataclasses import replace

import pytest

from lab.experiments import ch28_training
from lab.harness.compressed_sums import TARGETS, WITH_1024_DEVICES, Sizes
from lab.harness.registry import load
from lab.harness.run import run
from lab.harness.suite import trained
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.transforms.methods import METHODS
from lab.settle import Verdict
from tests.experiments.part_claims import claims, flipped, more, on_8_devices, verdicts
from tests.long_tests import long

NAMES = (
    "ch28_power_sgd",
    "ch28_top_k",
    "ch28_random_k",
    "ch28_qsgd",
    "ch28_terngrad",
    "ch28_one_bit_adam",
    "ch28_int8_all_reduce",
    "ch28_float8_all_reduce",
)
SIXTEEN, THOUSAND = Axes.of({"data": 16}), Axes.of({"data": 1024})
EVERYDAY = "ch28_int8_all_reduce"
"""The kernels of all are compared in tests/lab/programs/transforms."""


@pytest.mark.compiles
@pytest.mark.parametrize("name", [name if name == EVERYDAY else pytest.param(name, marks=long) for name in NAMES])
def test_eight_devices_send_exactly_what_theory_says_and_compute_what_one_does(name):
    result = on_8_devices(name)
    assert result.verdict is Verdict.EXACT and result.is_fine


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_decides_nothing(name):
    assert claims(name, Axes.of({"data": 1})) == ()


@pytest.mark.parametrize("axes", [SIXTEEN, THOUSAND])
@pytest.mark.parametrize("name", NAMES)
def test_what_theory_asks_for_refutes_nothing_but_what_is_disputed(name, axes):
    found = claims(name, axes)
    assert "confirmed" in {str(claim.verdict) for claim in found}
    assert all(str(claim.verdict) == ("refuted" if claim.disputed else "confirmed") for claim in found)


@pytest.mark.parametrize("name", NAMES)
def test_four_bytes_more_or_one_message_more_refute_a_claim(name):
    assert flipped(name, SIXTEEN, more("exchanged", payload_bytes=4))
    assert flipped(name, SIXTEEN, more("exchanged"))


def test_a_scale_for_128_numbers_adds_a_32nd_and_is_counted():
    (volume, *_) = claims("ch28_int8_all_reduce", SIXTEEN)
    assert "codes of 8 bits take 31,457,280 B and a scale for 128 of them 983,040 B" in volume.evidence
    assert "sends 32,440,320 B of 16,777,216 numbers, 3.879 times less than in float32" in volume.evidence


def test_one_percent_of_each_rank_gains_nothing_among_1024():
    evidence = claims("ch28_top_k", THOUSAND)[1].evidence
    assert "10.24 times as much as in float32; at a share of 0.0009766 of 1024 ranks" in evidence
    assert verdicts("ch28_top_k", THOUSAND)["less than the dense ring below a density of 1/n"] == "confirmed"


def test_factors_of_rank_4_of_4096_squared_are_512_times_smaller_among_any_number_of_ranks():
    for axes in (SIXTEEN, THOUSAND):
        assert "512 times less than in float32" in claims("ch28_power_sgd", axes)[0].evidence


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [Sizes(1, 1), Sizes(7, 9), Sizes(40, 48)])
def test_what_theory_asks_for_of_a_matrix_smaller_than_a_block_refutes_nothing(name, sizes):
    for axes in (Axes.of({"data": 3}), SIXTEEN, Axes.of({"data": 2, "tensor": 3})):
        experiment = load(name)
        found = experiment.claims(sizes, axes, experiment.predict(sizes, axes))
        assert not [claim.statement for claim in found if claim.is_undisputed_refutation]


def test_beside_an_axis_of_copies_only_ranks_of_data_count():
    experiment = load("ch28_power_sgd")
    alone, beside = (
        experiment.claims(Sizes(), axes, experiment.predict(Sizes(), axes))[0].evidence
        for axes in (Axes.of({"data": 4}), Axes.of({"data": 4, "tensor": 2}))
    )
    assert alone == beside and "a rank of 4 sends" in alone
    step = load("ch28_step")
    told = {}
    for axes in (Axes.of({"data": 4}), Axes.of({"data": 4, "tensor": 2}), Axes.of({"data": 1, "tensor": 2})):
        told[str(axes)] = [
            claim.evidence for claim in step.claims(step.parameters, axes, step.predict(step.parameters, axes))
        ]
    assert told["data=4"] == told["data=4,tensor=2"] and told["data=1,tensor=2"] == []


def test_factors_of_a_matrix_of_3_rows_have_rank_3():
    experiment = load("ch28_power_sgd")
    asked = experiment.predict(Sizes(3, 40), SIXTEEN)
    found = experiment.claims(Sizes(3, 40), SIXTEEN, asked)
    assert "two factors of rank 3, 516 B" in found[0].evidence
    assert not [claim for claim in found if claim.is_undisputed_refutation]


def test_codes_of_1024_ranks_gathered_whole_are_64_times_an_all_reduce():
    assert ", 64 times an all-reduce in float32" in claims("ch28_qsgd", THOUSAND)[-1].evidence


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("ch28_error_feedback", {"elements": 0}),
        ("ch28_error_feedback", {"share": math.inf}),
        ("ch28_error_feedback", {"share": math.nan}),
        ("ch29_asynchrony", {"workers": 1}),
    ],
)
def test_what_nothing_can_be_made_of_is_refused_in_a_line(name, choice):
    with pytest.raises(UsageError, match=r"=.*: expected (above 0|2 or more)"):
        replace(load(name).parameters, **choice)


def test_a_training_of_no_such_layout_is_refused():
    with pytest.raises(UsageError, match="no layout 'topk'"):
        trained([load("ch28_training")], [parse_target("cpu:8")], [], {"layout": "topk"}, iter)


def train(**settings: object):
    (found,) = trained(
        [ch28_training.EXPERIMENT],
        [parse_target("cpu:8")],
        [],
        {name: str(value) for name, value in settings.items()},
        iter,
    )
    return found


@long
@pytest.mark.compiles
@pytest.mark.parametrize("target", [*TARGETS[1:], *WITH_1024_DEVICES])
@pytest.mark.parametrize("method", METHODS)
def test_a_whole_step_of_16_or_1024_devices_sends_what_theory_says(method, target):
    experiment, place = load("ch28_step"), parse_target(target)
    shape = replace(experiment.parameters, method=method, batch=place.devices)
    result = run(experiment, target=place, style="explicit", parameters=shape)
    assert result.verdict in (Verdict.EXACT, Verdict.EXPLAINED) and result.is_fine


@long
@pytest.mark.compiles
def test_after_steps_in_full_momenta_are_exchanged_as_signs_and_the_ledger_is_exact():
    found = train(layout="one_bit_adam", steps=5)
    (curve,) = found.curves
    assert found.verdict is Verdict.EXACT and not found.failures and curve.losses.size == 5
    # The first step is in full.
    assert curve.losses[:2] == pytest.approx(found.reference.losses[:2], rel=1e-5)
    assert curve.losses[2:] != pytest.approx(found.reference.losses[2:], rel=1e-5)
    assert "nats from one device's" in found.claims[0].evidence


@long
@pytest.mark.compiles
def test_200_steps_in_8_bits_are_within_one_and_a_half_times_the_band_and_all_methods_learn():
    found = train()
    assert found.verdict is Verdict.EXACT and not found.failures
    within = {curve.layout for curve in found.curves if found.is_on_curve(curve)}
    assert {"int8", "float8"} <= within
    for curve in found.curves:
        assert curve.losses[-20:].mean() < found.start - 2
