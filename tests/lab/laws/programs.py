"""A program as a user writes one, whose builder takes sizes."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh, *, layers=3, batch=16, embed=64):
    """Matrices sharded over fsdp, gathered layer by layer; the loss of a batch that is sharded over it."""

    def sharded(*spec):
        return NamedSharding(mesh, P(*spec))

    w = jax.ShapeDtypeStruct((layers, embed, embed), jnp.float32, sharding=sharded(None, "fsdp", None))
    x = jax.ShapeDtypeStruct((batch, embed), jnp.float32, sharding=sharded("fsdp", None))

    def loss(w, x):
        def layer(x, w):
            whole = jax.lax.with_sharding_constraint(w, sharded())
            return jax.lax.with_sharding_constraint(jnp.tanh(x @ whole), sharded("fsdp", None)), None

        y, _ = jax.lax.scan(layer, x, w)
        return jnp.mean(y**2)

    return jax.jit(loss), (w, x)
