"""Random numbers of a split array without partitionable keys."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def draw(key):
    with jax.threefry_partitionable(False):
        return jax.random.normal(key, (512, 256))


def build(mesh):
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.jit(draw, out_shardings=NamedSharding(mesh, P("data"))), (key,)
