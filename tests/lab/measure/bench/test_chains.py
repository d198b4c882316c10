"""Chains: that every algorithm is in one, that they compute, and that what is timed is nothing else."""

import re
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lab.collectives import ALGORITHMS
from lab.core.ledger import Kind, wire_bytes
from lab.measure.bench import programs, timing
from lab.measure.bench.chains import chains, chosen
from lab.measure.bench.programs import LeftOut, Measurement, difference
from lab.measure.bench.timing import launch_seconds, measured
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target

ONE_AXIS, TWO_AXES = Axes.parse("data=4"), Axes.parse("data=2,tensor=2")
LAX = {chain.primitive: chain for chain in chains(ONE_AXIS) if chain.algorithm == "lax"}


def mesh(axes):
    return make_mesh(parse_target(f"cpu:{axes.size}"), axes)


def test_every_algorithm_is_in_a_chain_on_some_mesh():
    found = {
        step
        for axes in (ONE_AXIS, TWO_AXES)
        for chain in chains(axes)
        for step in zip(chain.primitives, chain.algorithms, strict=True)
    }
    assert found == {(primitive, name) for primitive, table in ALGORITHMS.items() for name in table}


def test_three_ranks_have_no_chain_that_needs_a_power_of_two():
    names = {name for chain in chains(Axes.parse("data=3")) for name in chain.algorithms}
    assert "ring" in names and "halving" not in names


def program(chain, elements, axes=ONE_AXIS):
    return programs.program(chain, mesh(axes), axes, elements)


def timed(chain, sizes):
    return measured(chain, mesh(ONE_AXIS), ONE_AXIS, sizes)


def on_four(chain):
    spec = PartitionSpec("data")
    call = jax.shard_map(lambda x_N: chain.call(x_N, ("data",)), mesh=mesh(ONE_AXIS), in_specs=spec, out_specs=spec)
    return jax.jit(call)


@pytest.mark.slow
@pytest.mark.parametrize("chain", chains(ONE_AXIS), ids=str)
def test_a_call_gives_what_the_next_one_takes(chain):
    x = jax.ShapeDtypeStruct((4 * chain.elements(256, 4),), jnp.uint32)
    result = jax.eval_shape(on_four(chain), x)
    assert (result.shape, result.dtype) == (x.shape, x.dtype)


@pytest.mark.compiles
def test_a_reduce_scatter_and_an_all_gather_are_the_all_reduce_that_they_stand_for():
    x = jnp.arange(64, dtype=jnp.uint32)
    np.testing.assert_array_equal(on_four(LAX["reduce_scatter+all_gather"])(x), on_four(LAX["all_reduce"])(x))


@pytest.mark.compiles
@pytest.mark.parametrize("algorithm", ["lax", "circulant"])
def test_a_chain_of_barriers_sends_one_number_each_and_stays_at_one(algorithm):
    (chain,) = chosen(chains(ONE_AXIS), ["barrier"], [algorithm])
    ones = jnp.ones(4, jnp.uint32)
    assert on_four(chain)(ones).tolist() == [1, 1, 1, 1] and on_four(chain)(ones + 1).tolist() == [2, 2, 2, 2]
    compiled = program(chain, chain.elements(1 << 20, 4))
    assert difference(compiled) is None and compiled.ledger.totals().payload_bytes == 4 * 32
    (entry,) = timed(chain, (1024, 4096))
    assert (entry.point.payload_bytes, entry.calls) == (4, 32 // entry.messages_stated)


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_TO_ALL, Kind.COLLECTIVE_PERMUTE])
def test_the_bus_factor_is_wire_over_payload(kind):
    primitive = {Kind.COLLECTIVE_PERMUTE: "permute"}.get(kind, str(kind))
    assert LAX[primitive].bus_factor(8) == wire_bytes(kind, 8000, 8) / 8000


def test_bus_factors_on_eight_ranks_are_those_of_nccl_tests():
    factors = {name: chain.bus_factor(8) for name, chain in LAX.items()}
    assert factors == {
        "permute": 1,
        "all_reduce": Fraction(7, 4),
        "reduce": 1,
        "broadcast": 1,
        "all_to_all": Fraction(7, 8),
        "barrier": 1,
        "reduce_scatter+all_gather": Fraction(7, 4),
        "scatter+gather": Fraction(7, 4),
    }


def test_a_name_of_one_of_a_pair_chooses_the_pair():
    assert [str(chain) for chain in chosen(chains(ONE_AXIS), ["all_gather"], ["doubling"])] == [
        "reduce_scatter+all_gather by halving+doubling"
    ]


@pytest.mark.parametrize(
    "primitives, algorithms, said",
    [
        (["fence"], [], "no primitive 'fence' to time on this mesh; known are all_gather, all_reduce"),
        ([], ["torus"], "no algorithm 'torus' to time on this mesh; known are bidirectional_ring"),
        (["permute"], ["ring"], "no algorithm 'ring' to time on this mesh; known are lax$"),
    ],
)
def test_a_name_that_no_chain_has_is_refused(primitives, algorithms, said):
    with pytest.raises(UsageError, match=said):
        chosen(chains(ONE_AXIS), primitives, algorithms)


@pytest.mark.compiles
def test_three_sizes_give_three_times_at_payloads_that_split_evenly():
    found = timed(LAX["all_to_all"], (1000, 4000, 16400))
    assert [entry.point.payload_bytes for entry in found] == [1024, 4096, 16384]
    assert all(isinstance(entry, Measurement) and entry.best_s > 0 and 0 < entry.point.seconds < 1 for entry in found)
    assert [entry.point.wire_bytes for entry in found] == [768, 3072, 12288]


@pytest.mark.compiles
def test_the_time_of_a_call_is_what_a_long_chain_takes_more_than_one_with_a_quarter_of_its_calls(monkeypatch):
    monkeypatch.setattr(timing, "_in_turn", lambda runs, x: [[0.4, 0.2, 0.3], [1.1, 0.6, 0.9]])
    (entry,) = timed(LAX["permute"], (1024,))
    assert (entry.calls, entry.point.seconds, entry.best_s) == pytest.approx((32, 0.6 / 24, 0.4 / 24))


@pytest.mark.compiles
def test_a_chain_that_takes_no_longer_than_a_shorter_one_has_no_time(monkeypatch):
    monkeypatch.setattr(timing, "_in_turn", lambda runs, x: [[0.4], [0.4]])
    (entry,) = timed(LAX["permute"], (1024,))
    assert isinstance(entry, LeftOut)
    assert entry.why == "32 calls take no longer than 8; the devices may be busy"


@pytest.mark.compiles
def test_a_program_that_does_not_fit_is_not_run(monkeypatch):
    monkeypatch.setattr(timing, "_memory_limit", lambda mesh: 1000)
    (entry,) = timed(LAX["permute"], (1024,))
    assert re.fullmatch(r"needs [\d,]+ B of the device's 1,000 B", entry.why)


@pytest.mark.compiles
def test_a_program_that_fails_costs_its_own_time_only(monkeypatch):
    def exhausted(runs, x):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr(timing, "_in_turn", exhausted)
    assert timed(LAX["permute"], (1024,)) == [LeftOut(LAX["permute"], 1024, "RESOURCE_EXHAUSTED: out of memory")]


@pytest.mark.compiles
def test_calls_that_xla_dropped_are_noticed():
    shorter = program(LAX["all_reduce"], 256)
    assert difference(shorter) is None
    said = difference(replace(shorter, calls=33))
    assert said == "XLA compiled 32,768 B of all_reduce, expected 33,792 B of all_reduce for 33 calls"


@pytest.mark.compiles
def test_launching_an_empty_program_takes_less_than_a_tenth_of_a_second():
    assert 0 < launch_seconds(mesh(ONE_AXIS)) < 0.1


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
@pytest.mark.parametrize("name", ["permute", "all_reduce", "all_to_all", "reduce_scatter+all_gather"])
def test_on_gpus_a_chain_of_lax_is_its_collectives_and_not_one_pass_more(name):
    axes = Axes.parse("data=2")
    compiled = programs.program(LAX[name], make_mesh(parse_target("gpu:h100:1x2"), axes), axes, 4 << 20)
    assert difference(compiled) is None
    entry = compiled.compiled.as_text().partition("\nENTRY")[2]
    operations = re.findall(r"^ .*? = .*?[\]})] ([a-z][a-z-]*)\(", entry, re.MULTILINE)
    begun = [re.sub("-start$", "", operation) for operation in operations if not operation.endswith("-done")]
    collectives = [operation for operation in begun if operation not in ("parameter", "bitcast")]
    assert len(collectives) == compiled.calls * len(LAX[name].primitives)
    assert set(collectives) <= {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
