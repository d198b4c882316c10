"""Sequences that are split over data, and a table whose rows are split over data too."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def hidden(table, up, down, tokens):
    x = table[tokens]
    return x + jax.nn.relu(x @ up) @ down


def build(mesh):
    def split(shape, *spec, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    table, tokens = split((256, 64), "model", "data"), split((64, 32), "data", dtype=jnp.int32)
    return jax.jit(hidden), (table, split((64, 128), "data", "model"), split((128, 64), "model", "data"), tokens)
