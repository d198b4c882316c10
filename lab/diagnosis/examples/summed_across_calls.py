"""One call a micro-batch, whose gradient is added to those of the calls before."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def add(total, w, x):
    return total + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)


def build(mesh):
    whole = NamedSharding(mesh, P())
    w = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=whole)
    x = jax.ShapeDtypeStruct((1024, 256), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(add, donate_argnums=0, out_shardings=whole), (w, w, x)
