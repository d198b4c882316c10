"""Chapter 30: which precisions train as float32 does? Each against a band of float32 trainings that begin a little
elsewhere."""

from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder import text
from lab.harness.decoder.nudged import MARGIN, Band, nudged
from lab.harness.decoder.reference_run import Batches, losses
from lab.harness.decoder.training_shape import TrainingShape
from lab.harness.question import Question, Row
from lab.harness.run import RUNNABLE
from lab.meshes.attached import device_count
from lab.meshes.axes import FSDP, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models import decoder
from lab.programs.models.decoder import Parameters
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.precision import RECIPES, gathered_in, moments_in, multiplied_in, reduced_in

NUDGES = 4
FLOAT32 = "float32"
GATHERED = {f"weights gathered in {name}": ZERO3 | gathered_in(recipe) for name, recipe in RECIPES.items()}
METHODS: dict[str, tuple[str, Strategy]] = {
    FLOAT32: ("f32", ZERO3),
    "bfloat16": ("bf16", ZERO3),
    "float16, losses scaled": ("f16", ZERO3),
    **{name: ("bf16", strategy) for name, strategy in GATHERED.items()},
    "gradients sent in int8": ("bf16", ZERO3 | reduced_in(RECIPES["int8"])),
    "products in float8, tensor": ("bf16", ZERO3 | multiplied_in("tensor")),
    "products in float8, tile128": ("bf16", ZERO3 | multiplied_in("tile128")),
    "moments in float8": ("bf16", ZERO3 | moments_in(RECIPES["tile128"])),
    "all of these": (
        "bf16",
        ZERO3
        | gathered_in(RECIPES["tile128"])
        | reduced_in(RECIPES["int8"])
        | multiplied_in("tensor")
        | moments_in(RECIPES["tile128"]),
    ),
}


@dataclass(frozen=True)
class Trained:
    """A decoder over bytes, split along `fsdp` over all devices of the target.

    Attributes:
      steps: of each training.
      target: of devices that are there.

    Raises:
      UsageError: fewer than two steps.
    """

    steps: int = 200
    layers: int = 2
    batch: int = 16
    length: int = 64
    embed: int = 128
    mlp: int = 256
    target: str = "cpu:8"

    @property
    def shape(self) -> TrainingShape:
        sizes = {name: getattr(self, name) for name in ("steps", "layers", "batch", "length", "embed", "mlp")}
        return TrainingShape(vocab=text.BYTES, kv_heads=8, queries=2, head_dim=16, remat="none", **sizes)


@cache
def curves(assumed: Trained) -> dict[str, np.ndarray]:
    """The losses of each method, [steps]."""
    batches = text.batches(text.standard_library(), assumed.steps, assumed.batch, assumed.length)
    start = decoder.initial(assumed.shape)
    return {name: curve(assumed, *METHODS[name], start, batches) for name in METHODS}


@cache
def band(assumed: Trained) -> Band:
    batches = text.batches(text.standard_library(), assumed.steps, assumed.batch, assumed.length)
    starts = [nudged(decoder.initial(assumed.shape), seed) for seed in range(NUDGES)]
    return Band(curves(assumed)[FLOAT32], [curve(assumed, *METHODS[FLOAT32], start, batches) for start in starts])


def curve(assumed: Trained, dtype: str, strategy: Strategy, start: Parameters, batches: Batches) -> np.ndarray:
    target = parse_target(assumed.target)
    if target.platform not in RUNNABLE:
        raise UsageError(f"target={assumed.target} can only compile, and trainings run; use cpu:8 or attached")
    shape = replace(assumed.shape, dtype=dtype)
    mesh = make_mesh(target, Axes.of({FSDP: device_count(target)}))
    function, shapes = program.step(strategy, "explicit", shape, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    # A step takes its state over, and every method begins with this one.
    state = jax.device_put(jax.tree.map(jnp.copy, program.state_of(strategy, shape, start)), shardings[0])
    precision = "highest" if dtype == "f32" else None
    with jax.default_matmul_precision(precision):
        return losses(function.lower(*shapes).compile(), state, batches)


def answer(assumed: Trained) -> tuple[Row, ...]:
    found = band(assumed)
    return (
        Row(f"{FLOAT32}: loss at first", float(found.losses[0]), "nats"),
        Row(f"{FLOAT32}: mean loss of the last tenth", last(found.losses), "nats"),
        Row("width of the band of nudged trainings", found.width, "nats"),
        *(row for name in METHODS if name != FLOAT32 for row in rows(name, found, curves(assumed)[name])),
    )


def last(losses: np.ndarray) -> float:
    return float(losses[-max(1, len(losses) // 10) :].mean())


def rows(name: str, found: Band, losses: np.ndarray) -> tuple[Row, Row]:
    gaps = found.gaps(losses)
    return (
        Row(f"{name}: gap of the last tenth", float(gaps[-1]), "nats"),
        Row(f"{name}: largest gap of a tenth", float(np.abs(gaps).max() / found.width), "band widths"),
    )


def claims(assumed: Trained) -> tuple[Claim, ...]:
    found = band(assumed)
    return tuple(trains(name, found, curves(assumed)[name]) for name in METHODS if name != FLOAT32)


def trains(name: str, found: Band, losses: np.ndarray) -> Claim:
    gaps = found.gaps(losses)
    width = np.abs(gaps).max() / found.width
    evidence = (
        f"{name}: over {len(losses)} steps its losses, in tenths, are at most {width:.2f} widths of the band of "
        f"{NUDGES} nudged float32 trainings ({found.width:.4f} nats) from float32's; at the end by {gaps[-1]:+.4f}"
    )
    statement = f"{name} trains as float32 does, within {MARGIN} widths of the band"
    if not found.holds(losses):
        return calculated("ch30.noise_argument", f"{evidence}: outside of the band", statement=statement)
    return decided("ch30.noise_argument", True, evidence, statement=statement, structural=True)


EXPERIMENT = Question(
    name="ch30_training",
    chapter=30,
    question="Which precisions train as float32 does?",
    parameters=Trained(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
