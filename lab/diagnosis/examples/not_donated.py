"""A step of stochastic gradient descent with momentum whose parameters and momentum are not donated."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def step(w, momentum, x):
    gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    momentum = 0.9 * momentum + gradient
    return w - 0.1 * momentum, momentum


def build(mesh):
    rows = NamedSharding(mesh, P("fsdp"))
    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows) for shape in ((1024, 1024), (4096, 1024)))
    return jax.jit(step, out_shardings=rows), (w, w, x)
