"""A table that the function closes over."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    table = jnp.asarray(np.random.default_rng(0).normal(size=(512, 512)), jnp.float32)
    rows = NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((64, 512), jnp.float32, sharding=rows)
    return jax.jit(lambda x: x @ table, out_shardings=rows), (x,)
