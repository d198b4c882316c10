"""Chapter 30: a loss scale that grows until float16 overflows: in which layer, at which exponent, and what follows of
three ways to go on?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lab.book.precision import largest
from lab.harness.claim import Claim, decided
from lab.harness.decoder import text
from lab.harness.decoder.training_shape import TrainingShape
from lab.harness.question import Question, Row
from lab.programs.models import decoder
from lab.programs.models.decoder import Parameters
from lab.programs.strategies import program
from lab.programs.strategies.update import clipping, is_weight, optimizer, updated

SKIPPED, SATURATED, IGNORED = "skipped", "saturated", "ignored"
WAYS = (SKIPPED, SATURATED, IGNORED)
"""What is done with a step whose gradients are not finite: it is left out, and the scale is halved; infinite gradients
are the largest of float16; nothing."""
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Spiked:
    """A decoder over bytes in float16, on one device.

    Attributes:
      steps: of each training.
      grows_every: finite steps after which the loss scale doubles; 2,000 in practice.
      start: exponent of the first scale.
    """

    steps: int = 40
    grows_every: int = 3
    start: int = 14
    layers: int = 4
    target: str = "cpu:1"

    @property
    def shape(self) -> TrainingShape:
        return TrainingShape(
            layers=self.layers,
            batch=8,
            length=32,
            embed=64,
            kv_heads=2,
            queries=2,
            head_dim=16,
            mlp=128,
            vocab=text.BYTES,
            dtype="f16",
            remat="none",
            steps=self.steps,
        )


@dataclass(frozen=True)
class Trained:
    """What became of a training.

    Attributes:
      losses, scales: of each step.
      overflow: the first step whose gradients are not finite; None where all are.
      exponents: of its largest scaled gradients, by weight and layer, as float32 has them.
    """

    losses: np.ndarray
    scales: np.ndarray
    overflow: int | None
    exponents: dict[str, int]


def gradients(
    shape: TrainingShape, dtype: str, master: Parameters, scale: jax.Array, tokens_BS: jax.Array, targets_BS: jax.Array
) -> Any:
    """The loss, and the gradients of the loss times the scale, of weights in this dtype."""
    sized = replace(shape, dtype=dtype)
    weights = program.in_use(master, sized)
    scaled, found = jax.value_and_grad(lambda w: scale * program.mean_loss(w, tokens_BS, targets_BS, sized))(weights)
    return scaled / scale, found


def next_state(way: str, state: tuple[Any, Any], found: Parameters, scale: jax.Array) -> tuple[tuple[Any, Any], Any]:
    """The state after an update, and whether all gradients were finite."""
    is_finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(found)]))
    if way == SATURATED:
        top = largest(5, 10)
        found = jax.tree.map(lambda g: jnp.nan_to_num(g, nan=top, posinf=top, neginf=-top), found)
    own = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, found)
    rule = optax.chain(clipping(), optimizer(LEARNING_RATE))
    new = updated(rule, own, state[1], state[0])
    return (jax.tree.map(partial(jnp.where, is_finite), new, state) if way == SKIPPED else new), is_finite


@cache
def compiled(shape: TrainingShape, dtype: str) -> Callable[..., Any]:
    return jax.jit(partial(gradients, shape, dtype))


@cache
def trained(assumed: Spiked, way: str) -> Trained:
    shape = assumed.shape
    batches = text.batches(text.standard_library(), assumed.steps, shape.batch, shape.length)
    master = decoder.initial(shape)
    state = master, optax.chain(clipping(), optimizer(LEARNING_RATE)).init(master)
    find, advance = compiled(shape, "f16"), jax.jit(partial(next_state, way))
    scale, good, first, exponents, losses, scales = 2.0**assumed.start, 0, None, {}, [], []
    for number, batch in enumerate(batches):
        loss, found = find(state[0], jnp.float32(scale), *batch)
        before = state
        state, is_finite = advance(state, found, jnp.float32(scale))
        losses.append(float(loss))
        scales.append(scale)
        if not is_finite and first is None:
            exact = compiled(shape, "f32")(before[0], jnp.float32(scale), *batch)[1]
            first, exponents = number, dict(by_layer(exact))
        good = good + 1 if is_finite else 0
        if not is_finite and way == SKIPPED:
            scale /= 2
        elif good == assumed.grows_every:
            scale, good = 2 * scale, 0
    return Trained(np.array(losses), np.array(scales), first, exponents)


def by_layer(found: Parameters) -> Iterator[tuple[str, int]]:
    """Of each weight, of each layer where it is of layers, the exponent of its largest gradient: 2^e above it."""
    for path, g in jax.tree.leaves_with_path(found, is_leaf=is_weight):
        name = jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
        value = np.asarray(g.get_value() if is_weight(g) else g)
        is_stack = name.startswith("layers")
        parts = {f"{name} of layer {n}": part for n, part in enumerate(value)} if is_stack else {name: value}
        for part, x in parts.items():
            yield part, int(np.frexp(np.abs(x).max())[1])


def first_over(found: Trained) -> tuple[str, int]:
    """The weight whose scaled gradient is largest where the first step overflows, and its exponent."""
    return max(found.exponents.items(), key=lambda item: item[1], default=("none", 0))


def answer(assumed: Spiked) -> tuple[Row, ...]:
    skipped = trained(assumed, SKIPPED)
    name, exponent = first_over(skipped)
    layers = histogram(skipped)
    return (
        Row("first step that overflows", -1 if skipped.overflow is None else skipped.overflow),
        Row("loss scale there, exponent of 2", exponent_of(skipped)),
        Row("largest scaled gradient", name),
        Row("its exponent of 2; float16 ends at 16", exponent),
        *(Row(f"{layer}: largest exponent, of each of its weights", values) for layer, values in layers.items()),
        *(row for way in WAYS for row in curve_rows(assumed, way)),
        Row("steps that were skipped", skips(skipped)),
    )


def exponent_of(found: Trained) -> int:
    at = found.overflow
    return 0 if at is None else int(np.log2(found.scales[at]))


def skips(found: Trained) -> int:
    return int(np.sum(np.diff(found.scales) < 0))


def histogram(found: Trained) -> dict[str, str]:
    """By layer, or weight of none, the exponents in order: `12 13 13 15 16`."""
    parts: dict[str, list[int]] = {}
    for name, exponent in found.exponents.items():
        parts.setdefault(name.partition(" of ")[2] or name, []).append(exponent)
    return {part: " ".join(map(str, sorted(each))) for part, each in parts.items()}


def spike(found: Trained) -> float:
    """The largest rise of the loss from the least before; infinite where it is no number."""
    rises = found.losses - np.minimum.accumulate(found.losses)
    return float(np.nan_to_num(rises, nan=np.inf).max())


def curve_rows(assumed: Spiked, way: str) -> tuple[Row, Row]:
    found = trained(assumed, way)
    return (
        Row(f"{way}: largest rise of the loss", spike(found), "nats"),
        Row(f"{way}: loss at the end", float(found.losses[-1]), "nats"),
    )


def claims(assumed: Spiked) -> tuple[Claim, ...]:
    skipped, _, ignored = (trained(assumed, way) for way in WAYS)
    name, exponent = first_over(skipped)
    at, limit = skipped.overflow, largest(5, 10)
    evidence = (
        f"at step {at}, with a loss scale of 2^{exponent_of(skipped)}, the largest scaled gradient is that of {name}, "
        f"below 2^{exponent} as float32 has it; float16 ends at {limit:,.0f}"
    )
    lost = int(np.argmin(np.isfinite(ignored.losses)))
    return (
        decided(
            "ch30.loss_scaling",
            at is not None and 2.0**exponent > limit,
            evidence,
            statement="a step overflows when scaled gradients pass float16's end",
        ),
        decided(
            "ch30.loss_scaling",
            bool(np.isfinite(skipped.losses).all()) and at is not None and lost == at + 1,
            f"with {skips(skipped)} steps skipped, and half the scale after each, every loss is finite, "
            f"{skipped.losses[-1]:.3f} nats at the end; where nothing is done none is from step {lost} on",
            statement="a step that overflows is skipped, and costs no more than itself",
            structural=True,
        ),
    )


EXPERIMENT = Question(
    name="ch30_loss_spike",
    chapter=30,
    question="Where does a loss scale that is too large overflow first, and what does that do to the loss?",
    parameters=Spiked(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
