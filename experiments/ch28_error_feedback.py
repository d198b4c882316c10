"""Chapter 28: what becomes of what top-k does not send, when it is added to the next gradient? On random gradients, a
stream of its own on every rank, by the exchange that training steps run."""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from lab.book.compression import error_feedback_bound, top_k_error
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.harness.run import RUNNABLE
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.transforms.sparse import kept, top_k_sum

LOST = 1e-6
"""Of the norm of all gradients: what float32 may lose of them."""


@dataclass(frozen=True)
class Assumed:
    """Normal gradients of so many numbers on each rank, and the share of them that it sends.

    Raises:
      UsageError: a share that sends nothing or everything.
    """

    elements: int = 10_000
    share: float = 0.01
    steps: int = 400
    target: str = "cpu:8"

    def __post_init__(self) -> None:
        if self.elements < 1 or not 0 < self.share < 1 or self.kept_share >= 1:
            raise UsageError(f"share={self.share:g} of elements={self.elements}: expected above 0, and less than all")

    @property
    def kept_share(self) -> float:
        """As it is sent, in whole rows."""
        return kept(self.share, self.elements) / self.elements


@dataclass(frozen=True)
class Fed:
    """Squares of norms of each step and rank [T, P], and what was lost.

    Attributes:
      gradients, errors: of what a rank made, and of what it had not sent after the step.
      given: of what the compressor was given: a gradient and the error before it.
      lost: norm of all gradients less all that was sent and all that is left, over that of all gradients.
    """

    gradients: np.ndarray
    errors: np.ndarray
    given: np.ndarray
    lost: float

    @property
    def ratio(self) -> float:
        """Squares of errors over squares of gradients, all steps."""
        return float(self.errors.sum() / self.gradients.sum())

    @property
    def losses(self) -> np.ndarray:
        """Of each vector that the compressor was given, late: the share of its square that it did not send."""
        return (self.errors / self.given)[-(len(self.errors) // 4) - 1 :]


@cache
def fed(assumed: Assumed) -> Fed:
    target = parse_target(assumed.target)
    if target.platform not in RUNNABLE:
        raise UsageError(f"target={assumed.target} can only compile, and ranks exchange numbers; use cpu:8 or attached")
    ranks = device_count(target)
    mesh = make_mesh(target, Axes.of({DATA: ranks}))

    def step(error_N: jax.Array, g_N: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        sum_N, left_N = top_k_sum(assumed.share, g_N + error_N, (DATA,))
        squares = (jnp.sum(jnp.square(x_N))[None] for x_N in (g_N, left_N, g_N + error_N))
        return left_N, (sum_N, *squares)

    def steps(g_T1N: jax.Array) -> tuple[jax.Array, ...]:
        left_N, (sum_TN, *squares) = jax.lax.scan(step, jnp.zeros_like(g_T1N[0, 0]), g_T1N[:, 0])
        return sum_TN, left_N[None], *squares

    over = P(None, DATA)
    g_TPN = np.random.default_rng(28).normal(size=(assumed.steps, ranks, assumed.elements)).astype(np.float32)
    run = jax.shard_map(steps, mesh=mesh, in_specs=over, out_specs=(P(), P(DATA), over, over, over))
    sum_TN, left_PN, gradients, errors, given = (np.asarray(x, np.float64) for x in jax.device_get(jax.jit(run)(g_TPN)))
    everything_N = g_TPN.sum((0, 1), dtype=np.float64)
    lost_N = everything_N - sum_TN.sum(0) - left_PN.sum(0)
    return Fed(gradients, errors, given, float(np.linalg.norm(lost_N) / np.linalg.norm(everything_N)))


def answer(assumed: Assumed) -> tuple[Row, ...]:
    found = fed(assumed)
    norm = float(np.sqrt(found.gradients.mean()))
    late = np.sqrt(found.errors[-(assumed.steps // 4) - 1 :])
    bound = np.sqrt(error_feedback_bound(assumed.kept_share))
    return (
        Row("norm of the error that is fed back, last quarter", float(late.mean()) / norm, "gradients"),
        Row("its largest", float(np.sqrt(found.errors.max())) / norm, "gradients"),
        Row("the most that it may be", float(bound), "gradients"),
        Row("squares of all errors over those of all gradients", found.ratio),
        Row("share of the square of a vector that is not sent, last quarter", float(found.losses.mean())),
        Row("lost of all gradients", found.lost),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    found, share = fed(assumed), assumed.kept_share
    norm = found.gradients.mean()
    largest, bound = found.errors.max() / norm, error_feedback_bound(share)
    mean = float(found.losses.mean())
    return (
        decided(
            "ch28.error_feedback",
            found.lost < LOST,
            f"after {assumed.steps} steps all that was sent and all that is left differ from all gradients by "
            f"{found.lost:.1e} of their norm",
            statement="the sums of what is sent telescope",
            structural=True,
        ),
        decided(
            "ch28.error_feedback",
            bool(largest <= bound),
            f"squared errors are up to {largest:.4g} times a gradient's, with a bound of {bound:.4g}",
            statement="4 (1 - delta) / delta^2 times the squares of gradients bound those of errors",
        ),
        decided(
            "ch28.error_feedback",
            found.ratio <= 1,
            f"squared errors add up to {found.ratio:.3g} times what those of gradients do",
            statement="squares of errors add up to no more than those of gradients",
            disputed="6-8:D-60",
        ),
        decided(
            "ch28.contractive",
            bool((found.losses <= top_k_error(share)).all()),
            f"of a vector with the error fed back {mean:.2%} of the square is not sent, with a bound of "
            f"{top_k_error(share):.2%}",
            statement="1 - k / d with feedback as without",
        ),
        decided(
            "ch28.contractive",
            mean < 0.1,
            f"{mean:.2%} of the square of each vector is still not sent",
            statement="with feedback the loss of top-k goes to 0",
            disputed="6-8:D-62",
        ),
    )


EXPERIMENT = Question(
    name="ch28_error_feedback",
    chapter=28,
    question="What becomes of what top-k does not send, when it is added to the next gradient?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
