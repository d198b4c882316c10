"""Which trainings the tour runs on how many devices."""

import pytest

from lab.experiment import load
from lab.tour.losses import fitting, losses
from meshes.targets import parse_target

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
    assert left_out[0] == "ch16_training 1F1B explicit cpu:3: dim 'batch' of size 4 does not split over data=3; make it a multiple of 3"
    assert all("does not split over" in reason and "=3" in reason for reason in left_out)
    assert len(left_out) == sum(len(layout.styles) for training in trainings for layout in training.layouts)
