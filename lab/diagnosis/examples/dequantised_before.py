"""A weight that is stored in 8 bits with a scale for each row, and dequantised before it is gathered."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    rows = P("fsdp", None)

    def gathered(q, scale):
        return jax.lax.all_gather(q.astype(jnp.bfloat16) * scale, "fsdp", tiled=True)

    q = jax.ShapeDtypeStruct((1024, 1024), jnp.int8, sharding=NamedSharding(mesh, rows))
    scale = jax.ShapeDtypeStruct((1024, 1), jnp.bfloat16, sharding=NamedSharding(mesh, rows))
    return jax.shard_map(gathered, mesh=mesh, in_specs=(rows, rows), out_specs=P(), check_vma=False), (q, scale)
