"""A sum of two arrays whose shardings clash in two dims."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    before = NamedSharding(mesh, P("tensor", None, "data"))
    after = NamedSharding(mesh, P(None, ("data", "tensor"), None))

    def add(a, b):
        return b + jax.lax.with_sharding_constraint(jnp.sin(a), after)

    a = jax.ShapeDtypeStruct((16, 32, 64), jnp.float32, sharding=before)
    b = jax.ShapeDtypeStruct((16, 32, 64), jnp.float32, sharding=after)
    return jax.jit(add, out_shardings=after), (a, b)
