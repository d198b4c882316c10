"""Adam's two moments, made under jit without a sharding."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def moments(w):
    return {"m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def build(mesh):
    w = jax.ShapeDtypeStruct((512, 256), jnp.float32, sharding=NamedSharding(mesh, P("fsdp")))
    return moments, (w,)
