"""What an algorithm cannot do is said in one line."""

import jax.numpy as jnp
import numpy as np
import pytest

from lab import collectives
from lab.collectives import ALGORITHMS, cost, permute_cost
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from tests.lab.collectives.sweep import on_ranks


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            lambda x: collectives.all_reduce(x, "data", "butterfly"),
            "all_reduce: no algorithm 'butterfly'; known are lax, ring",
        ),
        (
            lambda x: collectives.reduce_scatter(x, "data", "halving"),
            "by halving over data=3: found 3 ranks, expected a power of two",
        ),
        (
            lambda x: collectives.all_gather(x, "data", "doubling"),
            "by doubling over data=3: found 3 ranks, expected a power of two",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", "torus"),
            "found the one axis data=3, expected two or more, outermost first",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", "lax", jnp.multiply),
            "expected jnp.add, jnp.maximum or jnp.minimum",
        ),
        (
            lambda x: collectives.reduce_scatter(x, "data", "lax", jnp.maximum),
            "of int32, expected jnp.add of numbers; name another algorithm",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", "ring", jnp.matmul),
            "op makes int32[] of two int32[3]; here it meets flattened parts of arrays and must keep shape and dtype",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", "tree", jnp.logical_or),
            "op makes bool[2, 2] of two int32[2, 2]; here it meets whole arrays and must keep shape and dtype",
        ),
        (
            lambda x: collectives.all_reduce(x, "data", op=np.add),
            "op <ufunc 'add'> does not take two int32[3] of JAX; give one of jax.numpy",
        ),
        (lambda x: collectives.all_reduce(x, "data", op=lambda a: a), "does not take two int32[3] of JAX"),
        (
            lambda x: collectives.reduce_scatter(x > 0, "data", "lax"),
            "of bool, expected jnp.add of numbers; name another algorithm",
        ),
        (lambda x: collectives.all_reduce(x, "data", None), "all_reduce: no algorithm None; known are lax"),
        (
            lambda x: collectives.all_reduce(x, "data", ALGORITHMS["all_gather"]["ring"]),
            "all_reduce: found an algorithm of all_gather; known are lax",
        ),
        (
            lambda x: collectives.all_reduce(x, "tensor"),
            "axis 'tensor': found axes 'data' here, expected one of the mesh of the jax.shard_map",
        ),
        (
            lambda x: collectives.broadcast(x, "data", root="0"),
            "broadcast over data=3: found root '0', expected 0 to 2",
        ),
        (
            lambda x: collectives.permute(x, "data", [(0, 3)]),
            "permute over data=3: found pair (0, 3), expected (source, target) of ranks 0 to 2",
        ),
        (
            lambda x: collectives.permute(x, "data", None),
            "permute over data=3: found pairs None, expected (source, target) pairs or a number of places",
        ),
        (lambda x: collectives.permute(x, "data", [(0, 1, 2)]), "found pair (0, 1, 2), expected (source, target)"),
        (lambda x: collectives.permute(x, "data", [0, 1]), "found pair 0, expected (source, target)"),
        (
            lambda x: collectives.permute(x, "data", [(0, 1), (2, 1)]),
            "found targets 1, 1, expected each rank once at most",
        ),
        (
            lambda x: collectives.permute(x, "data", [(0, 1), (0, 2)]),
            "found sources 0, 0, expected each rank once at most",
        ),
        (lambda x: collectives.broadcast(x, "data", root=3), "broadcast over data=3: found root 3, expected 0 to 2"),
        (lambda x: collectives.reduce_scatter(x[0, 0], "data"), "found an array without a dim, expected rows"),
    ],
)
def test_refused_in_one_line(kernel, message):
    with pytest.raises(UsageError) as refused:
        on_ranks(kernel, 3)(np.zeros((3, 2, 2), np.int32))
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.compiles
def test_outside_shard_map_there_are_no_axes():
    with pytest.raises(
        UsageError,
        match="axis 'data': found axes none here, expected one of the mesh of the jax.shard_map around this call",
    ):
        collectives.all_reduce(jnp.ones(3), "data")


@pytest.mark.compiles
def test_numbers_of_numpy_are_numbers():
    one = np.int64(1)
    kernels = (lambda x: collectives.permute(x, "data", one), lambda x: collectives.broadcast(x, "data", one))
    shifted, sent = on_ranks(lambda x: [kernel(x) for kernel in kernels], 3)(np.arange(3))
    assert shifted.tolist() == [2, 0, 1] and sent.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_gather", "doubling", 6, 12, 4), "found 6 ranks, expected a power of two"),
        (("all_gather", "fast", 6, 12, 4), "no algorithm 'fast'"),
        (("nope", "ring", 6, 12, 4), "no primitive 'nope'; known are all_reduce, reduce_scatter"),
        (
            ("all_reduce", "ring", 6, -7, 4),
            "cost of -7 elements of 4 bytes: expected 0 elements or more, of 1 byte or more",
        ),
        (("all_reduce", "ring", 6, 12, 0), "cost of 12 elements of 0 bytes"),
    ],
)
def test_a_cost_is_refused_where_the_kernel_is(arguments, message):
    primitive, algorithm, ranks, *sizes = arguments
    with pytest.raises(UsageError, match=message):
        cost(primitive, algorithm, Axes.of({"data": ranks}), *sizes)


def test_the_cost_of_a_permute_is_refused_where_it_is():
    with pytest.raises(UsageError, match="found targets 1, 1, expected each rank once at most"):
        permute_cost(Axes.of({"data": 3}), [(0, 1), (2, 1)], 10, 4)
