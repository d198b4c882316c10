"""Which trainings the tour runs on how many devices."""

from dataclasses import replace

import numpy as np
import pytest

from lab.core.codec import to_json, to_text
from lab.core.ledger import Kind, Ledger, Transfer
from lab.harness.decoder.reference_run import ReferenceRun, RoutingTie
from lab.harness.decoder.training import Curve, TrainingResult
from lab.harness.registry import load
from lab.measure.bench.machine import Machine
from lab.measure.tour import losses as module
from lab.measure.tour.losses import fitting, held_against, losses
from lab.measure.tour.tour import Tour
from lab.meshes.targets import parse_target
from lab.settle import Context, settle
from tests.json_keys import valid

TRAININGS = ("ch14_training", "ch16_training", "ch17_training", "ch18_dropless_training", "ch18_training")


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("name", TRAININGS)
def test_every_layout_and_style_fits_on_1_2_4_and_8_devices(name, devices):
    fits, left_out = fitting(load(name), parse_target(f"cpu:{devices}"))
    assert left_out == []
    assert {run.experiment.name for run in fits} == {layout.name for layout in load(name).layouts}


def test_on_3_devices_16_sequences_do_not_split_and_everything_is_left_out_with_the_reason():
    trainings = [load(name) for name in TRAININGS[1:]]
    compared, left_out = losses(trainings, parse_target("cpu:3"))
    assert compared == ()
    assert left_out[0] == (
        "ch16_training 1F1B explicit cpu:3: dim 'batch' of size 4 is not divisible by data=3; make it a multiple of 3"
    )
    assert all("is not divisible by" in reason and "=3" in reason for reason in left_out)
    assert len(left_out) == sum(len(layout.styles) for training in trainings for layout in training.layouts)


@pytest.mark.parametrize(
    ("off", "told"),
    [
        ((0, 0, 5e-3), None),
        ((0, 5e-3, 5e-3), "losses diverge from one device's at step 1: loss 3.015, expected 3 within 1.2e-06"),
    ],
)
def test_a_curve_may_be_as_far_from_the_cpus_as_float32_moves_one_device_here(off, told):
    here, cpu = (ReferenceRun(np.array([4.0, 3.0, 2.0]), np.array(moved)) for moved in ((0, 0, 1e-3), (0, 0, 0)))
    found = held_against(trained("ch14_training", here, cpu.losses * (1 + np.array(off))), cpu, ())
    assert to_json(found)["cpu"]["away"] == {"layout explicit": told}
    assert found.worst_relative_error == pytest.approx(5e-3)


def test_a_curve_is_held_against_a_cpu_that_chose_at_ties_as_its_layout_did(monkeypatch):
    cpu, chosen = (
        ReferenceRun(np.array([4.0, 3.0, 2.0]), np.zeros(3)),
        ReferenceRun(np.array([4.0, 3.1, 2.1]), np.zeros(3)),
    )
    monkeypatch.setattr(
        module, "replayed_with_same_routing", lambda found, reference, *_: (chosen, (RoutingTie(1, 2**-25),))
    )
    found = held_against(trained("ch18_training", cpu, chosen.losses), cpu, ())
    machine = Machine("NVIDIA H200", "gpu", "h200", "580", "2.28.9", "cuda", "0.11.2")
    (printed,) = valid("tour", to_text(Tour("lab tour", "2026-01-01", machine, 2, losses=(found,))))["losses"]
    told = printed["cpu"]
    assert (told["away"], told["worst_relative_error"]) == ({"layout explicit": None}, 0)
    assert told["ties"] == {"layout explicit": [{"step": 1, "size": 2**-25}]}


def test_a_training_whose_ledger_is_refuted_has_failed_though_its_losses_are_the_cpus():
    cpu = ReferenceRun(np.array([4.0, 3.0, 2.0]), np.zeros(3))
    fine = trained("ch14_training", cpu, cpu.losses)
    summed = Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, phase="backward", scope="head")
    refuted = settle(Ledger(()), Ledger((summed,)), Context("gpu", "declared", {"data": 2}))
    assert held_against(fine, cpu, ()).failures == ()
    found = replace(fine, curves=tuple(replace(curve, settlement=refuted) for curve in fine.curves))
    assert held_against(found, cpu, ()).failures == ("layout explicit: the ledger is refuted",)


def trained(name: str, here: ReferenceRun, losses: np.ndarray) -> TrainingResult:
    training = load(name)
    return TrainingResult(
        training, "attached", training.parameters, here, (Curve("layout", "explicit", {"data": 2}, losses),), 3.1, 1.0
    )
