"""A gradient in bfloat16, compiled for CPUs."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def gradient(w, x):
    return jax.grad(lambda w: jnp.sum((x @ w).astype(jnp.float32) ** 2))(w)


def build(mesh):
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    w = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=whole)
    x = jax.ShapeDtypeStruct((64, 256), jnp.bfloat16, sharding=rows)
    return jax.jit(gradient, out_shardings=whole), (w, x)
