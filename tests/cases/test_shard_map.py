"""Cases c16, c37, c53: shard_map, explicit sharding and constraints under vmap."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Ledger
from tests.cases.compiling import (
    array,
    cpu,
    partitioned_by,
    pinned,
    read,
    rows,
    under_both_partitioners,
)

pytestmark = pytest.mark.compiles


def replicated_weight(mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """A weight of 65,536 B on every device, and a batch over `data`."""
    return array(mesh, (128, 128)), array(mesh, (64, 128), "data")


def gradient_of_mapped(mesh: Mesh, check: bool) -> Ledger:
    """A layer in shard_map, differentiated outside."""
    layer = jax.shard_map(
        lambda w, x: jnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=check
    )
    return read(mesh, jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2)), *replicated_weight(mesh))


def mapped_gradient(mesh: Mesh, check: bool) -> Ledger:
    """The gradient in shard_map, averaged over `data` by hand."""

    def gradient(w, x):
        return jax.lax.pmean(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), "data")

    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check)
    return read(mesh, mapped, *replicated_weight(mesh))


@pytest.mark.parametrize(("check", "axes"), [(True, "data"), (False, "data+model")])
def test_unchecked_shard_map_sums_the_gradient_over_an_axis_on_which_nothing_varies(check, axes):
    """c16: groups of 8 in place of 4."""
    ledger = gradient_of_mapped(cpu(data=4, model=2), check)
    assert rows(ledger) == [("all_reduce", axes, 1, 65_536)]


@pytest.mark.parametrize(("check", "reductions"), [(True, 2), (False, 1)])
def test_checked_shard_map_reduces_by_itself_so_that_a_pmean_is_a_second_reduction(check, reductions):
    """c16: both print channel_id=1, and both run."""
    assert rows(mapped_gradient(cpu(data=4, model=2), check)) == reductions * [("all_reduce", "data", 1, 65_536)]


@under_both_partitioners
@pytest.mark.parametrize(
    ("spec", "vmap_options", "expected"),
    [
        ((None, "model"), {}, []),
        ((None, "model"), {"spmd_axis_name": "data"}, []),
        ((None, None, "model"), None, [("all_gather", "data", 1, 262_144)]),
        ((P.UNCONSTRAINED, None, "model"), None, []),
    ],
    ids=["vmap", "vmap with a name", "None by hand", "unconstrained by hand"],
)
def test_none_in_a_constraint_gathers_262144_bytes_where_vmap_and_unconstrained_do_not(
    shardy, spec, vmap_options, expected
):
    """c53: None means replicated."""
    mesh = cpu(data=4, model=2)

    def body(a):
        return jnp.sin(pinned(mesh, jnp.cos(a), *spec))

    x = array(mesh, (16, 64, 128), "data", None, "model")
    with partitioned_by(shardy):
        ledger = read(
            mesh, body if vmap_options is None else jax.vmap(body, **vmap_options), x, out=P("data", None, "model")
        )
    assert rows(ledger) == expected


def explicit(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))


def read_explicit(function, *shapes_and_specs) -> Ledger:
    mesh = explicit(cpu(x=4, y=2))
    with jax.set_mesh(mesh):
        return read(
            mesh, function, *(array(mesh, shape, *spec, dtype=dtype) for shape, spec, dtype in shapes_and_specs)
        )


A, TABLE, INDICES = ((16, 32), ("x", "y"), jnp.float32), ((64, 32), ("y",), jnp.float32), ((16,), ("x",), jnp.int32)
SQUARES = ((8, 5, 5), ("x",), jnp.float32)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda a, t: a @ t[:32], (A, TABLE)),
        (lambda t, i: t[i], (TABLE, INDICES)),
        (lambda a: jnp.sort(a, 1), (A,)),
        (lambda a: jnp.cumsum(a, 1), (A,)),
        (lambda a: jax.lax.top_k(a, 2), (A,)),
        (lambda a: a.at[:, :2].set(1.0), (A,)),
        (lambda a: a[:, :16] + a[:, :16].T, (A,)),
        (jax.vmap(jnp.linalg.inv), (SQUARES,)),
    ],
    ids=["matmul", "lookup", "sort", "cumsum", "top_k", "scatter", "transpose", "inverse"],
)
def test_eight_operations_are_refused_in_explicit_mode(function, arguments):
    """c37: what would communicate has to be asked for."""
    with pytest.raises(Exception, match="[Ss]hard"):
        read_explicit(function, *arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (lambda a: a.sum(1), (A,), [("all_reduce", "y", 1, 16)]),
        (lambda a: a.reshape(-1), (A,), [("all_to_all", "y", 1, 256)]),
        (lambda a: jnp.concatenate([a, a], 1), (A,), [("all_to_all", "y", 1, 256), ("all_to_all", "y", 1, 512)]),
        (lambda t, i: t.at[i].get(out_sharding=P("x", None)), (TABLE, INDICES), [("all_reduce", "y", 1, 512)]),
        (
            lambda a, t: jnp.dot(a, t[:32], out_sharding=P("x", None)),
            (A, TABLE),
            [("all_reduce", "y", 1, 512), ("collective_permute", "y", 1, 2_048)],
        ),
        (lambda a: jax.lax.reshape(a, (512,), out_sharding=P(("x", "y"))), (A,), [("all_to_all", "y", 1, 256)]),
    ],
    ids=["sum", "reshape", "concatenate", "lookup asked for", "matmul asked for", "reshape asked for"],
)
def test_explicit_mode_does_not_stop_a_reshape_or_concatenation_from_communicating(function, arguments, expected):
    """c37: 256 and 768 B of all-to-alls that nobody asked for, beside what was asked for by out_sharding."""
    assert rows(read_explicit(function, *arguments)) == expected
