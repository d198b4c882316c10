"""Collectives on links, where their time can be told by hand."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Transfer
from lab.hlo.placement import Devices
from lab.hlo.read import read
from lab.measure.rates.links import Links, Reach
from lab.measure.rates.table import SCHEMA, Algorithm, Basis, ChipRates, LinkRate, Passes, Source, Way, Wire
from lab.meshes.axes import Axes
from lab.meshes.platforms import TPU_LINKS, LinkName
from lab.meshes.targets import parse_target

SOURCES = {"here": Source(Basis.MEASURED, "a test", "2026-11-30", "none")}
N = 64_000_000


def rates(*wires, links=(), chip="h100"):
    memory = Passes(((1.0, 1.0),), 0.0, "here")
    return ChipRates(SCHEMA, chip, SOURCES, {}, memory, links=tuple(links), wires=wires)


def ring(per_s, link=LinkName.ICI, base_s=0.0, inside_s=0.0, across_s=0.0, share=1.0):
    return Wire(link, per_s, (Way(Algorithm.RING, base_s, inside_s, across_s, share),), 0.1, "here")


def transfer(kind, size, link, payload=N):
    return Transfer(kind, ("x",), size, 1, "bf16", payload, instruction="it", link=link)


ALL = {
    Kind.ALL_GATHER: "%it = bf16[32000000] all-gather(%p), dimensions={0}",
    Kind.ALL_TO_ALL: "%it = bf16[32000000] all-to-all(%p), dimensions={0}",
}


def text(kind, groups, devices):
    whole, part = 32_000_000, 32_000_000 // len(groups[0])
    spelled = "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in groups) + "}"
    operand = part if kind is Kind.ALL_GATHER else whole
    if kind is Kind.COLLECTIVE_PERMUTE:
        it, operand = f"%it = bf16[{whole}] collective-permute(%p), source_target_pairs={spelled}", whole
    else:
        it = f"{ALL[kind]}, replica_groups={spelled}, use_global_device_ids=true"
    return f"""HloModule jit_step, is_scheduled=true, num_partitions={devices}

ENTRY %main (p: bf16[{operand}]) -> bf16[{whole}] {{
  %p = bf16[{operand}] parameter(0)
  ROOT {it}, channel_id=1
}}
"""


def on_slice(target, axes, over, kind, wire, pairs=None):
    found, axes = parse_target(target), Axes.parse(axes)
    reading = read(text(kind, pairs or axes.groups(over), axes.size), axes=axes, target=found)
    return Links.of(rates(wire, chip=found.chip), reading, found).priced(reading.ledger.transfers[0])


def test_a_gather_on_a_closed_ring_of_four_uses_both_of_its_links():
    priced = on_slice("tpu:v5p:4x4x4", "a=4,b=16", ("a",), Kind.ALL_GATHER, ring(1e9))
    assert priced.seconds == pytest.approx(0.75 * N / 2e9)


def test_a_gather_on_an_open_line_of_four_has_one_way_to_its_ends():
    priced = on_slice("tpu:v5e:4x4", "a=4,b=4", ("a",), Kind.ALL_GATHER, ring(1e9))
    assert priced.seconds == pytest.approx(0.75 * N / 1e9)


def test_a_gather_over_two_directions_uses_the_links_of_both():
    priced = on_slice("tpu:v5p:4x4x4", "a=4,b=16", ("b",), Kind.ALL_GATHER, ring(1e9))
    assert priced.seconds == pytest.approx(15 / 16 * N / 4e9)


CORE = '"collective_algorithm_config":{"emitter":%s}'
SPARSE = '"ici_strategy_config":{"color_strategies":[%s]}'
CLOCKWISE = '{"ring_type":"ICI_RING_TYPE_UNIDIR_CW","ring_dim":"ICI_RING_DIM_X_MESH"}'
ONE_PHASE, TWO_PHASES = (f'{{"phase_rings":[{",".join([CLOCKWISE] * many)}]}}' for many in (1, 2))


@pytest.mark.parametrize(
    "config, links, hops",
    [
        (CORE % '"1DAllGatherNonMajorDimImbalanced","debug":"group_size = 16"', 2, 8),
        (CORE % '"RotatedPincerEmitter","strategy":"StrategyND","debug":"{colors:2 phases:2}"', 4, 4),
        (CORE % '"RotatedPincerEmitter","strategy":"UniDirectionNDRingStrategy","debug":"{colors:3 phases:2}"', 3, 4),
        (CORE % '"AllReduceScatterFusion","strategy":"StrategyRing","debug":"{colors:1 phases:1}"', 2, 8),
        (SPARSE % f"{ONE_PHASE},{ONE_PHASE}", 2, 8),
        (SPARSE % f"{TWO_PHASES},{TWO_PHASES},{TWO_PHASES}", 3, 4),
    ],
)
def test_a_text_that_tells_its_rings_is_believed(config, links, hops):
    """Two closed directions of four chips have four links, and two hops each to the farthest."""
    target, axes = parse_target("tpu:v5p:4x4x4"), Axes.parse("a=4,b=16")
    told = f"channel_id=1, backend_config={{{config}}}"
    spelled = text(Kind.ALL_GATHER, axes.groups(("b",)), 64).replace("channel_id=1", told)
    reading = read(spelled, axes=axes, target=target)
    transfer = reading.ledger.transfers[0]
    bytes_s = Links.of(rates(ring(1e9), chip="v5p"), reading, target).priced(transfer).seconds
    assert bytes_s == pytest.approx(15 / 16 * N / (links * 1e9))
    hops_s = Links.of(rates(ring(1e18, inside_s=1.0), chip="v5p"), reading, target).priced(transfer).seconds
    assert hops_s == pytest.approx(hops)


def test_gathers_that_lie_between_one_another_share_links():
    """An axis of 2 that takes every fourth chip of a line of 8: four groups pass over each link of the middle."""
    priced = on_slice("tpu:v5e:8x8", "a=2,b=4,c=8", ("a",), Kind.ALL_GATHER, ring(1e9))
    assert priced.seconds == pytest.approx(0.5 * N / 1e9 * 4)


def test_hops_to_the_farthest_are_added():
    wire = ring(1e15, inside_s=1.0, base_s=100.0)
    assert on_slice("tpu:v5p:4x4x4", "a=4,b=16", ("a",), Kind.ALL_GATHER, wire).seconds == pytest.approx(102)
    assert on_slice("tpu:v5e:4x4", "a=4,b=4", ("a",), Kind.ALL_GATHER, wire).seconds == pytest.approx(103)


def test_an_all_to_all_is_bound_by_the_cut_through_its_ring():
    """Half of eight chips send half of their buffers over the two links of each cut."""
    priced = on_slice("tpu:v5p:8x4x4", "a=8,b=16", ("a",), Kind.ALL_TO_ALL, ring(1e9))
    crossing = 4 * N / 2 / 2
    assert priced.seconds == pytest.approx(crossing / 1e9)


def test_a_permute_to_the_second_next_shares_each_link_with_another():
    axes = Axes.parse("a=4,b=4")
    pairs = [(row[i], row[(i + 2) % 4]) for row in axes.groups(("a",)) for i in range(4)]
    priced = on_slice("tpu:v5e:4x4", "a=4,b=4", ("a",), Kind.COLLECTIVE_PERMUTE, ring(1e9), pairs)
    assert priced.seconds == pytest.approx(2 * N / 1e9)


def test_groups_of_a_text_without_a_mesh_stand_in_the_order_of_the_devices():
    target = parse_target("tpu:v5p:4x4x4")
    rows = [range(first, first + 4) for first in range(0, 64, 4)]
    reading = read(text(Kind.ALL_GATHER, rows, 64), target=target)
    priced = Links.of(rates(ring(1e9), chip="v5p"), reading, target).priced(reading.ledger.transfers[0])
    assert priced.seconds == pytest.approx(0.75 * N / 2e9)


def test_devices_that_tell_where_they_stand_are_believed():
    """A ring of four v5p whose mesh goes through two directions is a square of two open lines."""
    coords = tuple((i // 2 % 2, i % 2, 0) for i in range(4))
    devices = Devices((0,) * 4, TPU_LINKS, tuple(range(4)), coords)
    reading = read(text(Kind.ALL_GATHER, [range(4)], 4), axes=Axes.parse("a=4"), devices=devices)
    priced = Links.of(rates(ring(1e9), chip="v5p"), reading).priced(reading.ledger.transfers[0])
    assert priced.seconds == pytest.approx(0.75 * N / 2e9)


def test_two_devices_of_a_chip_share_its_links_and_fetch_what_both_want_once():
    alone = on_slice("tpu:7x:4x4x4", "a=64,b=2", ("a",), Kind.ALL_GATHER, ring(1e9))
    both = on_slice("tpu:7x:4x4x4", "a=128", ("a",), Kind.ALL_GATHER, ring(1e9))
    assert alone.seconds == pytest.approx(2 * 63 / 64 * N / 6e9)
    assert both.seconds == pytest.approx(126 / 128 * N / 6e9)


def test_an_axis_of_two_lies_inside_the_chips_of_7x():
    wire = replace(ring(1e9), on_chip_bytes_per_s=6e9)
    priced = on_slice("tpu:7x:2x2x2", "a=8,b=2", ("b",), Kind.ALL_GATHER, wire)
    assert priced.seconds == pytest.approx(N / 2 / 6e9)


def test_groups_of_gpus_leave_a_host_by_the_adapters_of_those_that_it_has():
    wire = ring(50e9, LinkName.NETWORK)
    priced = on_slice("gpu:h100:2x4", "a=8", ("a",), Kind.ALL_GATHER, wire)
    assert priced.seconds == pytest.approx(7 / 8 * N / 4 / 50e9)
    apart = on_slice("gpu:h100:2x4", "a=2,b=4", ("a",), Kind.ALL_GATHER, wire)
    assert apart.seconds == pytest.approx(N / 2 / 50e9)


def test_a_permute_of_which_one_message_leaves_the_host_takes_as_long_as_that():
    pairs = [(i, (i + 1) % 8) for i in range(8)]
    wire = ring(50e9, LinkName.NETWORK, inside_s=1.0, across_s=2.0)
    priced = on_slice("gpu:h100:2x4", "a=8", ("a",), Kind.COLLECTIVE_PERMUTE, wire, pairs)
    assert priced.seconds == pytest.approx(2.0 + N / 50e9)


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_ring_over_hosts_leaves_each_by_the_adapters_of_all_its_members(hosts):
    """Patarasu and Yuan: a device sends 2 (P - 1) / P n; of 8 rings each crosses by an adapter of its own."""
    wire = ring(50e9, LinkName.NETWORK)
    reach = Reach(8 * hosts, hosts, 8)
    priced = Links(rates(wire), {"it": reach}).priced(transfer(Kind.ALL_REDUCE, 8 * hosts, LinkName.NETWORK))
    sent = 2 * (8 * hosts - 1) / (8 * hosts) * N
    assert priced.seconds == pytest.approx(sent / 8 / 50e9)


def test_one_member_a_host_sends_all_by_its_own_adapter():
    wire = ring(50e9, LinkName.NETWORK, base_s=1e-3, across_s=1e-4)
    links = Links(rates(wire), {"it": Reach(4, 4, 1)})
    priced = links.priced(transfer(Kind.ALL_GATHER, 4, LinkName.NETWORK))
    assert priced.seconds == pytest.approx(1e-3 + 3e-4 + 0.75 * N / 50e9)


def test_short_sums_over_many_hosts_go_by_a_tree():
    ways = Way(Algorithm.RING, 0.0, 0.0, 1.0, 1.0), Way(Algorithm.TREE, 0.0, 0.0, 1.0, 1.0)
    links = Links(rates(Wire(LinkName.NETWORK, 1e15, ways, 0.1, "here")), {"it": Reach(64, 64, 1)})
    assert links.priced(transfer(Kind.ALL_REDUCE, 64, LinkName.NETWORK)).seconds == pytest.approx(12, rel=1e-3)
    assert links.priced(transfer(Kind.ALL_GATHER, 64, LinkName.NETWORK)).seconds == pytest.approx(63, rel=1e-3)


def test_a_number_of_devices_between_two_timed_ones_lies_between_their_times():
    timed = [
        LinkRate(LinkName.HOST, Kind.ALL_REDUCE, devices, ((1.0, seconds), (1e9, seconds)), 0.1, "here")
        for devices, seconds in ((2, 1.0), (8, 4.0))
    ]
    links = Links(rates(links=timed), {})
    assert links.priced(transfer(Kind.ALL_REDUCE, 4, LinkName.HOST)).seconds == pytest.approx(2.0)
    assert links.priced(transfer(Kind.ALL_REDUCE, 8, LinkName.HOST)).seconds == pytest.approx(4.0)
    of_four = replace(timed[0], devices=4, points=((1.0, 4.0), (1e9, 4.0)))
    links = Links(rates(links=(*timed, of_four)), {})
    assert links.priced(transfer(Kind.ALL_REDUCE, 6, LinkName.HOST)).seconds == pytest.approx(4.0)


def test_what_no_rate_covers_has_a_name_and_rests_on_nothing():
    links = Links(rates(ring(1e9)), {})
    for unknown in (
        transfer(Kind.ALL_REDUCE, 4, LinkName.NETWORK),
        transfer(Kind.ALL_REDUCE, 4, None),
        transfer(Kind.ALL_REDUCE, None, LinkName.ICI),
    ):
        priced = links.priced(unknown)
        assert (priced.basis, priced.seconds) == (Basis.NOTHING, 0.0)
        assert "all_reduce" in priced.by
