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


def test_all_formats_at_once_train_a_few_steps_next_to_float32_and_not_on_it():
    batches = text.batches(text.standard_library(), FEW.steps, FEW.batch, FEW.length)
    start = decoder.initial(FEW.shape)
    exact, narrow = (curve(FEW, *METHODS[name], start, batches) for name in (FLOAT32, "all of these"))
    assert narrow[-1] < narrow[0]
    assert 1e-4 < np.abs(narrow / exact - 1).max() < 0.02


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
