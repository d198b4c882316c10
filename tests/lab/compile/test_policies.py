"""What `jax.checkpoint` keeps where that is decided from outside."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from lab.compile.equations import equations
from lab.compile.policies import POLICIES, around_scans, forced, removed

SHAPES = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32)


def layer(x_BD, w_DD):
    return jnp.tanh(jnp.tanh(x_BD @ w_DD) @ w_DD), None


def keeping_products():
    """A new one each time: JAX keeps what it has traced."""
    return jax.checkpoint(lambda x, w: layer(x, w), policy=jax.checkpoint_policies.dots_saveable)


def loss(layer, w_LDD, x_BD):
    return jnp.sum(jax.lax.scan(layer, x_BD, w_LDD)[0])


def products(layer) -> int:
    """Of one layer, forwards, again and backwards."""
    traced = jax.make_jaxpr(jax.grad(lambda w, x: loss(layer, w, x)))(*SHAPES)
    return sum(each.primitive == "dot_general" for each in equations(traced.jaxpr))


@pytest.mark.parametrize("policy, again", list(zip(POLICIES, (0, 0, 2), strict=True)))
def test_a_policy_from_outside_decides_how_many_products_are_computed_again(policy, again):
    with forced(policy):
        assert products(keeping_products()) == 6 + again
    assert products(keeping_products()) == 6


def test_what_is_traced_without_its_checkpoints_has_no_equation_of_them_and_computes_nothing_again():
    def equations_of(layer):
        return [each.primitive for each in equations(jax.make_jaxpr(lambda w, x: loss(layer, w, x))(*SHAPES).jaxpr)]

    with removed():
        assert products(keeping_products()) == products(layer) == 6
        assert equations_of(keeping_products()) == equations_of(layer)
    assert len(equations_of(keeping_products())) == len(equations_of(layer)) + 1


def test_without_its_checkpoints_a_checked_shard_map_still_says_what_varies():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def step(w_DD, x_BD):
        return jax.grad(lambda x_BD: jnp.sum(jax.checkpoint(lambda x: jnp.tanh(x @ w_DD) * 2)(x_BD)))(x_BD)

    with removed():
        jax.make_jaxpr(step)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (4, 8))))


def test_around_a_scan_that_keeps_everything_its_body_is_computed_again():
    before = products(layer)
    with around_scans():
        assert products(layer) == before + 2 == 8
    assert products(layer) == before


def test_a_scan_inside_a_scan_has_no_checkpoint_of_its_own():
    def outer(x_BD, w_DD):
        return jax.lax.scan(lambda x, _: (layer(x, w_DD)[0], None), x_BD, None, length=2)[0], None

    with around_scans():
        traced = jax.make_jaxpr(lambda w, x: loss(outer, w, x))(*SHAPES)
    assert sum(each.primitive in ("remat2", "checkpoint") for each in equations(traced.jaxpr)) == 1
