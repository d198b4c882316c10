"""One dim that is split over two axes, in another order before and after."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P(("data", "fsdp"))))
    return jax.jit(lambda x: 2 * x, out_shardings=NamedSharding(mesh, P(("fsdp", "data")))), (x,)
