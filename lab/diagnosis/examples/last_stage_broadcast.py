"""A pipeline of four stages whose last output is taken in every tick."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    stages = NamedSharding(mesh, P("pipe"))

    def run(ws, xs):
        def tick(states, x):
            states = jnp.roll(states, 1, axis=0).at[0].set(x)
            states = jax.lax.with_sharding_constraint(jnp.tanh(jnp.einsum("srd,sde->sre", states, ws)), stages)
            return states, states[-1]

        start = jax.lax.with_sharding_constraint(jnp.zeros((4, 32, 64)), stages)
        return jax.lax.scan(tick, start, xs)[1]

    ws = jax.ShapeDtypeStruct((4, 64, 64), jnp.float32, sharding=stages)
    xs = jax.ShapeDtypeStruct((7, 32, 64), jnp.float32, sharding=NamedSharding(mesh, P()))
    return jax.jit(run, out_shardings=NamedSharding(mesh, P())), (ws, xs)
