"""Rates are found again from the times that they give."""

import pytest

from lab.hlo.kernels import Copy, Does, Kernel
from lab.hlo.multiplied import Product
from lab.measure.rates.curves import Tile, Tiles
from lab.measure.rates.fitted import Timed, fitted
from lab.measure.rates.table import Basis, Source

SOURCE = "test", Source(Basis.MEASURED, "", "", "")
UNITS = 100
SMALL = Kernel("", 8, 0)
LAUNCH_S, BYTES_PER_S = 2e-6, 1e12
TRUE = Tiles(1e-6, 2e-6, 5e14, UNITS, (Tile(128, 256, 1.0), Tile(128, 128, 0.9)))


def pass_s(size):
    return max(LAUNCH_S, size / BYTES_PER_S)


def program(name, seconds, *kernels, calls=4):
    """Calls of kernels that take so long, each with a small one."""
    return Timed(name, calls * (seconds + LAUNCH_S), (*kernels, SMALL) * calls)


MEMORY = [
    Timed(f"memory {size}", 8 * pass_s(size), (Kernel("", size, 0),) * 8)
    for size in (8192, *(10**p for p in (5, 7, 9)))
]
PRODUCTS = [
    program("product", max(TRUE.seconds(shape), pass_s(1000)), Kernel("", 1000, shape.flops, 0, Does.PRODUCT, shape))
    for m in (256, 1024, 4096, 16384)
    for n in (512, 2048, 8192)
    for k in (1024, 4096)
    for shape in [Product(1, m, n, k, "bf16")]
]


def rates(*more):
    return fitted("h200", [*MEMORY, *more], UNITS, SOURCE)


def test_the_curve_of_memory_goes_through_its_points():
    for size in (8192, 10**7, 10**9):
        assert rates().memory.curve.seconds(size) == pytest.approx(pass_s(size))


def test_tiles_are_found_from_the_products_they_give():
    found = rates(*PRODUCTS).products["bf16"]
    for m, n, k in ((2048, 2048, 2048), (3000, 5000, 2000), (8192, 8192, 8192)):
        product = Product(1, m, n, k, "bf16")
        assert found.tiled.seconds(product) == pytest.approx(TRUE.seconds(product), rel=0.1)
    assert found.spread < 0.05


def test_of_two_kinds_in_a_program_the_one_with_programs_of_its_own_is_known():
    forward = [Kernel("", 0, flops, does=Does.ATTENTION, variant="causal") for flops in (10**9, 10**10, 10**11)]
    backward = [Kernel("", 0, 2 * one.flops, does=Does.ATTENTION_BACKWARD, variant="causal") for one in forward]
    alone = [program("attention", 1e-5 + one.flops / 1e14, one) for one in forward]
    both = [
        program("attention backward", 3e-5 + one.flops / 1e14 + other.flops / 2e14, one, other)
        for one, other in zip(forward, backward, strict=True)
    ]
    found = {work.does: work for work in rates(*both, *alone).work}
    assert found[Does.ATTENTION].per_s == pytest.approx(1e14)
    assert found[Does.ATTENTION_BACKWARD].per_s == pytest.approx(2e14)
    assert found[Does.ATTENTION_BACKWARD].alpha_s == pytest.approx(2e-5)
    assert {work.variant for work in found.values()} == {"causal"}


def test_one_program_of_a_kind_is_no_rate():
    one = program("sort", 1e-3, Kernel("", 10**8, 0, does=Does.SORT))
    other = program("sort", 2e-3, Kernel("", 2 * 10**8, 0, does=Does.SORT))
    assert not rates(one).work
    assert rates(one, other).work[0].per_s == pytest.approx(1e11, rel=0.01)


def test_a_spread_says_how_far_times_are_off():
    times = (1e-3, 1.5e-3, 1e-3, 1.5e-3)
    some = [program("sort", seconds, Kernel("", 10**8, 0, does=Does.SORT)) for seconds in times]
    assert rates(*some).work[0].spread == pytest.approx(0.25, abs=0.01)


def test_copies_to_the_host_have_a_rate_of_their_own():
    some = [
        Timed("host", 3e-5 + size / 5e10, (Copy("c", True, False, size, True), Copy("c", False, True, size, True)))
        for size in (10**6, 10**7, 10**8)
    ]
    found = rates(*some).host_copy
    assert (found.alpha_s, found.per_s) == (pytest.approx(3e-5), pytest.approx(5e10))
