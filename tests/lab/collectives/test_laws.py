"""The algebra of Part III, in its true form, for every algorithm; on integers, so exact.

A collective is a linear map of the stacked buffers of all ranks. AR sums to all, RS sums and keeps one's own block, AG
joins the blocks, A2A transposes the matrix of blocks.
"""

from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import collectives
from lab.collectives import ALGORITHMS
from lab.meshes.axes import Axes
from tests.lab.collectives.sweep import ROOTED, on_ranks

pytestmark = pytest.mark.compiles

P = 4
AXES = Axes(("data",), (P,))
ROOT = 2
Kernel = Callable[[jax.Array], jax.Array]


def kernels(primitive: str, **how: Any) -> dict[str, Kernel]:
    """The algorithms of a primitive over the one axis, by name."""
    root = {"root": ROOT} if primitive in ROOTED else {}

    def one(name: str) -> Kernel:
        return lambda x: getattr(collectives, primitive)(x, "data", algorithm=name, **root, **how)

    return {name: one(name) for name, algorithm in ALGORITHMS[primitive].items() if not algorithm.misfit(AXES)}


@cache
def compiled(primitive: str) -> Callable[[np.ndarray], list[jax.Array]]:
    return on_ranks(lambda x: [kernel(x) for kernel in kernels(primitive).values()], P)


def images(primitive: str, x: np.ndarray) -> list[np.ndarray]:
    """What each algorithm of the primitive makes of the buffers x, [ranks, ...]."""
    return list(map(np.asarray, compiled(primitive)(x)))


def composed(second: str, first: str, x: np.ndarray) -> list[np.ndarray]:
    """Every algorithm of the one after every algorithm of the other."""
    return list(chain.from_iterable(images(second, image) for image in images(first, x)))


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small enough that float32 sums of their products are exact."""
    return np.random.default_rng(seed).integers(-9, 10, (P, *shape)).astype(np.float32)


def all_equal(found: list[np.ndarray], expected: np.ndarray) -> bool:
    return len(found) > 1 and all(np.array_equal(one, expected) for one in found)


def everywhere(y: np.ndarray) -> np.ndarray:
    return np.broadcast_to(y, (P, *y.shape))


def test_all_gather_after_reduce_scatter_is_all_reduce():
    x = integers(2 * P)
    assert all_equal(composed("all_gather", "reduce_scatter", x), everywhere(x.sum(0)))
    assert all_equal(images("all_reduce", x), everywhere(x.sum(0)))


def test_it_is_for_a_maximum_as_well():
    x = integers(2 * P)
    scatters = [kernel for name, kernel in kernels("reduce_scatter", op=jnp.maximum).items() if name != "lax"]
    found = on_ranks(lambda x: [collectives.all_gather(scatter(x), "data") for scatter in scatters], P)(x)
    assert all_equal(found, everywhere(x.max(0)))


def test_reduce_scatter_after_all_gather_is_p_times_the_identity():
    x = integers(2)
    assert all_equal(composed("reduce_scatter", "all_gather", x), P * x)


def test_the_all_reduce_of_an_all_reduce_is_p_times_it():
    x = integers(2 * P)
    assert all_equal(composed("all_reduce", "all_reduce", x), P * everywhere(x.sum(0)))


def test_a_mean_is_a_projection():
    x = P * integers(2 * P)
    means = [total / P for total in images("all_reduce", x)]
    assert all_equal(means, everywhere(x.mean(0)))
    assert all_equal([total / P for mean in means for total in images("all_reduce", mean)], means[0])


def test_all_to_all_undoes_itself():
    x = integers(2 * P)
    assert all_equal(composed("all_to_all", "all_to_all", x), x)
    assert not all_equal(images("all_to_all", x), x)


def test_gather_undoes_scatter_on_the_root_and_scatter_gather_everywhere():
    x = integers(2 * P)
    assert all_equal(composed("gather", "scatter", x), np.where(np.arange(P)[:, None] == ROOT, x, 0))
    assert all_equal(composed("scatter", "gather", x[:, :2]), x[:, :2])


def test_reduce_then_broadcast_is_all_reduce():
    x = integers(2 * P)
    assert all_equal(composed("broadcast", "reduce", x), everywhere(x.sum(0)))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.permutations(range(P)))
def test_a_permutation_is_undone_by_its_inverse_which_is_its_adjoint(order):
    forth = list(enumerate(order))
    back = [(target, source) for source, target in forth]

    def there_and_back(x: jax.Array) -> list[jax.Array]:
        moved = collectives.permute(x, "data", forth)
        return [
            collectives.permute(moved, "data", back),
            transposed(lambda x: collectives.permute(x, "data", forth), 3)(moved),
        ]

    x = integers(3)
    assert all_equal(on_ranks(there_and_back, P)(x), x)


def test_a_permute_that_leaves_a_rank_out_has_no_inverse():
    """So permutes, let alone collectives, are no group: one that forgets what a rank had cannot be undone."""
    partial = on_ranks(lambda x: collectives.permute(x, "data", [(0, 1), (1, 2)]), P)
    one, other = integers(3, seed=1), integers(3, seed=1)
    other[3] += 1
    assert np.array_equal(partial(one), partial(other))


@pytest.mark.parametrize("primitive", ["all_reduce", "reduce_scatter", "reduce", "broadcast"])
def test_what_mixes_ranks_has_no_inverse(primitive):
    """Two inputs that differ, one result."""
    one, other = integers(2 * P), integers(2 * P)
    other[:2] += [[1], [-1]]
    assert all(np.array_equal(a, b) for a, b in zip(images(primitive, one), images(primitive, other), strict=True))


def transposed(kernel: Kernel, *shape: int) -> Kernel:
    """The adjoint of a kernel of arrays of this shape a rank, by automatic differentiation."""

    def adjoint(y: jax.Array) -> jax.Array:
        zeros = jax.lax.pcast(jnp.zeros(shape, jnp.float32), "data", to="varying")
        (x,) = jax.linear_transpose(kernel, zeros)(y)
        return x

    return adjoint


adjoints = pytest.mark.parametrize(
    ("primitive", "adjoint", "rows"),
    [
        ("all_reduce", "all_reduce", 2 * P),
        ("reduce_scatter", "all_gather", 2 * P),
        ("all_gather", "reduce_scatter", 2),
        ("all_to_all", "all_to_all", 2 * P),
        ("broadcast", "reduce", 2 * P),
        ("reduce", "broadcast", 2 * P),
        ("scatter", "gather", 2 * P),
        ("gather", "scatter", 2),
    ],
)


@adjoints
def test_the_transpose_of_every_algorithm_is_the_adjoint_primitive(primitive, adjoint, rows):
    y = integers(*images(primitive, integers(rows))[0].shape[1:], seed=5)
    transposes = [transposed(kernel, rows) for kernel in kernels(primitive).values()]
    assert all_equal(on_ranks(lambda y: [transpose(y) for transpose in transposes], P)(y), images(adjoint, y)[0])


@adjoints
def test_scalar_products_agree_across_adjoints(primitive, adjoint, rows):
    """<A x, y> = <x, A' y>, over all ranks."""
    x = integers(rows)
    there = images(primitive, x)
    y = integers(*there[0].shape[1:], seed=5)
    products = {float((image * y).sum()) for image in there} | {float((x * back).sum()) for back in images(adjoint, y)}
    assert len(products) == 1 and products != {0.0}


def test_axes_may_be_reduced_one_by_one_in_either_order():
    axes = Axes(("data", "tensor"), (2, 3))
    x = np.random.default_rng(0).integers(-99, 99, (6, 5)).astype(np.int32)
    orders = [("data", "tensor"), ("tensor", "data")]

    def in_turn(x: jax.Array, names: tuple[str, ...]) -> jax.Array:
        for name in names:
            x = collectives.all_reduce(x, name)
        return x

    for found in on_ranks(lambda x: [in_turn(x, order) for order in orders], axes)(x):
        np.testing.assert_array_equal(found, np.broadcast_to(x.sum(0), x.shape))


def test_scattering_inside_reducing_across_and_gathering_is_all_reduce():
    """AR(g x n) = AG_g o AR_n o RS_g, as `ch12.hier2d` has it."""
    axes = Axes(("data", "tensor"), (2, 3))
    x = np.random.default_rng(0).integers(-99, 99, (6, 6)).astype(np.int32)

    def three(x: jax.Array) -> jax.Array:
        return collectives.all_gather(collectives.all_reduce(collectives.reduce_scatter(x, "tensor"), "data"), "tensor")

    np.testing.assert_array_equal(on_ranks(three, axes)(x), np.broadcast_to(x.sum(0), x.shape))


def test_two_scatters_over_one_axis_do_not_compose_to_one():
    """A composition is a collective only where the one leaves blocks as the other takes them."""
    x = integers(P * P)
    twice = on_ranks(lambda x: collectives.reduce_scatter(collectives.reduce_scatter(x, "data"), "data"), P)(x)
    once = on_ranks(lambda x: collectives.reduce_scatter(x, "data"), P)(x)
    assert twice.shape != once.shape and not np.array_equal(np.ravel(twice), np.ravel(once)[:P])


def test_accumulating_then_reducing_is_reducing_then_accumulating():
    x = integers(3, 5)
    late = on_ranks(lambda x: collectives.all_reduce(x.sum(0), "data"), P)(x)
    early = on_ranks(lambda x: sum(collectives.all_reduce(one, "data") for one in x), P)(x)
    np.testing.assert_array_equal(late, early)
