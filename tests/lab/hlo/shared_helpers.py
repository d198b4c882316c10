"""What every module of a code base calls: lines in which all of its transfers stand."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def einsum(x_BD, w_DF):
    return jnp.einsum("bd,df->bf", x_BD, w_DF)


def constrain(x_BD, *axes):
    return _placed(x_BD, P(*axes))


def _placed(x_BD, spec):
    return jax.lax.with_sharding_constraint(x_BD, spec)
