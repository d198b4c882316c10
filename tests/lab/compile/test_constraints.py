"""Which arguments a program's own constraints replicate, as the traced program says."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.constraints import replicated
from tests.cases.compiling import cpu


def names(function: Callable) -> tuple[str, ...]:
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return replicated(jax.jit(function).trace({"w": x}, x).jaxpr.jaxpr)


def pinned(x: jax.Array, *spec: str) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(cpu(d=8), P(*spec)))


def loss(state: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.sum(x @ pinned(state["w"]))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (loss, ("state['w']",)),
        (jax.grad(lambda state, x: jax.jit(loss)(state, x)), ("state['w']",)),
        (jax.grad(jax.checkpoint(loss)), ("state['w']",)),
        (lambda state, x: pinned(x, "d"), ()),
        (lambda state, x: pinned(jnp.sin(x)), ()),
    ],
    ids=["of an argument", "under jit", "under checkpoint", "split", "of a result"],
)
def test_a_constraint_replicates_the_argument_that_it_is_laid_on(function, found):
    assert names(function) == found
