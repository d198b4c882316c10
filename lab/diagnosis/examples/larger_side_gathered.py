"""A product of few rows with a weight that is split by rows."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    rows = NamedSharding(mesh, P("tensor"))
    x = jax.ShapeDtypeStruct((64, 1024), jnp.float32, sharding=rows)
    w = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=rows)
    return jax.jit(jnp.matmul, out_shardings=rows), (x, w)
