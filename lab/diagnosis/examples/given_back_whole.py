"""The gradient of a split weight, returned without the weight's sharding."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    w = jax.ShapeDtypeStruct((32, 128), jnp.float32, sharding=rows)
    x = jax.ShapeDtypeStruct((256, 32), jnp.float32, sharding=rows)

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)) ** 2)

    return jax.jit(jax.grad(loss), out_shardings=whole), (w, x)
