"""Operations other than a sum of integers; arrays of every shape; floats within the bound of their order of summation."""

from collections.abc import Callable
from functools import cache, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import collectives
from lab.collectives import ALGORITHMS
from meshes.axes import Axes
from tests.lab.collectives.sweep import Case, cpu_mesh, on_ranks

def over(axes: Axes, primitive: str) -> list[str]:
    return [name for name, algorithm in ALGORITHMS[primitive].items() if not algorithm.misfit(axes)]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.data())
def test_any_shape_and_number_of_ranks_gives_what_numpy_gives(data):
    ranks = data.draw(st.integers(1, 8), label="ranks")
    axes = Axes(("data",), (ranks,))
    primitive = data.draw(st.sampled_from([p for p in ALGORITHMS if p != "barrier"]), label="primitive")
    algorithm = data.draw(st.sampled_from(over(axes, primitive)), label="algorithm")
    rows, width = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 3)), label="shape")
    case = Case(primitive, algorithm, axes, width)
    x = np.random.default_rng(rows).integers(-(2**31), 2**31, (ranks, rows, width), np.int32)
    np.testing.assert_array_equal(on_ranks(case.kernel, ranks)(x), case.expected(x))


def test_padding_leaks_into_no_maximum_and_no_product():
    """Zeros would win against negative numbers, and make products vanish."""
    ranks = 6
    negative = np.random.default_rng(0).integers(-5, 0, (ranks, 7), np.int32)
    ops = {jnp.maximum: np.max, jnp.multiply: np.prod}
    names = [name for name in over(Axes(("data",), (ranks,)), "all_reduce") if name != "lax"]

    def everything(x: jax.Array) -> list[list[jax.Array]]:
        return [[collectives.all_reduce(x, "data", name, op) for op in ops] for name in names]

    for name, results in zip(names, on_ranks(everything, ranks)(negative), strict=True):
        for result, reference in zip(results, ops.values(), strict=True):
            assert (np.asarray(result) == reference(negative, axis=0)).all(), name


def test_lax_takes_maximum_and_minimum_too():
    x_PN = np.random.default_rng(0).integers(-99, 99, (3, 7), np.int32)
    most, least = on_ranks(lambda x: [collectives.all_reduce(x, "data", "lax", op) for op in (jnp.maximum, jnp.minimum)], 3)(x_PN)
    assert (most == x_PN.max(0)).all() and (least == x_PN.min(0)).all()


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("algorithm", ["doubling", "tree"])
def test_products_of_matrices_come_in_the_order_of_ranks(algorithm, ranks):
    x_PMM = np.random.default_rng(1).integers(-3, 4, (ranks, 3, 3), np.int32)
    product = on_ranks(lambda x: collectives.all_reduce(x, "data", algorithm, jnp.matmul), ranks)(x_PMM)
    np.testing.assert_array_equal(product, np.broadcast_to(reduce(np.matmul, x_PMM), x_PMM.shape))


def test_a_tree_reduces_matrices_to_rank_0_in_the_order_of_ranks():
    x_PMM = np.random.default_rng(1).integers(-3, 4, (5, 3, 3), np.int32)
    product = on_ranks(lambda x: collectives.reduce(x, "data", 0, "tree", jnp.matmul), 5)(x_PMM)
    np.testing.assert_array_equal(product[0], reduce(np.matmul, x_PMM))
    assert not np.any(product[1:])


# Additions that one term may go through, at most: what bounds the rounding error.
ADDITIONS = {
    "doubling": lambda P: P.bit_length() + 1,
    "halving_doubling": lambda P: P.bit_length() + 1,
    "halving": lambda P: P.bit_length(),
    "circulant": lambda P: P.bit_length(),
    "tree": lambda P: 2 * P.bit_length(),
    "double_tree": lambda P: 2 * P.bit_length(),
    "bidirectional_ring": lambda P: P // 2 + 2,
}


@cache
def all_reduces(ranks: int) -> tuple[list[str], Callable[[np.ndarray], list[jax.Array]]]:
    """The names of the algorithms, and a function of stacked arrays to what each gives."""
    names = over(Axes(("data",), (ranks,)), "all_reduce")
    return names, on_ranks(lambda x: [collectives.all_reduce(x, "data", name) for name in names], ranks)


def test_float_sums_err_by_no_more_than_their_additions_allow():
    """|error| <= k eps sum |x| for k additions in a row (Higham 2002, section 4.2), P - 1 at most."""
    ranks = 7
    x_PN = (np.random.default_rng(2).standard_normal((ranks, 50)) * 10.0 ** np.arange(ranks)[:, None]).astype(np.float32)
    exact, size = x_PN.astype(np.float64).sum(0), np.abs(x_PN.astype(np.float64)).sum(0)
    names, sums = all_reduces(ranks)
    for name, found in zip(names, sums(x_PN), strict=True):
        additions = ADDITIONS.get(name, lambda P: P - 1)(ranks)
        assert (np.abs(np.asarray(found, np.float64) - exact) <= additions * np.finfo(np.float32).eps * size).all(), name


def test_the_ranks_of_an_all_reduce_agree_bit_for_bit_whatever_they_round():
    """While the algorithms differ in their last bits: `ch11.fp_nonassoc`."""
    x_PN = np.random.default_rng(3).standard_normal((7, 50)).astype(np.float32)
    names, sums = all_reduces(7)
    found = np.asarray(sums(x_PN))
    assert [name for name, one in zip(names, found, strict=True) if (one != one[0]).any()] == []
    assert np.any(found[names.index("ring")] != found[names.index("tree")])


def test_a_tree_of_arrays_is_dealt_with_leaf_by_leaf():
    x = {"w": np.arange(24, dtype=np.float32).reshape(4, 2, 3), "scale": np.arange(4, dtype=np.int32)}
    summed = on_ranks(lambda x: collectives.all_reduce(x, "data"), 4)(x)
    np.testing.assert_array_equal(summed["w"][3], x["w"].sum(0))
    assert (summed["scale"] == 6).all() and (summed["w"].dtype, summed["scale"].dtype) == (np.float32, np.int32)


def test_truth_values_are_joined_by_or():
    found = on_ranks(lambda x: collectives.all_reduce(x, "data", op=jnp.logical_or), 4)(np.eye(4, dtype=bool)[:, :3])
    assert found.dtype == bool and found.all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_narrow_types_stay_narrow(dtype):
    found = on_ranks(lambda x: collectives.all_reduce(x, "data", "circulant"), 3)(jnp.ones((3, 5), dtype))
    assert found.dtype == dtype and (found == 3).all()


def test_a_permute_sends_zeros_where_nobody_sends():
    x_P = np.arange(1, 5)
    assert on_ranks(lambda x: collectives.permute(x, "data", [(0, 2), (2, 0)]), 4)(x_P).tolist() == [3, 0, 1, 0]
    assert on_ranks(lambda x: collectives.permute({"x": x}, "data", -1), 4)(x_P)["x"].tolist() == [2, 3, 4, 1]


def test_an_array_that_is_the_same_everywhere_may_enter():
    names, spec = ("lax", "ring", "doubling", "tree"), jax.sharding.PartitionSpec

    def one_rank(x: jax.Array) -> list[jax.Array]:
        return [collectives.all_reduce(x, "data", name)[None] for name in names]

    sums = jax.jit(jax.shard_map(one_rank, mesh=cpu_mesh(Axes(("data",), (4,))), in_specs=spec(), out_specs=spec("data")))
    assert (np.asarray(sums(jnp.arange(3))) == 4 * np.arange(3)).all()
