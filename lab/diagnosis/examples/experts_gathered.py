"""A layer of eight experts whose tokens are constrained to the experts at once."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    split = NamedSharding(mesh, P("expert"))

    def layer(x, sent, w):
        tokens = jax.lax.with_sharding_constraint(jnp.einsum("tec,td->ecd", sent, x), split)
        outputs = jax.lax.with_sharding_constraint(jnp.einsum("ecd,edf->ecf", tokens, w), split)
        return jnp.einsum("tec,ecf->tf", sent, outputs)

    x = jax.ShapeDtypeStruct((256, 64), jnp.float32, sharding=split)
    sent = jax.ShapeDtypeStruct((256, 8, 32), jnp.float32, sharding=split)
    w = jax.ShapeDtypeStruct((8, 64, 128), jnp.float32, sharding=split)
    return jax.jit(layer, out_shardings=split), (x, sent, w)
