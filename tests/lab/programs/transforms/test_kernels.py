"""The exchanges on 8 ranks: against float64 NumPy, and that what is fed back is not lost."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lab.book.compression import random_k_variance, top_k_error
from lab.core.known import known
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.transforms.methods import METHODS
from lab.programs.transforms.power_sgd import orthonormal
from lab.programs.transforms.sparse import kept, random_indices
from tests.long_tests import ASKED_FOR

pytestmark = pytest.mark.compiles

RANKS, STEPS = 8, 6
SIZES = ((3, 16, 24), (40, 32))
SHARE, RANK = 0.1, 2
WITH_FEEDBACK = ("power_sgd", "top_k", "random_k", "one_bit_adam")


class Trial:
    """Some steps of a method on 8 ranks: gradients [steps, ranks, ...] of each size, their sums [steps, ...], and what
    ranks kept after the last."""

    def __init__(self, method: str) -> None:
        exchange = known(METHODS[method](RANK, SHARE).exchange)
        mesh = make_mesh(parse_target("cpu:8"), Axes.of({"data": RANKS}))
        draw = np.random.default_rng(28)
        self.gradients = [draw.normal(size=(STEPS, RANKS, *size)).astype(np.float32) for size in SIZES]

        def steps(memory: Any, *gradients: jax.Array) -> tuple[Any, Any]:
            def step(memory: Any, at: Any) -> tuple[Any, Any]:
                number, some = at
                sums, memory = exchange.run([g[0] for g in some], memory, number, ("data",))
                return memory, sums

            own = jax.tree.map(lambda x: x[0], memory)
            memory, sums = jax.lax.scan(step, own, (jnp.arange(STEPS), list(gradients)))
            return sums, jax.tree.map(lambda x: x[None], memory)

        first = jax.tree.map(lambda x: jnp.tile(x[None], (RANKS, *[1] * x.ndim)), exchange.memory(SIZES, RANKS))
        run = jax.shard_map(
            steps,
            mesh=mesh,
            in_specs=(P("data"), *[P(None, "data")] * len(SIZES)),
            out_specs=(P(), P("data")),
        )
        with jax.default_matmul_precision("highest"):
            self.sums, self.memory = jax.device_get(jax.jit(run)(first, *self.gradients))

    @property
    def flat(self) -> np.ndarray:
        """Gradients [steps, ranks, N], float64."""
        return np.concatenate([g.reshape(STEPS, RANKS, -1) for g in self.gradients], -1).astype(np.float64)

    @property
    def total(self) -> np.ndarray:
        """Sums [steps, N], float64."""
        return np.concatenate([total.reshape(STEPS, -1) for total in self.sums], -1).astype(np.float64)

    @property
    def kept(self) -> np.ndarray:
        """The sum of what all ranks have not sent yet [N]."""
        if hasattr(self.memory, "of_sum"):
            whole = self.memory.own.astype(np.float64).sum(0) + self.memory.of_sum.ravel()
            return whole[: self.flat.shape[-1]]
        errors = getattr(self.memory, "errors", [self.memory])
        return np.concatenate([e.reshape(RANKS, -1).astype(np.float64).sum(0) for e in errors])


trial = cache(Trial)


@pytest.mark.parametrize("method", WITH_FEEDBACK)
def test_all_that_was_sent_and_what_is_kept_are_all_gradients_to_a_millionth(method):
    found = trial(method)
    everything = found.flat.sum((0, 1))
    sent = found.total.sum(0)
    unit = np.linalg.norm(everything)
    assert np.linalg.norm(sent + found.kept - everything) < 1e-6 * unit
    assert np.linalg.norm(sent - everything) > 0.1 * unit


def fed_back(g_TPN: np.ndarray, compress: Any) -> np.ndarray:
    """Sums [T, N] of what ranks send when each compresses what it has not sent yet; `compress` of ([P, N], step)."""
    error_PN, sums = np.zeros_like(g_TPN[0]), []
    for step, g_PN in enumerate(g_TPN):
        sent_PN = compress(g_PN + error_PN, step)
        error_PN = g_PN + error_PN - sent_PN
        sums.append(sent_PN.sum(0))
    return np.array(sums)


def largest(x_PN: np.ndarray, step: int) -> np.ndarray:
    last = np.sort(np.abs(x_PN), -1)[:, -kept(SHARE, x_PN.shape[1])]
    return np.where(np.abs(x_PN) >= last[:, None], x_PN, 0)


def drawn(x_PN: np.ndarray, step: int) -> np.ndarray:
    key = jax.random.fold_in(jax.random.key(28), step)
    index_K = np.asarray(random_indices(SHARE, x_PN.shape[1], key))
    assert len(set(index_K)) == kept(SHARE, x_PN.shape[1])
    return np.where(np.isin(np.arange(x_PN.shape[1]), index_K), x_PN, 0)


@pytest.mark.parametrize(("method", "compress"), [("top_k", largest), ("random_k", drawn)])
def test_sparse_sums_are_numpys(method, compress):
    found = trial(method)
    assert found.total == pytest.approx(fed_back(found.flat, compress), abs=1e-5)


def power_sgd_of_one(g_TPN: np.ndarray, rows: int, columns: int, start: np.ndarray) -> np.ndarray:
    """Of one matrix, by NumPy's own orthonormal bases."""
    error, factor, sums = 0.0, start, []
    for g_PN in g_TPN:
        own_PRC = g_PN.reshape(-1, rows, columns) + error
        basis = np.linalg.qr(own_PRC.sum(0) @ factor)[0]
        factor = own_PRC.sum(0).T @ basis
        sums.append(basis @ factor.T)
        error = own_PRC - sums[-1] / len(own_PRC)
    return np.array(sums).reshape(len(sums), -1)


def test_factors_of_rank_2_are_numpys():
    found, exchange = trial("power_sgd"), known(METHODS["power_sgd"](RANK, SHARE).exchange)
    starts = [np.asarray(q, np.float64) for q in exchange.memory(SIZES, RANKS).factors]
    stack = np.stack(
        [
            power_sgd_of_one(found.gradients[0][:, :, layer].reshape(STEPS, RANKS, -1), 16, 24, starts[0][layer])
            for layer in range(3)
        ],
        1,
    )
    assert found.sums[0].reshape(STEPS, 3, -1) == pytest.approx(stack, abs=2e-4)
    single = power_sgd_of_one(found.gradients[1].reshape(STEPS, RANKS, -1), 40, 32, starts[1])
    assert found.sums[1].reshape(STEPS, -1) == pytest.approx(single, abs=2e-4)


def test_columns_become_orthonormal_in_float32():
    """Two of them are all but parallel, which one round of Gram & Schmidt does not part."""
    x = np.random.default_rng(0).normal(size=(3, 40, 4)).astype(np.float32)
    x[..., 2] = x[..., 1] + 1e-3 * x[..., 2]
    basis = np.asarray(orthonormal(jnp.asarray(x)), np.float64)
    assert basis.mT @ basis == pytest.approx(np.broadcast_to(np.eye(4), (3, 4, 4)), abs=1e-6)
    assert basis @ (basis.mT @ x) == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize(("method", "half_step"), [("int8", 1 / 254), ("float8", 1 / 16)])
def test_sums_in_8_bits_err_by_half_a_step_of_each_rank_and_of_the_sum(method, half_step):
    """Of float8's three bits a step is up to an eighth of a number, so that each errs by a 16th of itself."""
    found = trial(method)
    exact, off = found.flat.sum(1), np.abs(found.total - found.flat.sum(1))
    most = np.abs(found.flat).max(-1).sum(1) + np.abs(exact).max(-1) * 1.1
    assert (off.max(-1) < half_step * most).all()
    assert (off.max(-1) > half_step * most / 50).all()


def test_a_share_of_the_largest_loses_less_than_1_less_it_and_of_random_ones_what_the_book_says():
    g_N, share = trial("top_k").flat[0, 0], kept(SHARE, 2432) / 2432
    left = g_N - largest(g_N[None], 0)[0]
    assert np.sum(left**2) < top_k_error(share) * np.sum(g_N**2)
    scaled = [drawn(g_N[None], step)[0] / share - g_N for step in range(40)]
    losses = np.sum(np.square(scaled), -1) / np.sum(g_N**2)
    error = losses.std(ddof=1) / np.sqrt(len(losses))
    assert abs(losses.mean() - random_k_variance(share)) < 5 * error


@pytest.mark.parametrize("method", ["qsgd", "terngrad"])
def test_sums_that_are_rounded_at_random_on_both_ways_are_right_on_average_within_5_standard_errors(method):
    draws, size = 2000 if ASKED_FOR else 200, (16, 24)
    g_PRC = np.random.default_rng(28).normal(size=(RANKS, *size)).astype(np.float32)
    exchange = known(METHODS[method](RANK, SHARE).exchange)

    def drawn(g_1RC: jax.Array) -> jax.Array:
        once = lambda step: exchange.run([g_1RC[0]], (), step, ("data",))[0][0]  # noqa: E731
        return jax.lax.map(once, jnp.arange(draws))

    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"data": RANKS}))
    run = jax.jit(jax.shard_map(drawn, mesh=mesh, in_specs=P("data"), out_specs=P()))
    found, exact = np.asarray(run(g_PRC), np.float64), g_PRC.sum(0, dtype=np.float64)
    error = found.std(0, ddof=1) / np.sqrt(draws)
    assert (np.abs(found.mean(0) - exact) < 5 * error + 1e-5).all()
    assert np.linalg.norm(found[0] - exact) > 0.2 * np.linalg.norm(exact)
    along = (found * exact).sum((1, 2)) / np.sum(exact**2)
    assert abs(along.mean() - 1) < 5 * along.std(ddof=1) / np.sqrt(draws) < 0.05
