"""A curve against a band of nudged ones."""

import numpy as np

from lab.harness.decoder.nudged import Band

FLAT = np.zeros(100)
BAND = Band(FLAT, [FLAT + 0.1, FLAT - 0.2])


def test_a_band_is_as_wide_as_its_farthest_curve():
    assert BAND.width == 0.2


def test_a_curve_that_ends_two_widths_above_is_not_within_one_and_a_half():
    late = np.where(np.arange(100) < 90, 0, 0.4)
    assert BAND.holds(FLAT - 0.29) and not BAND.holds(late)
    assert BAND.gaps(late).tolist() == [0] * 9 + [0.4]
