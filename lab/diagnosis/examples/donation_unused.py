"""A donated state whose successor has another dtype."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def update(state, gradient):
    return (state - gradient).astype(jnp.bfloat16)


def build(mesh):
    rows = NamedSharding(mesh, P("data"))
    state = jax.ShapeDtypeStruct((1024, 64), jnp.float32, sharding=rows)
    return jax.jit(update, out_shardings=rows, donate_argnums=0), (state, state)
