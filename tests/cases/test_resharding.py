"""Cases c01, c26, c45: what it costs to move an array from one sharding to another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import SubAxis
from tests.cases.compiling import (
    array,
    compiled,
    cpu,
    partitioned_by,
    pinned,
    read,
    rows,
    under_both_partitioners,
)

pytestmark = pytest.mark.compiles


def doubled(x):
    return 2 * x


@under_both_partitioners
def test_between_clashing_tilings_an_array_of_131072_bytes_is_gathered_whole(shardy):
    """c01: its shard is 16,384 B, and all-to-alls would move about that much."""
    mesh = cpu(x=4, y=2)
    before, after = P("y", None, "x"), P(None, ("x", "y"), None)
    a, b = array(mesh, (16, 32, 64), *before), array(mesh, (16, 32, 64), *after)
    with partitioned_by(shardy):
        ledger = read(mesh, lambda a, b: b + pinned(mesh, jnp.sin(a), *after), a, b, out=after)
    assert rows(ledger) == [("all_gather", "x", 1, 65_536), ("all_gather", "y", 1, 131_072)]


def test_the_other_order_of_two_axes_permutes_the_whole_shard_of_2048_bytes():
    """c26."""
    mesh = cpu(x=4, y=2)
    ledger = read(mesh, doubled, array(mesh, (64, 64), ("x", "y")), out=P(("y", "x")))
    assert rows(ledger) == [("collective_permute", "x+y", 1, 2_048)]


def test_dropping_the_inner_axis_gathers_4096_bytes_and_the_same_order_moves_nothing():
    """c26."""
    mesh = cpu(x=4, y=2)
    x = array(mesh, (64, 64), ("x", "y"))
    assert rows(read(mesh, doubled, x, out=P("x"))) == [("all_gather", "y", 1, 4_096)]
    assert rows(read(mesh, doubled, x, out=P(("x", "y")))) == []


def test_swapping_two_axes_of_unlike_sizes_splits_one_of_them():
    """c26: the all-to-all runs over half of axis x, which is no axis of the mesh; splitting x in two makes it one."""
    mesh = cpu(x=4, y=2)
    program = compiled(mesh, doubled, array(mesh, (64, 64), "x", "y"), out=P("y", "x"))
    whole = lab.inspect(program, mesh=mesh)
    assert rows(whole) == [("all_to_all", "?", 1, 2_048), ("collective_permute", "x+y", 1, 2_048)]
    (half,) = [t for t in whole.transfers if t.kind == "all_to_all"]
    assert (half.axes, half.sub_axes) == (None, (SubAxis("x", 4, stride=1, size=2),))
    assert any(note.endswith("they are those of x[2 of 4]") for note in whole.notes)
    halves = Mesh(mesh.devices.reshape(2, 2, 2), ("x_high", "x_low", "y"))
    assert ("all_to_all", "x_low", 1, 2_048) in rows(lab.inspect(program, mesh=halves))


def test_moving_an_axis_to_another_dim_is_one_all_to_all_of_4096_bytes():
    """c26."""
    mesh = cpu(x=4, y=2)
    assert rows(read(mesh, doubled, array(mesh, (64, 64), "x"), out=P(None, "x"))) == [("all_to_all", "x", 1, 4_096)]


@pytest.mark.parametrize(
    ("devices", "payload"), [(slice(None, None, -1), 2_048), (slice(4, None), 4_096)], ids=["reversed", "4..7"]
)
def test_group_members_are_positions_in_the_mesh_whatever_its_device_ids(devices, payload):
    """c26: a reversed mesh, and one of the devices 4 to 7, give groups on y all the same."""
    mesh = Mesh(np.array(jax.devices())[devices].reshape(-1, 2), ("x", "y"))
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "y"), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x"))
    assert rows(read(mesh, psum, array(mesh, (64, 64), "x", "y"))) == [("all_reduce", "y", 1, payload)]


def test_a_transposed_mesh_reduces_over_its_own_axis_x():
    """c26."""
    mesh = Mesh(cpu(x=4, y=2).devices.T, ("y", "x"))
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "x"), mesh=mesh, in_specs=P("y", "x"), out_specs=P("y"))
    assert rows(read(mesh, psum, array(mesh, (64, 64), "y", "x"))) == [("all_reduce", "x", 1, 2_048)]


@pytest.mark.parametrize(("held", "padded"), [(10, 16), (7, 8)])
def test_rows_that_do_not_divide_are_gathered_padded(held, padded):
    """c45: 10 rows over 8 devices move as 16, which is 60 % waste; 7 as 8."""
    mesh = cpu(d=8)
    ledger = read(mesh, lambda a: jnp.sin(pinned(mesh, a, "d")), array(mesh, (held, 64)), out=P())
    assert rows(ledger) == [("all_gather", "d", 1, padded * 64 * 4)]


def test_60_of_64_rows_are_gathered_as_64():
    """c45."""
    mesh = cpu(d=8)
    ledger = read(
        mesh, lambda a, w: pinned(mesh, a[:60], "d") @ w, array(mesh, (64, 64), "d"), array(mesh, (64, 64)), out=P()
    )
    assert rows(ledger) == [("all_gather", "d", 1, 64 * 64 * 4)]


def test_four_rows_appended_to_64_gather_72_rows():
    """c45: and two all-to-alls of 8 and 9 rows."""
    mesh = cpu(d=8)
    a, b, w = array(mesh, (64, 64), "d"), array(mesh, (4, 64)), array(mesh, (64, 64))
    ledger = read(mesh, lambda a, b, w: jnp.concatenate([a, b]) @ w, a, b, w)
    assert rows(ledger) == [
        ("all_gather", "d", 1, 18_432),
        ("all_to_all", "d", 1, 2_048),
        ("all_to_all", "d", 1, 2_304),
    ]


def test_an_argument_of_10_rows_over_8_devices_is_refused_before_anything_is_compiled():
    """c45."""
    sharding = NamedSharding(cpu(d=8), P("d"))
    with pytest.raises(ValueError, match="dimension size is 10"):
        jax.jit(doubled).lower(jax.ShapeDtypeStruct((10, 64), jnp.float32, sharding=sharding))
