"""What an algorithm cannot do is said in one line."""

import jax.numpy as jnp
import numpy as np
import pytest

from lab import collectives
from lab.collectives import cost
from meshes.axes import Axes
from meshes.errors import Unusable
from tests.lab.collectives.sweep import on_ranks


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x: collectives.all_reduce(x, "data", "butterfly"), "all_reduce: unknown algorithm 'butterfly'; known are lax, ring"),
        (lambda x: collectives.reduce_scatter(x, "data", "halving"), "by halving over data=3: found 3 ranks, expected a power of two"),
        (lambda x: collectives.all_gather(x, "data", "doubling"), "by doubling over data=3: found 3 ranks, expected a power of two"),
        (lambda x: collectives.all_reduce(x, "data", "torus"), "found the one axis data=3, expected two or more, outermost first"),
        (lambda x: collectives.all_reduce(x, "data", "lax", jnp.multiply), "expected jnp.add, jnp.maximum or jnp.minimum"),
        (lambda x: collectives.reduce_scatter(x, "data", "lax", jnp.maximum), "expected jnp.add; name another algorithm"),
        (
            lambda x: collectives.all_reduce(x, "data", "ring", jnp.matmul),
            "op makes int32[] of two int32[3]; here it meets flattened parts of arrays and must keep shape and dtype",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", "tree", jnp.logical_or),
            "op makes bool[2, 2] of two int32[2, 2]; here it meets whole arrays and must keep shape and dtype",
        ),
        (lambda x: collectives.broadcast(x, "data", root=3), "broadcast over data=3: found root 3, expected 0 to 2"),
        (lambda x: collectives.reduce_scatter(x[0, 0], "data"), "found an array without a dim, expected rows"),
    ],
)
def test_refused_in_one_line(kernel, message):
    with pytest.raises(Unusable) as refused:
        on_ranks(kernel, 3)(np.zeros((3, 2, 2), np.int32))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_cost_is_refused_where_the_kernel_is():
    with pytest.raises(Unusable, match="found 6 ranks, expected a power of two"):
        cost("all_gather", "doubling", Axes.of({"data": 6}), 12, 4)
    with pytest.raises(Unusable, match="unknown algorithm 'fast'"):
        cost("all_gather", "fast", Axes.of({"data": 6}), 12, 4)
