"""Equations are found by the names that compiled text has for them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.equations import evaluated, named, scans
from lab.compile.inspection import read_program
from lab.diagnosis.remedy import NotApplicable, UnrollScans
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target


def test_a_lookup_in_jnp_take_is_found_by_its_name_in_compiled_text_and_no_other_is():
    def loss(table_VD, tokens_B, labels_B):
        logits_BD = jnp.take(table_VD, tokens_B, axis=0)
        return jnp.sum(jnp.take_along_axis(logits_BD, labels_B[:, None], axis=1))

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(np.ones((8, 4)), np.arange(4), np.arange(4)).jaxpr
    (found,) = named(jaxpr, "jit(loss)/jvp(jit(_take))/gather")
    assert found.equation.invars[0].aval.shape == (8, 4)


def nested(x_BD, w_LDD):
    """Six sums over devices: three iterations of two."""

    def layer(x_BD, w_DD):
        def twice(x_BD, _):
            return jnp.tanh(x_BD @ w_DD), None

        return jax.lax.scan(twice, x_BD, None, length=2)[0], None

    return jax.lax.scan(layer, x_BD, w_LDD)[0]


def test_a_scan_inside_a_scan_stands_at_depth_1():
    jaxpr = jax.make_jaxpr(nested)(np.ones((4, 8)), np.ones((3, 8, 8))).jaxpr
    lengths = [[each.equation.params["length"] for each in scans(jaxpr, depth)] for depth in range(3)]
    assert lengths == [[3], [2], []]


@pytest.mark.compiles
def test_an_unrolled_scan_has_its_transfers_as_often_at_more_sites():
    mesh = make_mesh(parse_target("cpu:2"), Axes.of({"tensor": 2}))
    placed = [NamedSharding(mesh, P(None, "tensor")), NamedSharding(mesh, P(None, "tensor"))]
    x_BD = jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=placed[0])
    w_LDD = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32, sharding=placed[1])
    program = read_program(jax.jit(nested, out_shardings=placed[0]), (x_BD, w_LDD), mesh, None, source="nested")
    unrolled = program.attempt((UnrollScans(0, 3),))
    before, after = ([t.executions for t in one.ledger.transfers] for one in (program, unrolled))
    assert sum(before) == sum(after) and len(after) == 3 * len(before)
    with pytest.raises(NotApplicable, match=r"no such jax\.lax\.scan"):
        program.attempt((UnrollScans(2, 2),))


def test_scans_of_gradients_inside_a_checked_shard_map_are_changed_at_any_depth():
    mesh = make_mesh(parse_target("cpu:2"), Axes.of({"fsdp": 2}))
    parts = P(None, "fsdp")

    @partial(jax.shard_map, mesh=mesh, in_specs=(parts, P("fsdp")), out_specs=parts)
    def step(w_LDD, x_BD):
        def loss(w_LDD):
            def gathered(x_BD, w_DD):
                return nested(x_BD, jax.lax.all_gather(w_DD, "fsdp", tiled=True)[None]), None

            return jax.lax.pmean(jnp.mean(jax.lax.scan(gathered, x_BD, w_LDD)[0]), "fsdp")

        return jax.grad(loss)(w_LDD)

    def unrolled(eqn, operands):
        return eqn.replace(params={**eqn.params, "unroll": 2})

    args = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32)
    traced = jax.make_jaxpr(step)(*args)

    def unrolls(*depths):
        edits = {id(each.equation): unrolled for depth in depths for each in scans(traced.jaxpr, depth)}
        again = jax.make_jaxpr(lambda *args: evaluated(traced.jaxpr, traced.consts, args, edits))(*args)
        return [[each.equation.params["unroll"] for each in scans(again.jaxpr, depth)] for depth in (0, 2)]

    assert [unrolls(0), unrolls(2), unrolls(0, 2)] == [[[2, 2], [1, 1]], [[1, 1], [2, 2]], [[2, 2], [2, 2]]]
