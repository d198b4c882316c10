"""Dynamic loss scaling of float16 (Ch. 30): gradients are those of the loss times a scale that keeps them in the
format's range; a step whose gradients are not finite is left out, and halves it. Source: Micikevicius et al. 2018."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

START = 2.0**16
STEPS_TO_GROW = 2000
NEEDS_SCALE = "f16"
"""The dtype whose gradients underflow without it."""


class LossScale(NamedTuple):
    """What it is, float32, and how many finite steps it has been that; the last entry of the moments."""

    scale: jax.Array
    good: jax.Array


def initial(scale: float = START) -> LossScale:
    return LossScale(jnp.float32(scale), jnp.int32(0))


def of_moments(moments: Any) -> LossScale | None:
    """None where losses are not scaled."""
    last = moments[-1] if moments else None
    return last if isinstance(last, LossScale) else None


def after(found: LossScale, is_finite: jax.Array) -> LossScale:
    """Twice as large after 2,000 finite steps, half as large after one that is not."""
    grows = found.good + 1 >= STEPS_TO_GROW
    scale = jnp.where(is_finite, jnp.where(grows, 2 * found.scale, found.scale), found.scale / 2)
    return LossScale(scale, jnp.where(is_finite & ~grows, found.good + 1, 0))


def times_scale(loss_of: Callable[..., jax.Array], moments: Any) -> Callable[..., jax.Array]:
    """The loss as it is where none is scaled."""
    found = of_moments(moments)
    return loss_of if found is None else lambda *args: loss_of(*args) * found.scale


def over_scale(found: Any, moments: Any) -> Any:
    """A loss and its gradients, float32, as those of the loss itself."""
    scaled = of_moments(moments)
    return found if scaled is None else jax.tree.map(lambda x: x / scaled.scale, found)


def where_finite(norm: jax.Array, new: tuple[Any, Any], old: tuple[Any, Any]) -> tuple[Any, Any]:
    """(weights, moments) after a step whose gradients have this norm, on all ranks: the old ones where it is not
    finite. `new` has no scale yet."""
    found = of_moments(old[1])
    if found is None:
        return new
    is_finite = jnp.isfinite(norm)
    weights, moments = jax.tree.map(partial(jnp.where, is_finite), new, (old[0], old[1][:-1]))
    return weights, (*moments, after(found, is_finite))


def without(moments: Any) -> Any:
    """The optimizer's own."""
    return moments if of_moments(moments) is None else moments[:-1]
