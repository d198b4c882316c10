"""Chapter 30: how much faster are products in float8, and the step of a decoder that does its products so?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from lab.core.clock import timed
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.step import random_tokens
from lab.harness.question import Question, Row
from lab.harness.run import RUNNABLE
from lab.meshes.attached import device_count
from lab.meshes.axes import FSDP, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.precision import (
    RECIPES,
    gathered_in,
    multiplied_in,
    reduced_in,
    scaled_product,
    tiled_product,
)

WARM_UPS, RUNS, FEW, MANY = 2, 8, 2, 10
WIDE = "bfloat16"
STEPS: dict[str, Strategy] = {
    WIDE: ZERO3,
    "float8 products, tensor": ZERO3 | multiplied_in("tensor"),
    "float8 products, tile128": ZERO3 | multiplied_in("tile128"),
    "float8 weights gathered in tile128": ZERO3 | gathered_in(RECIPES["tile128"]),
    "float8 weights, int8 gradients": ZERO3 | gathered_in(RECIPES["tile128"]) | reduced_in(RECIPES["int8"]),
}


@dataclass(frozen=True)
class Timed:
    """Devices that are there, the rows and columns of the matrices that are multiplied, and sizes of a decoder.

    Attributes:
      size: of each matrix.
      batch: sequences of a step, over all devices.
    """

    size: int = 512
    layers: int = 2
    batch: int = 8
    length: int = 64
    embed: int = 256
    mlp: int = 512
    target: str = "cpu:8"

    @property
    def shape(self) -> DecoderShape:
        sizes = {name: getattr(self, name) for name in ("layers", "batch", "length", "embed", "mlp")}
        return DecoderShape(kv_heads=8, queries=2, head_dim=max(16, self.embed // 16), vocab=32000, **sizes)


def in_float8(x_TK: jax.Array, w_KF: jax.Array) -> jax.Array:
    """Both with a scale of 1: what the product alone takes."""
    x8_TK, w8_KF = (x.astype(jnp.float8_e4m3fn) for x in (x_TK, w_KF))
    return jnp.dot(x8_TK, w8_KF, preferred_element_type=jnp.float32).astype(x_TK.dtype)


PRODUCTS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    WIDE: jnp.dot,
    "float8, cast": in_float8,
    "float8, a scale a tensor": scaled_product,
    "float8, tiles of 128": tiled_product,
}


def product_s(multiply: Callable[[jax.Array, jax.Array], jax.Array], size: int) -> float:
    """Seconds of one product of [size, size] matrices: what a chain of ten takes more than one of two."""

    def chain(times: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        return jax.jit(lambda x, w: jax.lax.fori_loop(0, times, lambda _, y: multiply(y, w), x))

    x, w = (jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) for seed in range(2))
    arguments = x, w * jnp.bfloat16(size**-0.5)
    few, many = (seconds(partial(chain(times), *arguments)) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def seconds(call: Callable[[], jax.Array]) -> float:
    took = [timed(lambda: jax.block_until_ready(call()))[1] for _ in range(WARM_UPS + RUNS)]
    return median(took[WARM_UPS:])


def finished(function: Callable[..., Any], *args: Any) -> Any:
    return jax.block_until_ready(function(*args))


def step_s(strategy: Strategy, assumed: Timed) -> float:
    """Seconds of one step."""
    target, shape = parse_target(assumed.target), assumed.shape
    if target.platform not in RUNNABLE:
        raise UsageError(f"target={assumed.target} can only compile, and steps are timed; use cpu:8 or attached")
    mesh = make_mesh(target, Axes.of({FSDP: device_count(target)}))
    function, shapes = program.step(strategy, "explicit", shape, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    start = jax.jit(lambda: program.initial_state(strategy, shape), out_shardings=shardings[0])
    state, batch = start(), jax.device_put(random_tokens(shape), shardings[1:])
    took = []
    for _ in range(WARM_UPS + RUNS):
        (state, _), passed = timed(partial(finished, function, state, *batch))
        took.append(passed)
    return median(took[WARM_UPS:])


@cache
def products(assumed: Timed) -> dict[str, float]:
    return {name: product_s(multiply, assumed.size) for name, multiply in PRODUCTS.items()}


@cache
def steps(assumed: Timed) -> dict[str, float]:
    return {name: step_s(strategy, assumed) for name, strategy in STEPS.items()}


def answer(assumed: Timed) -> tuple[Row, ...]:
    rate = 2 * assumed.size**3
    return (
        *(Row(f"product in {name}", 1e3 * took, "ms") for name, took in products(assumed).items()),
        *(Row(f"product in {name}", rate / took / 1e12, "TFLOP/s") for name, took in products(assumed).items()),
        *(Row(f"step, {name}", 1e3 * took, "ms") for name, took in steps(assumed).items()),
    )


def claims(assumed: Timed) -> tuple[Claim, ...]:
    wide, narrow = (products(assumed)[name] for name in (WIDE, "float8, cast"))
    evidence = (
        f"a product of {assumed.size} x {assumed.size} matrices takes {1e3 * wide:.3g} ms in {WIDE} and "
        f"{1e3 * narrow:.3g} ms in float8, {wide / narrow:.2f} times as fast"
    )
    statement = "float8 products are about twice as fast"
    if jax.devices()[0].platform != "gpu":
        return (calculated("ch30.peaks", evidence, statement=statement),)
    return (
        decided(
            "ch30.peaks",
            1.5 <= wide / narrow <= 2.2,
            evidence,
            statement=statement,
            structural=True,
        ),
    )


EXPERIMENT = Question(
    name="ch30_speed",
    chapter=30,
    question="How much faster are products in float8, and a decoder's step that does its products so?",
    parameters=Timed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
