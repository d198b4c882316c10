"""Queries split by heads, and a weight of all heads that is split along its latent dim."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def latent(q, w):
    return jnp.einsum("bhd,rhd->bhr", q, w)


def build(mesh):
    q = jax.ShapeDtypeStruct((64, 16, 128), jnp.float32, sharding=NamedSharding(mesh, P(None, "model")))
    w = jax.ShapeDtypeStruct((512, 16, 128), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    return jax.jit(latent), (q, w)
