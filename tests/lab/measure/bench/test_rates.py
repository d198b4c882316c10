"""Rates as the bench finds them: on fake devices, where they say nothing of a GPU, by a clock that says of every run
that it took longer than the last."""

from itertools import count

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.hlo.kernels import Kernel, steps
from lab.measure.bench import rates, wires
from lab.measure.tour.profile import Event
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from tests.cases.compiling import mesh_on

PLACE = parse_target("cpu:2")


@pytest.fixture
def small(monkeypatch):
    """Sizes that take no time."""
    for name, size in {
        "PASSES": (2**10, 2**12),
        "CACHE_FLUSH_BYTES": 2**15,
        "TRANSPOSE_SHAPE": (2, 2, 4, 8, 8),
        "OVERLAP_SHAPE": (64, 64, 1024),
        "LONG": 6,
        "LONGER": 8,
        "RUNS": 2,
    }.items():
        monkeypatch.setattr(rates, name, size)
    clock = count(1)
    monkeypatch.setattr(rates, "timed", lambda run: (run(), next(clock)))


@pytest.mark.compiles
@pytest.mark.parametrize("measured", [rates._passes, rates._scattered])
def test_what_takes_no_longer_than_nothing_is_refused(small, monkeypatch, measured):
    monkeypatch.setattr(rates, "timed", lambda run: (run(), 1.0))
    with pytest.raises(UsageError, match="takes? no longer .*measure again"):
        list(measured())


def test_products_that_show_no_rate_are_refused(small, monkeypatch):
    monkeypatch.setattr(rates, "_product_s", lambda m, n, k: 1 / (m * n * k))
    with pytest.raises(UsageError, match="^products took .*measure again"):
        rates._product_rate()


@pytest.mark.compiles
def test_a_pass_reads_and_writes_each_of_its_4_bytes(small):
    assert [count for count, _ in rates._passes()] == [2 * 4 * 2**10, 2 * 4 * 2**12]
    assert all(
        seconds == pytest.approx(2 / 4) for _, seconds in rates._passes()
    )  # Two runs later, over four calls more.


@pytest.mark.parametrize("elements, arrays", [(2**16, 200), (2**22, 16), (2**28, 2)])
def test_passes_go_through_more_than_a_cache_holds_before_they_come_back(elements, arrays):
    assert rates._arrays(elements) == arrays
    # Each is read, and another array written: an H200 caches 60 MB.
    assert 2 * 4 * elements * arrays > 100e6
    assert 2 * arrays < rates.LONGER


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the CUDA plugin is not installed: nothing compiles for GPUs")
@pytest.mark.parametrize("repeats", [2, 6])
def test_a_chain_of_passes_is_so_many_kernels_on_gpus_and_copies_no_array_that_it_does_not_reach(repeats):
    mesh = mesh_on("gpu:h200:1x1", devices=1)
    x = jax.ShapeDtypeStruct((2**16,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    text = jax.jit(rates.chain_of_passes(repeats)).lower(*[x] * 4).compile().as_text()
    assert [step.bytes // (2 * 4 * 2**16) for step in steps(text) if isinstance(step, Kernel)] == [1] * repeats


def kernels(*seconds):
    """One after the other."""
    return [Event("kernel", 10.0 * at, 10.0 * at + taken) for at, taken in enumerate(seconds)]


def test_a_collective_takes_what_the_gpu_that_comes_last_needs_in_the_median_of_the_calls():
    by_gpu = {"0": kernels(1, 5, 9, 6, 2, 5), "1": kernels(4, 7, 3, 8, 2, 9)}
    assert wires.seconds_of(by_gpu, calls=3, kinds=2, chain="") == [2, 5]


def test_other_kernels_than_the_collectives_are_refused():
    for by_gpu in ({}, {"0": kernels(1, 2), "1": kernels(1)}):
        with pytest.raises(UsageError, match="the profiler saw kernels: .*; expected 2 on each GPU"):
            wires.seconds_of(by_gpu, calls=1, kinds=2, chain="a chain")


@pytest.mark.compiles
def test_what_kernels_lose_is_measured_for_products_and_passes(small):
    assert len(rates.slowed(make_mesh(PLACE, Axes.parse("devices=2")))) == 2


@pytest.mark.compiles
def test_a_transpose_is_measured_where_xla_writes_it_element_by_element_and_refused_where_not(small, monkeypatch):
    assert rates._scattered() != 0
    monkeypatch.setattr(rates, "steps", lambda text: (Kernel("tiled", 8, 0),))
    with pytest.raises(UsageError, match="in tiled, not element by element"):
        rates._scattered()
