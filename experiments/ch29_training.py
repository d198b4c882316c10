"""Chapter 29: do replicas that meet every h steps learn what data parallelism does from as many tokens?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder import text
from lab.harness.decoder.nudged import MARGIN, Band, nudged
from lab.harness.decoder.reference_run import Batches, losses
from lab.harness.decoder.training_shape import SMALL, TrainingShape
from lab.harness.question import Question, Row
from lab.harness.run import RUNNABLE
from lab.meshes.attached import device_count
from lab.meshes.axes import FSDP, REPLICA, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models import decoder
from lab.programs.models.decoder import Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms import local_sgd
from lab.programs.transforms.local_sgd import DILOCO, LOCAL_SGD, Rounds, RoundShape

NUDGES = 4
SYNCHRONOUS, EVERY_STEP = "data parallelism", "local SGD, h = 1"
TOLERANCE = 1e-4
"""Of a loss, relative: what 200 steps make of other orders of sums is a tenth of it."""


@dataclass(frozen=True)
class Trained:
    """A decoder over bytes, on all devices of the target.

    Attributes:
      steps: of each training; a multiple of `every`.
      every: inner steps of a round.
      replicas: that train apart.
      target: of devices that are there.

    Raises:
      UsageError: steps that are no rounds.
    """

    steps: int = 200
    every: int = 20
    replicas: int = 2
    target: str = "cpu:8"

    def __post_init__(self) -> None:
        if self.every < 2 or self.steps % self.every:
            raise UsageError(f"steps={self.steps}, every={self.every}: expected steps that are rounds of 2 or more")

    @property
    def shape(self) -> TrainingShape:
        return SMALL

    @property
    def batches(self) -> Batches:
        return text.batches(text.standard_library(), self.steps, self.shape.batch, self.shape.length)

    def mesh(self, replicas: int) -> Axes:
        devices = device_count(parse_target(self.target))
        if devices % replicas:
            raise UsageError(f"replicas={replicas} on {self.target}: expected a divisor of its {devices} devices")
        return Axes.of({REPLICA: replicas, FSDP: devices // replicas})


@dataclass(frozen=True)
class Method:
    """Attributes: every: None: as many steps as the question has."""

    rounds: Rounds
    every: int | None = None
    fragments: int = 1
    outer: str = "f32"
    delay: int = 0


DESCENT = "data parallelism, plain descent"
METHODS = {
    EVERY_STEP: Method(LOCAL_SGD, every=1),
    "local SGD": Method(LOCAL_SGD),
    "DiLoCo": Method(DILOCO),
    "DiLoCo, two fragments": Method(DILOCO, fragments=2),
    "DiLoCo, two fragments of 4 bits": Method(DILOCO, fragments=2, outer="int4"),
    "DiLoCo, two fragments of 4 bits, a step late": Method(DILOCO, fragments=2, outer="int4", delay=1),
}


@cache
def curves(assumed: Trained) -> dict[str, np.ndarray]:
    """The mean loss of each step's tokens, [steps], before the step's update."""
    start = decoder.initial(assumed.shape)
    return {
        SYNCHRONOUS: synchronous(assumed, start),
        DESCENT: in_rounds(assumed, Method(LOCAL_SGD, every=1), start, replicas=1),
        **{name: in_rounds(assumed, method, start, assumed.replicas) for name, method in METHODS.items()},
    }


@cache
def band(assumed: Trained) -> Band:
    starts = (nudged(decoder.initial(assumed.shape), seed) for seed in range(NUDGES))
    return Band(curves(assumed)[SYNCHRONOUS], [synchronous(assumed, start) for start in starts])


def synchronous(assumed: Trained, start: Parameters) -> np.ndarray:
    """AdamW on all devices' mean gradients, every step."""
    step, shardings = _step(assumed)
    state = program.state_of(ZERO3, assumed.shape, start)
    # A step takes its state over, and every training begins with these weights.
    return losses(step, jax.device_put(jax.tree.map(jnp.copy, state), shardings[0]), assumed.batches)


@cache
def _step(assumed: Trained) -> tuple[Callable[..., Any], Any]:
    return _compiled(*program.step(ZERO3, "explicit", assumed.shape, _mesh(assumed, 1)))


def in_rounds(assumed: Trained, method: Method, start: Parameters, replicas: int) -> np.ndarray:
    sizes = {field.name: getattr(assumed.shape, field.name) for field in fields(DecoderShape)}
    shape = RoundShape(
        **sizes,
        every=method.every or assumed.every,
        fragments=method.fragments,
        outer=method.outer,
        delay=method.delay,
    )
    one_round, shardings = _compiled(*local_sgd.program(method.rounds, shape, _mesh(assumed, replicas)))
    state = jax.device_put(local_sgd.initial(method.rounds, shape, replicas, start), shardings[0])
    found = []
    for batches in _rounds(assumed.batches, shape.every):
        state, metrics = one_round(state, *batches)
        found.append(np.asarray(metrics.loss_Rh, np.float64).mean(axis=0))
    return np.concatenate(found)


def _rounds(batches: Batches, every: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokens and targets of each round, [h, B, S]."""
    for first in range(0, len(batches), every):
        tokens, targets = zip(*batches[first : first + every], strict=True)
        yield np.stack(tokens), np.stack(targets)


def _mesh(assumed: Trained, replicas: int) -> jax.sharding.Mesh:
    target = parse_target(assumed.target)
    if target.platform not in RUNNABLE:
        raise UsageError(f"target={assumed.target} can only compile, and trainings run; use cpu:8 or attached")
    return make_mesh(target, assumed.mesh(replicas))


def _compiled(function: jax.stages.Wrapped, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
    """With the shardings of its arguments."""
    with jax.default_matmul_precision("highest"):
        return function.lower(*arguments).compile(), jax.tree.map(lambda x: x.sharding, arguments)


def answer(assumed: Trained) -> tuple[Row, ...]:
    found = band(assumed)
    return (
        Row(f"{SYNCHRONOUS}: loss at first", float(found.losses[0]), "nats"),
        Row(f"{SYNCHRONOUS}: mean loss of the last tenth", last(found.losses), "nats"),
        Row("width of the band of nudged trainings", found.width, "nats"),
        Row(f"{DESCENT}: mean loss of the last tenth", last(curves(assumed)[DESCENT]), "nats"),
        *(row for name in METHODS for row in rows(name, assumed)),
    )


def last(losses: np.ndarray) -> float:
    return float(losses[-max(1, len(losses) // 10) :].mean())


def rows(name: str, assumed: Trained) -> tuple[Row, Row]:
    gap = gaps(name, assumed)
    return (
        Row(f"{name}: gap of the last tenth", float(gap[-1]), "nats"),
        Row(f"{name}: largest gap of a tenth", float(np.abs(gap).max() / band(assumed).width), "band widths"),
    )


def gaps(name: str, assumed: Trained) -> np.ndarray:
    """To every step's synchronous training of the same inner optimizer, in tenths; positive where it is worse."""
    beside = SYNCHRONOUS if METHODS[name].rounds.outer else DESCENT
    return Band(curves(assumed)[beside], ()).gaps(curves(assumed)[name])


def claims(assumed: Trained) -> tuple[Claim, ...]:
    return (every_step(assumed), *(apart(name, assumed) for name in METHODS if name != EVERY_STEP))


def every_step(assumed: Trained) -> Claim:
    found, expected = (curves(assumed)[name] for name in (EVERY_STEP, DESCENT))
    worst = float(np.abs(found / expected - 1).max())
    return decided(
        "ch29.local_sgd",
        worst < TOLERANCE,
        f"over {len(found)} steps, from {found[0]:.3f} to {found[-1]:.3f} nats, losses differ by {worst:.1e} at most",
        statement="averaged after every step, weights of plain descent are those of synchronous data parallelism",
        structural=True,
    )


def apart(name: str, assumed: Trained) -> Claim:
    """How far a curve is from the synchronous one; nothing of the book says how far it may be."""
    rounds, gap, width = METHODS[name].rounds, gaps(name, assumed), band(assumed).width
    widths = float(np.abs(gap).max() / width)
    inside = "within" if widths <= MARGIN else "outside"
    evidence = (
        f"{name}: with h = {assumed.every} and {assumed.replicas} replicas, over {assumed.steps} steps of as many "
        f"tokens, losses end {gap[-1]:+.4f} nats from those of a mean every step and are {widths:.1f} widths of the "
        f"band of {NUDGES} nudged trainings ({width:.4f} nats) away at most: {inside} {MARGIN}"
    )
    return calculated("ch29.diloco" if rounds.outer else "ch29.local_sgd", evidence, statement=f"{name} trains")


EXPERIMENT = Question(
    name="ch29_training",
    chapter=29,
    question="Do replicas that meet every h steps learn what data parallelism does from as many tokens?",
    parameters=Trained(),
    answer=answer,
    claims=claims,
    is_quick=False,
    losses=curves,
)
