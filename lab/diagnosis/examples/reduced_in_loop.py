"""Gradients of four micro-batches that a scan adds up."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def accumulated(w, micro_batches):
    def add(total, x):
        return total + jax.grad(loss)(w, x), None

    return jax.lax.scan(add, jnp.zeros_like(w), micro_batches)[0]


def build(mesh):
    whole, batches = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "data"))
    w = jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=whole)
    micro_batches = jax.ShapeDtypeStruct((4, 1024, 256), jnp.float32, sharding=batches)
    return jax.jit(accumulated, out_shardings=whole), (w, micro_batches)
