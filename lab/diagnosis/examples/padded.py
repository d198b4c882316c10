"""Ten rows that are split over eight devices."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    def step(x):
        return jnp.sin(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))))

    x = jax.ShapeDtypeStruct((10, 64), jnp.float32, sharding=NamedSharding(mesh, P()))
    return jax.jit(step, out_shardings=NamedSharding(mesh, P())), (x,)
