"""ZeRO-2 (Ch. 20): a weight is used as a whole copy, and its gradient is scattered to this device's part of the master
as soon as it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.strategies.strategy import Pair, Strategy

Scatter = Callable[[jax.Array, Dims], jax.Array]


def hooks_of_pairs(strategy: Strategy) -> CollectiveHooks:
    """A strategy's hooks, of weights as `Pair`s: the copy is what the other hooks take, whichever strategy they are
    of."""
    hooks = strategy.hooks

    def weight(w: Pair | jax.Array, dims: Dims) -> jax.Array:
        return hooks.weight(_anchored(hooks.scatter, dims, *w) if isinstance(w, Pair) else w, dims)

    return replace(hooks, weight=weight) if strategy.is_anchored else hooks


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _anchored(scatter: Scatter, dims: Dims, copy: jax.Array, master: jax.Array) -> jax.Array:
    return copy


def _forward(scatter: Scatter, dims: Dims, copy: jax.Array, master: jax.Array) -> tuple[jax.Array, None]:
    return copy, None


def _backward(scatter: Scatter, dims: Dims, _: None, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.zeros_like(g), scatter(g, dims)


_anchored.defvjp(_forward, _backward)
