"""Chapter 14: by how much does the order of a sum of gradients change it, and what bounds that?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from lab.book.data_parallel import order_error_bound
from lab.core.ledger import Ledger
from lab.harness.claim import Claim, decided
from lab.harness.collectives.experiment import experiment
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.collectives.program import on_ranks
from lab.harness.run import at_hand
from lab.meshes.axes import Axes

RING, DOUBLING = KERNELS = [Kernel("all_reduce", name) for name in ("ring", "doubling")]
CHUNK = 4096
EPSILON, ROUNDOFF = 2.0**-23, 2.0**-24
"""Of float32: the gap above 1, and half of it."""


@dataclass(frozen=True)
class Orders:
    """One sum in two orders, each [P, CHUNK] where a ring reduces P chunks of equal values, and what is summed, [P,
    CHUNK]."""

    ring_PC: np.ndarray
    doubling_PC: np.ndarray
    values_PC: np.ndarray

    @property
    def sums_C(self) -> np.ndarray:
        """In float64."""
        return self.values_PC.astype(np.float64).sum(0)

    @property
    def gap_C(self) -> np.ndarray:
        """Between the ring's first chunk and the other order."""
        return np.abs(self.ring_PC[0].astype(np.float64) - self.doubling_PC[0])

    @property
    def bound_C(self) -> np.ndarray:
        return order_error_bound(len(self.values_PC), ROUNDOFF, np.abs(self.values_PC.astype(np.float64)).sum(0))


def in_two_orders(mesh: Mesh) -> Orders:
    """Of values that nearly cancel: the sum is 1,000 times smaller than they are."""
    draw = np.random.default_rng(14)
    half = draw.normal(size=(mesh.size // 2, CHUNK))
    values_PC = np.concatenate([half, -half * (1 + 1e-3)]).astype(np.float32)

    def summed(x_1C: jax.Array) -> tuple[jax.Array, ...]:
        x_N = jnp.tile(x_1C[0], mesh.size)
        return tuple(kernel.run(x_N, mesh.axis_names)[None] for kernel in KERNELS)

    ring, doubling = (x[0].reshape(mesh.size, CHUNK) for x in jax.device_get(on_ranks(summed, mesh)(values_PC)))
    return Orders(ring, doubling, values_PC)


def claims(buffer: Buffer, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    mesh = at_hand(measured, axes)
    if mesh is None or axes.size < 4 or axes.size % 2:
        return ()
    return of_orders(in_two_orders(mesh))


def of_orders(orders: Orders) -> tuple[Claim, ...]:
    P, gap, bound, printed = len(orders.values_PC), orders.gap_C, orders.bound_C, EPSILON * np.abs(orders.sums_C)
    differ, rotated = int((gap > 0).sum()), int((orders.ring_PC != orders.ring_PC[0]).any(0).sum())
    return (
        decided(
            "ch14.fp_nonassoc",
            differ > 0,
            f"a ring and doubling give other bits for {differ:,} of {CHUNK:,} sums of {P} float32 numbers",
            structural=True,
        ),
        decided(
            "ch14.fp_nonassoc",
            rotated > 0,
            f"of equal chunks a ring gives other bits in {rotated:,} of {CHUNK:,} places: it begins each at another "
            "rank",
            statement="a ring sums each chunk in an order of its own",
            structural=True,
        ),
        decided(
            "ch14.fp_order_bound",
            bool((gap <= bound).all()),
            f"the largest gap is {gap.max():.2e}, {(gap / bound).max():.2f} of 2 (P-1) u sum |g_i| at its place",
            statement="two orders differ by at most 2 (P-1) u sum |g_i|",
        ),
        decided(
            "ch14.fp_order_bound",
            bool((gap <= printed).all()),
            f"{int((gap > printed).sum()):,} of {CHUNK:,} gaps are larger, by up to {(gap / printed).max():,.0f} "
            "times: "
            "where the summands cancel the sum is small, and its error is not",
            statement="two orders differ by at most eps |sum g_i|",
            disputed="4-5:D-06",
        ),
    )


EXPERIMENT = experiment(
    name="ch14_summation_order",
    chapter=14,
    question="By how much does the order of a sum of gradients change it, and what bounds that?",
    kernels=KERNELS,
    claims=claims,
    parameters=Buffer(dtype="f32"),
    numeric_parameters=Buffer(elements=5040, dtype="f32"),
    targets=("cpu:8",),
)
