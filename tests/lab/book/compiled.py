"""What one rank sends, counted in the text that XLA compiles for fake CPU devices; the body of a loop counts once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

# Of the result's bytes, for P ranks.
SENT = {
    "all-reduce": lambda P: 2 * (P - 1) / P,
    "all-gather": lambda P: (P - 1) / P,
    "reduce-scatter": lambda P: P - 1,
    "all-to-all": lambda P: (P - 1) / P,
    "collective-permute": lambda P: 1,
}


def sent_bytes(function, ranks, *shapes, replicated=False):
    """Wire bytes of one rank for float32 arguments of these whole shapes, each split along its first dim over the axis
    "data", as is the result unless it is `replicated`.
    """
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("data",))
    out = PartitionSpec() if replicated else PartitionSpec("data")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=out, check_vma=False)
    text = jax.jit(mapped).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text()
    found = re.findall(rf" = (\(.*?\)|\S+) ({'|'.join(SENT)})\(", text)
    return sum(
        SENT[kind](ranks) * 4 * np.prod([int(n) for n in size.split(",")])
        for shape, kind in found
        for size in re.findall(r"[fsu]32\[([\d,]+)\]", shape)
    )
