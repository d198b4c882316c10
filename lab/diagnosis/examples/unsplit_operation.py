"""A Fourier transform of each row of a batch that is split by rows."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def build(mesh):
    rows = NamedSharding(mesh, P("data"))
    x = jax.ShapeDtypeStruct((64, 256), jnp.complex64, sharding=rows)
    return jax.jit(jnp.fft.fft, out_shardings=rows), (x,)
