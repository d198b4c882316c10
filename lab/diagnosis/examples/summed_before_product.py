"""Scores of a query against keys that are looked up in pages split over devices."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    def scores(query, pages, table):
        return jnp.einsum("d,npd->np", query, pages[table])

    query = jax.ShapeDtypeStruct((64,), jnp.float32, sharding=NamedSharding(mesh, P()))
    pages = jax.ShapeDtypeStruct((128, 16, 64), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    table = jax.ShapeDtypeStruct((8,), jnp.int32, sharding=NamedSharding(mesh, P()))
    return jax.jit(scores, out_shardings=NamedSharding(mesh, P())), (query, pages, table)
