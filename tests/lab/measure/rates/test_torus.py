"""Where TPUs stand without JAX is where JAX puts them, and collectives of kept texts are priced by it."""

import pytest

from lab.compile.inspection import devices_of
from lab.core.known import known
from lab.core.ledger import Kind
from lab.hlo.read import read
from lab.hlo.ring_strategy import Rings
from lab.measure.rates.links import Links
from lab.measure.rates.table import Basis, rates_of
from lab.measure.rates.torus import Torus, rings, torus_of, torus_of_coords
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.hardware import chip
from lab.meshes.targets import parse_target
from tests.data import kept
from tests.data.catalogue import PROGRAMS


@pytest.mark.skipif(not plugins.installed("tpu"), reason="libtpu is not installed")
@pytest.mark.parametrize(
    "text, axes",
    [
        ("tpu:v5p:2x2x4", "data=2,tensor=8"),
        ("tpu:v5p:4x4x4", "data=4,tensor=16"),
        ("tpu:v5p:4x4x4", "data=8,tensor=8"),
        ("tpu:v4:2x2x2*2", "data=2,tensor=8"),
        ("tpu:v6e:4x4", "data=2,tensor=8"),
        ("tpu:v6e:16x16", "fsdp=64,tensor=4"),
        ("tpu:7x:2x2x1", "data=2,tensor=4"),
        ("tpu:7x:4x4x4", "data=8,fsdp=4,tensor=4"),
    ],
)
def test_groups_span_what_they_span_on_a_mesh_that_jax_laid(text, axes):
    target, axes = parse_target(text), Axes.parse(axes)
    devices = known(devices_of(make_mesh(target, axes)))
    real, ours = torus_of_coords(known(devices.coords), target.hardware.pod), torus_of(target, axes)
    assert (ours.sides, ours.rings) == (real.sides, real.rings)
    for name in axes.names:
        group = axes.groups((name,))[0]
        inside = [at for at in group if devices.domains[at] == devices.domains[group[0]]]
        assert spanned(ours, inside) == spanned(real, inside), name


def spanned(torus: Torus, members):
    return torus.on_a_chip(members), sorted(torus.lines(members), key=str)


@pytest.mark.parametrize(
    "key, sides, closed",
    [
        ("v5p", (4, 4, 8), (True, True, True)),
        ("v5p", (2, 4, 4), (False, False, False)),
        ("v5e", (16, 8), (True, False)),
        ("v6e", (16, 16), (True, True)),
        ("7x", (2, 2, 1), (False, False, False)),
    ],
)
def test_whole_cubes_and_pods_close_to_rings(key, sides, closed):
    assert rings(sides, chip(key).pod) == closed


@pytest.mark.parametrize(
    "name", [name for name in kept.index() if kept.index()[name]["target"].startswith(("tpu", "gpu"))]
)
def test_every_collective_of_a_kept_text_has_a_time_that_rests_on_something(name):
    program = PROGRAMS[name]
    target = parse_target(program.target)
    reading = read(kept.text(name), axes=program.axes, target=target)
    links = Links.of(rates_of(known(target.chip).replace("h200", "h100")), reading, target)
    for transfer in reading.ledger.transfers:
        if transfer.group_size and transfer.group_size > 1:
            priced = links.priced(transfer)
            assert priced.seconds > 0 and priced.basis is not Basis.NOTHING, transfer


def test_a_fused_scatter_of_a_kept_text_goes_in_one_ring():
    program = PROGRAMS["fsdp.tpu"]
    target = parse_target(program.target)
    reading = read(kept.text("fsdp.tpu"), axes=program.axes, target=target)
    reaches = Links.of(rates_of(known(target.chip)), reading, target).reaches
    scatters = [one.instruction for one in reading.ledger.transfers if one.kind is Kind.REDUCE_SCATTER]
    assert scatters
    assert {reaches[name].rings for name in scatters} == {Rings(2, is_one=True)}
