"""Gate and up projection in one weight that is split by columns."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def gated(x, w):
    gate, up = jnp.split(x @ w, 2, axis=-1)
    return jax.nn.silu(gate) * up


def build(mesh):
    columns = NamedSharding(mesh, P(None, "tensor"))
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=NamedSharding(mesh, P()))
    w = jax.ShapeDtypeStruct((256, 512), jnp.float32, sharding=columns)
    return jax.jit(gated, out_shardings=columns), (x, w)
