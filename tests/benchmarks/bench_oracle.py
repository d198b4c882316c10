"""How well alpha and beta reproduce NCCL's times as others measured them; run `python -m
tests.benchmarks.bench_oracle`.

One line, and two lines that meet at a size of their own choice, are fitted to each (device, collective, group size):
fits, not forecasts. Errors are fitted over measured time, less one.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from lab.core.ledger import Kind, wire_bytes
from lab.measure.fit import Line, Point, TwoLines, line, relative_errors, two_lines
from tests.paths import SHARED

TABLE = SHARED / "oracle/collective_perf_train.csv"
RANGES = {"below 64 KiB": 2**16, "below 8 MiB": 2**23, "8 MiB and above": 2**63}
Group = tuple[str, str, str]
"""Device, collective, and ranks of a group or pairs of a permute."""


@cache
def groups() -> Mapping[Group, list[Point]]:
    """The points of every group, by size."""
    found = defaultdict(list)
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            found[_group(row)].append(_point(row))
    return {group: sorted(points, key=lambda point: point.payload_bytes) for group, points in sorted(found.items())}


def _group(row: Mapping[str, str]) -> Group:
    ranks = f"{float(row['devices_per_group']):.0f}" if row["devices_per_group"] else f"{row['permute_pattern']}"
    return row["device"], row["opcode"], ranks


def _point(row: Mapping[str, str]) -> Point:
    kind, payload = Kind(row["opcode"].replace("-", "_")), int(row["tensor_bytes"])
    ranks = int(float(row["devices_per_group"] or 2))
    return Point(payload, 1, float(wire_bytes(kind, payload, ranks)), float(row["time_us"]) * 1e-6)


def errors(
    fit: Callable[[Sequence[Point]], Line | TwoLines], key: Callable[[Group, Point], str]
) -> dict[str, np.ndarray]:
    """Errors of all points, by `key`."""
    found = defaultdict(list)
    for group, points in groups().items():
        for point, error in zip(points, relative_errors(fit(points), points), strict=True):
            found[key(group, point)].append(error)
    return {name: np.array(values) for name, values in found.items()}


def size_range(point: Point) -> str:
    return next(name for name, end in RANGES.items() if point.payload_bytes < end)


KEYS = {
    "device": lambda group, point: group[0],
    "collective": lambda group, point: group[1],
    "size": lambda group, point: size_range(point),
    "device, collective and size": lambda group, point: f"{group[0]}, {group[1]}, {size_range(point)}",
}


def main() -> None:
    for name, key in KEYS.items():
        one, two = errors(line, key), errors(two_lines, key)
        print(f"{name:48} points   one line: median  90 %  worst   two lines: median  90 %  worst")
        for part in one:
            print(f"{part:48} {len(one[part]):6} {_spread(one[part]):>29} {_spread(two[part]):>31}")
        print()
    print(f"{'group':48} alpha us  +-   GB/s   +-   farthest off   protocol changes at")
    for group, points in groups().items():
        print(_constants(group, points))
    one, two = _far_off(line), _far_off(two_lines)
    print(f"\none line does not reproduce these points: {one:.0%} are off by more than 20 %; with two lines {two:.0%}")


def _far_off(fit: Callable[[Sequence[Point]], Line | TwoLines]) -> float:
    """Share of all points that are off by more than a fifth."""
    (found,) = errors(fit, lambda group, point: "all").values()
    return float(np.mean(np.abs(found) > 0.2))


def _spread(found: np.ndarray) -> str:
    size = np.abs(found)
    return f"{np.median(size):6.1%} {np.quantile(size, 0.9):6.1%} {size.max():6.1%}"


def _constants(group: Group, points: Sequence[Point]) -> str:
    fit, off = line(points), relative_errors(line(points), points)
    worst = int(np.abs(off).argmax())
    return (
        f"{', '.join(group):48} {fit.alpha_s * 1e6:6.1f} {fit.alpha_error_s * 1e6:5.1f} {fit.bytes_per_s / 1e9:6.1f} "
        f"{fit.bytes_per_s_error / 1e9:5.1f} {off[worst]:+6.0%} at {points[worst].payload_bytes:,} B  "
        f"{two_lines(points).from_bytes:,} B"
    )


if __name__ == "__main__":
    main()
