"""Lines through measured times: what is recovered, how sure it is, and where one line is not enough."""

import numpy as np
import pytest

from lab.measure.fit import Line, Point, line, relative_errors, two_lines

SIZES = tuple(4**power * 2**10 for power in range(11))
SLOW, FAST = Line(10e-6, 0, 20e9, 0), Line(40e-6, 0, 300e9, 0)


def points(model, sizes=SIZES, steps=6):
    blank = [Point(size, steps, 1.5 * size, 1.0) for size in sizes]
    return [Point(point.payload_bytes, steps, point.wire_bytes, model(point)) for point in blank]


def test_exact_times_give_back_alpha_and_beta_without_spread():
    found = line(points(FAST.seconds))
    assert (found.alpha_s, found.bytes_per_s) == pytest.approx((40e-6, 300e9), rel=1e-12)
    assert found.alpha_error_s < 1e-12 * found.alpha_s and found.bytes_per_s_error < 1e-9 * found.bytes_per_s


def test_two_standard_errors_hold_the_truth_in_about_95_of_100_benches():
    random = np.random.default_rng(0)
    fits = [
        line(points(lambda point: FAST.seconds(point) * (1 + 0.05 * random.standard_normal()))) for _ in range(1000)
    ]
    assert 0.90 < np.mean([abs(fit.alpha_s - 40e-6) < 2 * fit.alpha_error_s for fit in fits]) < 0.98
    assert 0.90 < np.mean([abs(fit.bytes_per_s - 300e9) < 2 * fit.bytes_per_s_error for fit in fits]) < 0.98


def test_a_tenth_more_at_the_smallest_of_eleven_sizes_moves_alpha_by_1_per_cent_and_at_the_largest_beta_by_4():
    def with_a_tenth_more_at(size):
        return line(points(lambda point: FAST.seconds(point) * (1.1 if point.payload_bytes == size else 1)))

    assert 1.01 < with_a_tenth_more_at(SIZES[0]).alpha_s / 40e-6 < 1.02
    assert 0.95 < with_a_tenth_more_at(SIZES[-1]).bytes_per_s / 300e9 < 0.97


def test_two_points_are_too_few_and_times_that_fall_with_size_have_no_line():
    assert line(points(FAST.seconds, SIZES[:2])) is None
    assert line(points(lambda point: 1 / point.payload_bytes)) is None
    assert line(points(FAST.seconds, [1024] * 5)) is None


def test_two_lines_find_the_size_at_which_the_protocol_changes():
    def protocols(point):
        return (SLOW if point.payload_bytes < 4**5 * 2**10 else FAST).seconds(point)

    found = two_lines(points(protocols))
    assert found.from_bytes == 4**5 * 2**10 == 1 << 20
    assert (found.below.bytes_per_s, found.above.bytes_per_s) == pytest.approx((20e9, 300e9))
    assert np.abs(relative_errors(found, points(protocols))).max() < 1e-9
    assert np.abs(relative_errors(line(points(protocols)), points(protocols))).max() > 0.3


def test_no_two_lines_through_five_points():
    assert two_lines(points(FAST.seconds, SIZES[:5])) is None
    assert two_lines(points(FAST.seconds, SIZES[:6])).from_bytes == SIZES[3]
