"""Shardings of results are those that XLA chooses, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.shapes_only import propagated
from tests.cases.compiling import cpu

pytestmark = pytest.mark.compiles


def scanned(mesh, w, x):
    def body(x, w):
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ w @ w.T), NamedSharding(mesh, P("a"))), x.sum()

    return jax.lax.scan(body, x, w)


def summed(mesh, w, x):
    rows = jax.shard_map(lambda x: jax.lax.psum(x, "a"), mesh=mesh, in_specs=P("a"), out_specs=P())(x)
    return rows, jax.random.split(jax.random.key(0), 8), jax.jit(jnp.transpose)(w[0])


def stepped(mesh, w, x):
    gradient = jax.grad(lambda w: jnp.sum((x @ w[0]) ** 2))(w)
    return w - gradient, jnp.argmax(x @ w[0], axis=-1), gradient.reshape(-1)


@pytest.mark.parametrize("function", [scanned, summed, stepped], ids=lambda function: function.__name__)
@pytest.mark.parametrize("specs", [(P(None, None, "b"), P("a")), (P(None, "b"), P(("a", "b"))), (P(), P("b", "a"))])
def test_results_lie_where_the_compiler_puts_them(function, specs):
    mesh = cpu(a=2, b=4)
    w, x = (
        jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip([(2, 16, 16), (8, 16)], specs, strict=True)
    )
    lowered = jax.jit(lambda w, x: function(mesh, w, x)).lower(w, x)
    results, placed = jax.tree.leaves(lowered.out_info), jax.tree.leaves(lowered.compile().output_shardings)
    told = propagated(lowered, [result.ndim for result in results], mesh)
    for one, other, result in zip(told, placed, results, strict=True):
        assert one.is_equivalent_to(other, result.ndim), (one, other)
