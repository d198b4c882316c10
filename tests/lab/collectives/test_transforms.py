"""Under grad and scan: gradients are those of `jax.lax`, and a loop sends as often as it runs."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import collectives
from lab.collectives import ALGORITHMS
from lab.meshes.axes import Axes
from tests.lab.collectives.sweep import ROWS, Case, on_ranks, rows, shown

pytestmark = pytest.mark.compiles

WIDTH = 3


def over(axes: Axes, primitive: str) -> list[Case]:
    return [
        Case(primitive, name, axes, WIDTH)
        for name, algorithm in ALGORITHMS[primitive].items()
        if not algorithm.misfit(axes)
    ]


@pytest.mark.parametrize("primitive", [p for p in ALGORITHMS if p not in ("permute", "barrier")])
def test_gradients_are_those_of_lax(primitive):
    """Of the squares of all that a rank gets, weighted by position; on integers, so exact; 3 does not divide 7 rows."""
    ranks = 3
    swept = over(Axes(("data",), (ranks,)), primitive)

    def gradient(case: Case, x: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            y = case.kernel(x)
            return jnp.sum(jnp.arange(1.0, y.size + 1).reshape(y.shape) * y * y)

        return jax.grad(loss)(x)

    x = np.random.default_rng(0).integers(-3, 4, (ranks, ROWS, WIDTH)).astype(np.float32)
    gradients = on_ranks(lambda x: {case.algorithm: gradient(case, x) for case in swept}, ranks)(x)
    assert np.any(gradients["lax"])
    assert [name for name, found in gradients.items() if not np.array_equal(found, gradients["lax"])] == []


def test_gradients_stay_finite_where_op_cannot_take_zeros():
    """Not where data meet what a rank that is sent nothing finds in its place: exp(sqrt(log^2 a + log^2 b)) has no
    gradient at b = 0."""
    ranks = 3
    names = [case.algorithm for case in over(Axes(("data",), (ranks,)), "all_reduce") if case.algorithm != "lax"]
    x = np.random.default_rng(0).uniform(2, 3, (ranks, 7)).astype(np.float32)

    def op(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.exp(jnp.sqrt(jnp.log(a) ** 2 + jnp.log(b) ** 2))

    def gradients(x: jax.Array) -> list[jax.Array]:
        return [jax.grad(lambda x, name=name: collectives.all_reduce(x, "data", name, op).sum())(x) for name in names]

    exponent = np.sqrt((np.log(x) ** 2).sum(0))
    for name, found in zip(names, on_ranks(gradients, ranks)(x), strict=True):
        np.testing.assert_allclose(
            found, ranks * np.exp(exponent) * np.log(x) / (x * exponent), rtol=1e-4, err_msg=name
        )


def test_a_scan_of_5_sends_5_times_what_is_stated():
    axes = Axes(("data",), (3,))
    swept = [
        case for case in over(axes, "all_reduce") if case.algorithm in ("ring", "doubling", "circulant", "double_tree")
    ]

    def five_times(x: jax.Array) -> list[jax.Array]:
        return jax.lax.scan(
            lambda xs, _: ([case.kernel(x) for case, x in zip(swept, xs, strict=True)], None),
            [x] * len(swept),
            length=5,
        )[0]

    x = np.random.default_rng(0).integers(-9, 10, (3, ROWS, WIDTH), np.int32)
    ready = on_ranks(five_times, axes).lower(x).compile()
    expected = np.broadcast_to(3**4 * x.sum(0), x.shape)
    assert [
        case.algorithm
        for case, found in zip(swept, ready(jnp.asarray(x)), strict=True)
        if not np.array_equal(found, expected)
    ] == []
    once = sum((rows(case.cost().ledger(axes, "s32")) for case in swept), Counter())
    assert shown(ready.as_text(), axes) == Counter({key: 5 * times for key, times in once.items()})
