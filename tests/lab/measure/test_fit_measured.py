"""Alpha and beta of the times that the lab measured on H100s and H200s, against SciPy's least squares."""

import json
from collections import defaultdict
from functools import cache

import numpy as np
import pytest
from scipy.optimize import curve_fit

from lab.measure.fit import FEWEST, Line, Point, TwoLines, line, relative_errors, two_lines
from tests.paths import ROOT

BENCHES = sorted((ROOT / "results").glob("bench_*.json")) + sorted((ROOT / "results").glob("tour_*.json"))
Chain = tuple[str, str]


@cache
def benches() -> dict[str, dict]:
    """The records that hold times of collectives, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in BENCHES}
    found = {name: record.get("collectives", record) for name, record in found.items()}
    return {name: record for name, record in found.items() if record and record["points"]}


def chains(name: str) -> dict[Chain, list[Point]]:
    """The points of every chain of which there is more than one."""
    found = defaultdict(list)
    for p in benches()[name]["points"]:
        point = Point(p["payload_bytes"], p["steps"], p["wire_bytes"], p["seconds"])
        found[p["primitive"], p["algorithm"]].append(point)
    return {chain: points for chain, points in found.items() if len(points) > 1}


def of_scipy(points: list[Point]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds a step and a byte, and their standard errors, in units near one for its steps."""
    units = np.array([1e-6, 1e-12])
    known = np.array([(p.steps, p.wire_bytes) for p in points]).T * units[:, None]
    seconds = np.array([p.seconds for p in points])
    constants, covariance = curve_fit(lambda x, a, b: a * x[0] + b * x[1], known, seconds, p0=(1, 1), sigma=seconds)
    return constants * units, np.sqrt(np.diag(covariance)) * units


every_bench = pytest.mark.parametrize("name", benches())


@every_bench
def test_alpha_and_beta_of_measured_times_and_their_errors_are_those_of_scipy(name):
    for chain, points in chains(name).items():
        (alpha, per_byte), (alpha_error, per_byte_error) = of_scipy(points)
        of_bytes = (1 / per_byte, per_byte_error / per_byte**2)
        expected = Line(*(pytest.approx(x, rel=1e-5) for x in (alpha, alpha_error, *of_bytes)))
        assert line(points) == expected, chain


@every_bench
def test_recorded_constants_follow_from_the_recorded_points(name):
    fits = {(fit["primitive"], fit["algorithm"]): fit for fit in benches()[name]["fits"]}
    for chain, points in chains(name).items():
        fit = line(points)
        assert fits[chain]["alpha_s"] == pytest.approx(fit.alpha_s)
        assert fits[chain]["bytes_per_s"] == pytest.approx(fit.bytes_per_s)
        assert fits[chain]["median_error"] == pytest.approx(np.median(np.abs(relative_errors(fit, points))))


@every_bench
def test_no_beta_is_above_the_rate_of_the_link_in_one_direction(name):
    rate = benches()[name]["link"]["bytes_per_s"]
    assert max(line(points).bytes_per_s for points in chains(name).values()) < rate


def squares(fit: Line | TwoLines, points: list[Point]) -> float:
    return float(np.square(relative_errors(fit, points)).sum())


@every_bench
def test_two_lines_meet_where_the_sum_of_squares_is_least(name):
    for chain, points in chains(name).items():
        points = sorted(points, key=lambda point: point.payload_bytes)
        parts = [(line(points[:at]), line(points[at:])) for at in range(FEWEST, len(points) - FEWEST + 1)]
        sums = [
            squares(TwoLines(*both, points[at].payload_bytes), points)
            for at, both in enumerate(parts, FEWEST)
            if all(both)
        ]
        assert squares(two_lines(points), points) == pytest.approx(min(sums)), chain
        assert min(sums) < squares(line(points), points), chain


def test_one_line_is_off_by_35_per_cent_for_a_permute_of_four_h200s_and_two_by_10_in_the_median():
    """As in the published tables, NCCL sends short messages by another protocol."""
    points = chains("tour_4xh200_jax0.11.2_times")["permute", "lax"]
    medians = [np.median(np.abs(relative_errors(fit(points), points))) for fit in (line, two_lines)]
    assert medians == [pytest.approx(0.353, abs=5e-4), pytest.approx(0.103, abs=5e-4)]
