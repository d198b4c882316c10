"""Changes of programs on mesh axes of type Explicit: tried like those of others, and with the same values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile import inspection, remedies
from lab.diagnosis.remedy import DropConstraint, PinArgument, PinBefore, ShardArgument

pytestmark = pytest.mark.compiles
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
MESHES = {"explicit": (EXPLICIT, EXPLICIT), "first": (EXPLICIT, AUTO), "second": (AUTO, EXPLICIT)}
ROWS, COLUMNS = ("data", None), (None, "tensor")


def dims(*spec):
    return tuple((name,) if name else () for name in spec)


def mesh_of(types):
    return jax.make_mesh((2, 2), ("data", "tensor"), axis_types=types, devices=jax.devices("cpu")[:4])


def step(w_DD, x_BD):
    """relu has a rule of its own for gradients, with a `where` and zeros in it."""

    def loss(w_DD):
        return (jax.nn.relu(x_BD @ w_DD) ** 2).sum()

    value, gradient_DD = jax.value_and_grad(loss)(w_DD)
    return w_DD - 0.1 * gradient_DD, value


def scanned(w_DD, x_BD):
    def loss(w_DD):
        layer = jax.checkpoint(lambda x_BD, _: (jax.nn.relu(x_BD @ w_DD), None))
        return (jax.lax.scan(layer, x_BD, length=2)[0] ** 2).sum()

    value, gradient_DD = jax.value_and_grad(loss)(w_DD)
    return w_DD - 0.1 * gradient_DD, value


def resharded(w_DD, x_BD):
    return jax.sharding.reshard(jax.sharding.reshard(w_DD, P()) * 2, P("data")), x_BD


def traced(function, mesh, w_spec=()):
    def shape(size, *spec):
        return jax.ShapeDtypeStruct((size, 16), jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    with jax.set_mesh(mesh):
        return jax.jit(function).trace(shape(16, *w_spec), shape(8, "data"))


def values(lowered, mesh, w_spec=()):
    w, x = np.arange(256, dtype=np.float32).reshape(16, 16) / 256, np.ones((8, 16), np.float32)
    put = [jax.device_put(a, NamedSharding(mesh, P(*spec))) for a, spec in ((w, w_spec), (x, ("data",)))]
    return lowered.compile()(*put)


@pytest.mark.parametrize(
    ("function", "types", "change", "w_spec"),
    [
        (step, "explicit", ShardArgument("w_DD", dims(*COLUMNS)), COLUMNS),
        (step, "second", ShardArgument("w_DD", dims(*COLUMNS)), COLUMNS),
        (step, "explicit", PinArgument("w_DD", dims(*ROWS)), ()),
        (step, "first", PinArgument("w_DD", dims("data", "tensor")), ()),
        (scanned, "explicit", ShardArgument("w_DD", dims(*COLUMNS)), COLUMNS),
        (resharded, "explicit", PinBefore("jit(resharded)/reshard", (dims(*ROWS),)), ()),
    ],
)
def test_a_changed_program_gives_the_values_of_the_one_before(function, types, change, w_spec):
    mesh = mesh_of(MESHES[types])
    found = traced(function, mesh)
    changed, _, _ = remedies.changed(found, mesh, (change,))
    for one, other in zip(values(changed, mesh, w_spec), values(found.lower(), mesh), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("types", ["explicit", "second"])
def test_an_argument_sharded_anew_costs_what_it_costs_where_it_was_traced_so(types):
    mesh = mesh_of(MESHES[types])
    changed, _, _ = remedies.changed(traced(step, mesh), mesh, (ShardArgument("w_DD", dims(*COLUMNS)),))
    by_hand = traced(step, mesh, COLUMNS).lower()
    one, other = (inspection.inspect(program, mesh=mesh) for program in (changed, by_hand))
    assert one.flops == other.flops and one.totals_by(lambda t: t.span) == other.totals_by(lambda t: t.span)
    assert other.flops == inspection.inspect(traced(step, mesh).lower(), mesh=mesh).flops / 2


def test_a_reshard_can_be_left_out():
    mesh = mesh_of(MESHES["explicit"])
    found = traced(resharded, mesh, ("data",))
    changed, _, _ = remedies.changed(found, mesh, (DropConstraint("jit(resharded)/reshard"),))
    assert inspection.inspect(found.lower(), mesh=mesh).transfers
    assert not inspection.inspect(changed, mesh=mesh).transfers
