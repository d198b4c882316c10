"""A constraint on the last dim that replicates the first, which is split before and after."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    split = NamedSharding(mesh, P("data", None, "tensor"))

    def step(x):
        x = jax.lax.with_sharding_constraint(jnp.cos(x), NamedSharding(mesh, P(None, None, "tensor")))
        return jnp.sin(x)

    x = jax.ShapeDtypeStruct((16, 64, 128), jnp.float32, sharding=split)
    return jax.jit(step, out_shardings=split), (x,)
