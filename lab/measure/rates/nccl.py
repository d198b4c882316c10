"""What NCCL takes where nobody timed it: between hosts, and inside hosts of chips that nobody had.

Source of the latencies and of the shares of a link's rate: NCCL's own model, NVIDIA/nccl, `src/graph/tuning.cc` (June
2026); of what an adapter reaches, NVIDIA/nccl-tests, issues 252 and 290.
"""

from __future__ import annotations

from typing import Final

from lab.measure.rates.table import Algorithm, Way, Wire
from lab.meshes.hardware import Chip
from lab.meshes.platforms import LinkName

SOURCE = "nccl"
LAUNCH_S: Final = 8.7e-6
"""Of a call in a compiled program, beyond NCCL's model: the shortest all_reduce of two H200s (tour_2xh200) takes 16.5
us, and 7.8 us by the model."""
ADAPTER: Final = 0.92
"""Share of a network adapter's rate: 46 to 48 GB/s of 50, 24 of 25."""
NVLINK: Final = 0.8
"""Share of NVLink's rate that rings reach: 365 to 370 GB/s of 450 (NVIDIA/nccl, issue 1455)."""
# Microseconds of a call, of a step inside a host and of one between hosts, and the share of the rate: with flags in
# each word (LL), in each 128 bytes (LL128), with plain messages, and with sums in the switch (NVLS).
_RINGS = (
    (Algorithm.RING, 6.6, 1.0, 3.7, 0.1),
    (Algorithm.RING, 14.0, 1.9, 5.0, 0.85),
    (Algorithm.RING, 8.4, 3.4, 15.0, 1.0),
)
_TREES = (
    (Algorithm.TREE, 6.8, 0.6, 6.0, 0.1),
    (Algorithm.TREE, 14.0, 1.25, 9.5, 0.73),
    (Algorithm.TREE, 8.4, 4.0, 15.0, 0.78),
)
_IN_SWITCH = (Algorithm.TREE, 25.0, 0.0, 21.9, 1.0)


def network(a_chip: Chip) -> Wire:
    """Between hosts, with an adapter for each GPU."""
    ways = [_way(*one) for one in (*_RINGS, *_TREES)]
    if a_chip.key != "a100":
        ways.append(_way(*_IN_SWITCH, least_in_host=2))
    return Wire(LinkName.NETWORK, ADAPTER * a_chip.slow.value, tuple(ways), 0.3, SOURCE)


def nvlink(a_chip: Chip) -> Wire:
    """Inside a host."""
    ways = tuple(_way(*one) for one in (*_RINGS, *_TREES))
    return Wire(LinkName.HOST, NVLINK * a_chip.fast.value, ways, 0.3, SOURCE)


def _way(
    algorithm: Algorithm, base_us: float, inside_us: float, across_us: float, share: float, least_in_host: int = 1
) -> Way:
    return Way(algorithm, LAUNCH_S + base_us * 1e-6, inside_us * 1e-6, across_us * 1e-6, share, least_in_host)
