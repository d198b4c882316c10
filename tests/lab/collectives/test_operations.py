"""Operations other than a sum of integers; arrays of every shape; floats within the bound of their order of
summation."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import collectives
from lab.collectives import ALGORITHMS
from lab.meshes.axes import Axes
from tests.lab.collectives.sweep import (
    Case,
    cases,
    cpu_mesh,
    exact_on_any_shape,
    on_ranks,
)

pytestmark = pytest.mark.compiles

RINGS = [Axes(("data",), (ranks,)) for ranks in range(1, 9)]
SEVERAL = [
    Axes.parse(text) for text in ("data=2,tensor=3", "data=4,tensor=2", "data=2,fsdp=2,tensor=2", "data=1,tensor=3")
]


def over(axes: Axes, primitive: str) -> list[str]:
    return [case.algorithm for case in cases(axes, lambda one, _: one == primitive)]


test_any_shape_and_number_of_ranks_gives_what_numpy_gives = exact_on_any_shape(RINGS, examples=30)
test_any_shape_over_several_axes_gives_what_numpy_gives = exact_on_any_shape(SEVERAL, examples=30)


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
    most, least = on_ranks(
        lambda x: [collectives.all_reduce(x, "data", "lax", op) for op in (jnp.maximum, jnp.minimum)], 3
    )(x_PN)
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


REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


def reductions(axes: Axes) -> list[Case]:
    return cases(axes, lambda primitive, _: primitive in REDUCTIONS)


def additions(case: Case) -> int:
    return ALGORITHMS[case.primitive][case.algorithm].additions(case.axes)


@pytest.mark.parametrize("sizes", [(2,), (4,), (7,), (2, 2, 2)], ids=str)
def test_a_term_goes_through_as_many_additions_as_stated(sizes):
    """Where `op` counts how deep its results lie. A double tree, whose inner ranks have one child or two, may take
    fewer than it states."""
    axes = Axes(("data", "fsdp", "tensor")[: len(sizes)], sizes)
    counted = [case for case in reductions(axes) if case.algorithm != "lax"]

    def depths(x: jax.Array) -> list[jax.Array]:
        return [case.kernel(x, op=lambda a, b: jnp.maximum(a, b) + 1).max() for case in counted]

    for case, found in zip(counted, on_ranks(depths, axes)(np.zeros((axes.size, 7), np.int32)), strict=True):
        stated, deepest = additions(case), int(found.max())
        assert deepest == stated or (case.algorithm == "double_tree" and deepest < stated), case


@pytest.mark.parametrize("axes", [Axes.parse("data=7"), Axes.parse("data=2,tensor=3")], ids=str)
def test_float_sums_err_by_no_more_than_their_additions_allow(axes):
    """|error| <= k eps sum |x| for k additions in a row (Higham 2002, section 4.2)."""
    x_PN = (
        np.random.default_rng(2).standard_normal((axes.size, 50, 1)) * 10.0 ** np.arange(axes.size)[:, None, None]
    ).astype(np.float32)
    x64_PN, swept = x_PN.astype(np.float64), reductions(axes)
    for case, found in zip(swept, on_ranks(lambda x: [one.kernel(x) for one in swept], axes)(x_PN), strict=True):
        allowed = additions(case) * np.finfo(np.float32).eps * case.expected(np.abs(x64_PN))
        assert (np.abs(np.asarray(found, np.float64) - case.expected(x64_PN)) <= allowed).all(), case


def test_the_ranks_of_an_all_reduce_agree_bit_for_bit_whatever_they_round():
    """While the algorithms differ in their last bits: `ch11.fp_nonassoc`."""
    x_PN = np.random.default_rng(3).standard_normal((7, 50)).astype(np.float32)
    names = over(RINGS[6], "all_reduce")
    found = np.asarray(on_ranks(lambda x: [collectives.all_reduce(x, "data", name) for name in names], 7)(x_PN))
    assert [name for name, one in zip(names, found, strict=True) if (one != one[0]).any()] == []
    assert np.any(found[names.index("ring")] != found[names.index("tree")])


def test_a_tree_of_arrays_is_dealt_with_leaf_by_leaf():
    x = {"w": np.arange(24, dtype=np.float32).reshape(4, 2, 3), "scale": np.arange(4, dtype=np.int32)}
    summed = on_ranks(lambda x: collectives.all_reduce(x, "data"), 4)(x)
    np.testing.assert_array_equal(summed["w"][3], x["w"].sum(0))
    assert (summed["scale"] == 6).all() and (summed["w"].dtype, summed["scale"].dtype) == (np.float32, np.int32)


def test_truth_values_are_joined_by_or_and_stay_truth_values():
    axes = RINGS[3]
    swept = [case for case in reductions(axes) if (case.primitive, case.algorithm) != ("reduce_scatter", "lax")]
    x = np.eye(4, dtype=bool)[:, :3, None]
    for case, found in zip(swept, on_ranks(lambda x: [one.kernel(x) for one in swept], axes)(x), strict=True):
        assert found.dtype == bool and np.array_equal(found, case.expected(x)), case


MOVING = ("broadcast", "scatter", "gather", "all_gather", "all_to_all", "permute")
# The sign of a zero among them, but no subnormal number: XLA for CPUs flushes those of bfloat16 in any operation, from
# jax 0.11 on.
BITS = np.array([-0.0, 0.0, np.nan, -np.inf, 1e-30, 3.5, -7.25], np.float32)


def test_what_only_moves_data_keeps_every_bit_of_every_dtype():
    axes = RINGS[2]
    swept = cases(axes, lambda primitive, _: primitive in MOVING)
    floats = np.stack([np.roll(BITS, rank) for rank in range(axes.size)])[..., None]
    x = [
        floats,
        floats.astype(jnp.bfloat16),
        np.stack([floats, floats[:, ::-1]], -1).view(np.complex64)[..., 0],
        np.signbit(floats),
        floats.view(np.int8),
    ]

    def moved(x: list[jax.Array]) -> list[list[jax.Array]]:
        return [case.kernel(x) for case in swept]

    for case, found in zip(swept, on_ranks(moved, axes)(x), strict=True):
        for one, before in zip(found, x, strict=True):
            assert (
                np.asarray(one).dtype == before.dtype
                and np.asarray(one).tobytes() == np.asarray(case.expected(before)).tobytes()
            ), case


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

    sums = jax.jit(
        jax.shard_map(one_rank, mesh=cpu_mesh(Axes(("data",), (4,))), in_specs=spec(), out_specs=spec("data"))
    )
    assert (np.asarray(sums(jnp.arange(3))) == 4 * np.arange(3)).all()
