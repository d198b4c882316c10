"""Chapters 2 and 3: bounds, ridges and what is no device or link."""

import numpy as np
import pytest

from lab.book.memory_hierarchy import (
    cards_bytes_per_s,
    half_bandwidth_bytes,
    ring_bytes_per_s,
)
from lab.book.roofline import (
    attainable_flops_per_s,
    data_intensity,
    dp_intensity,
    pp_intensity,
    ridge,
    tp_intensity,
)

H100 = 989e12


def test_at_its_ridge_a_link_bounds_as_arithmetic_does_and_below_it_in_proportion():
    intensities = ridge(H100, 50e9) * np.array([0.25, 1, 4])
    bounds = attainable_flops_per_s(H100, network_bytes_per_s=50e9, network_intensity=intensities)
    assert bounds / H100 == pytest.approx([0.25, 1, 1])


def test_the_tightest_of_memory_network_and_storage_bounds():
    roofs = {"memory": (3.35e12, 100), "network": (50e9, 4000), "storage": (1e9, 300_000)}
    given = {
        f"{name}_{what}": value
        for name, pair in roofs.items()
        for what, value in zip(("bytes_per_s", "intensity"), pair, strict=True)
    }
    assert attainable_flops_per_s(H100, **given) == 4000 * 50e9
    assert attainable_flops_per_s(H100, **{**given, "storage_intensity": 100_000}) == 100_000 * 1e9


def test_tensor_parallelism_over_8_is_network_bound_across_nodes_and_not_inside_for_width_8192():
    assert ridge(H100, 450e9) < tp_intensity(8192, 8) < ridge(H100, 50e9)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ridge(H100, 0), "bytes_per_s=0"),
        (lambda: dp_intensity(1024, 1), "ranks=1: expected 2 or above"),
        (lambda: dp_intensity(np.array([1024, -1]), 8), "tokens=-1"),
        (lambda: tp_intensity(8192, 1), "ranks=1: expected 2 or above"),
        (lambda: pp_intensity(8192, 80, 0), "stages=0"),
        (lambda: data_intensity(70e9, 2, 0), "amplification=0"),
        (lambda: half_bandwidth_bytes(-1e-6, 450e9), "alpha_s=-1e-06"),
        (lambda: ring_bytes_per_s(1, 450e9), "ranks=1: expected 2 or above"),
        (lambda: cards_bytes_per_s(4, 0, 50e9), "cards=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
