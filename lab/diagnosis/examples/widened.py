"""A weight in bfloat16 that is cast to float32 before it is gathered."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    def gathered(w):
        return jax.lax.all_gather(w.astype(jnp.float32), "data", tiled=True)

    w = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))
    return jax.shard_map(gathered, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False), (w,)
