"""Which precisions train as float32 does: a few steps of a few methods every day, all of them with the long tests."""

from dataclasses import replace

import numpy as np
import pytest

from lab.experiments.ch30_training import FLOAT32, METHODS, Trained, band, curve, curves
from lab.harness.decoder import text
from lab.meshes.errors import UsageError
from lab.programs.models import decoder
from tests.long_tests import long

pytestmark = pytest.mark.compiles

FEW = Trained(steps=4, batch=8, length=16, target="cpu:1")


@long
def test_with_all_formats_at_once_the_loss_falls():
    batches = text.batches(text.standard_library(), FEW.steps, FEW.batch, FEW.length)
    losses = curve(FEW, *METHODS["all of these"], decoder.initial(FEW.shape), batches)
    assert losses[-1] < losses[0] < 8


def test_a_target_that_only_compiles_is_refused():
    with pytest.raises(UsageError, match="can only compile, and trainings run"):
        curve(replace(FEW, target="gpu:h100:1x1"), *METHODS[FLOAT32], decoder.initial(FEW.shape), [])


@long
def test_over_60_steps_bfloat16_stays_near_the_band_of_nudged_trainings_and_8_bits_end_near_it():
    """float16 skips its first steps until the scale fits, and is behind by these."""
    assumed = Trained(steps=60, batch=8, length=32, target="cpu:1")
    found, trained = band(assumed), curves(assumed)
    assert 0 < found.width < 0.02
    assert np.abs(found.gaps(trained["bfloat16"])).max() < 5 * found.width
    assert all(abs(found.gaps(losses)[-1]) < 0.05 for losses in trained.values())
