"""A norm's scale that is split beside activations that are whole."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    rows = NamedSharding(mesh, P("data", None))

    def scaled(scale, x):
        return jax.lax.with_sharding_constraint(
            jax.lax.with_sharding_constraint(x * scale, NamedSharding(mesh, P("data", "tensor"))), rows
        )

    scale = jax.ShapeDtypeStruct((256,), jnp.float32, sharding=NamedSharding(mesh, P("tensor")))
    x = jax.ShapeDtypeStruct((1024, 256), jnp.float32, sharding=rows)
    return jax.jit(scaled), (scale, x)
