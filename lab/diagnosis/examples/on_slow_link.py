"""Two layers split over an axis that spans the hosts, while the batch, of far larger activations, is split inside
them."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def step(up, down, x):
    return jax.grad(lambda up: jnp.sum((jnp.tanh(x @ up) @ down) ** 2))(up)


def build(mesh):
    columns, rows = NamedSharding(mesh, P(None, "tensor")), NamedSharding(mesh, P("tensor"))
    up = jax.ShapeDtypeStruct((512, 1024), jnp.float32, sharding=columns)
    down = jax.ShapeDtypeStruct((1024, 512), jnp.float32, sharding=rows)
    x = jax.ShapeDtypeStruct((16384, 512), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(step, out_shardings=columns), (up, down, x)
