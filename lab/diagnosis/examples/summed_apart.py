"""The gradient of a table that is used twice, to look up and to predict."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def loss(table, tokens, target):
        return jnp.mean((jnp.tanh(table[tokens]) @ table.T - target) ** 2)

    table = jax.ShapeDtypeStruct((1024, 64), jnp.float32, sharding=whole)
    tokens = jax.ShapeDtypeStruct((256,), jnp.int32, sharding=split)
    target = jax.ShapeDtypeStruct((256, 1024), jnp.float32, sharding=split)
    return jax.jit(jax.grad(loss), out_shardings=whole), (table, tokens, target)
