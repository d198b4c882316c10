"""AdamW on each device's part of the master weights, after clipping by the norm of all gradients."""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from lab.programs.models.decoder import Parameter, Parameters

CLIP = 1.0
BIAS_STEP = 1e-3
"""Of a bias of DeepSeek-V3's routers, towards balance."""


def optimizer(learning_rate: float = 3e-4) -> optax.GradientTransformation:
    """Source: Loshchilov & Hutter 2019, with the betas of Brown et al. 2020."""
    return optax.adamw(learning_rate, b1=0.9, b2=0.95, weight_decay=0.1)


def is_weight(x: Any) -> bool:
    return isinstance(x, nnx.Variable)


def is_trained(w: Parameter) -> bool:
    """A bias is not: what stands for its gradient is its expert's load beyond the mean, and but its sign counts."""
    return "bias" not in w.dims


def clipping() -> optax.GradientTransformation:
    """Optax's own, of the gradients of what is trained."""
    mask = partial(jax.tree.map, lambda w: w.replace(is_trained(w)), is_leaf=is_weight)
    return optax.masked(optax.clip_by_global_norm(CLIP), mask)


def squares(gradients: Parameters, repeats: dict[tuple[str, ...], int]) -> jax.Array:
    """Sum of this device's squares, a gradient that several devices hold counted by its share; float32.

    Args:
      repeats: of each dims, how many devices hold the same part, among those that the result is summed over.
    """
    leaves = filter(is_trained, jax.tree.leaves(gradients, is_leaf=is_weight))
    return reduce(add, (jnp.sum(jnp.square(g.get_value().astype(jnp.float32))) / repeats[g.dims] for g in leaves))


def clipped(gradients: Parameters, norm: jax.Array) -> Parameters:
    """Scaled to `CLIP` where their norm is larger (Pascanu et al. 2013)."""
    return jax.tree.map(lambda g: g.astype(jnp.float32) * jnp.minimum(1.0, CLIP / norm), gradients)


def updated(
    optimizer: optax.GradientTransformation, gradients: Parameters, moments: Any, master: Parameters
) -> tuple[Parameters, Any]:
    changes, moments = optimizer.update(gradients, moments, master)
    changes = jax.tree.map(
        lambda change, g: change if is_trained(g) else g.replace(-BIAS_STEP * jnp.sign(g.get_value())),
        changes,
        gradients,
        is_leaf=is_weight,
    )
    return optax.apply_updates(master, changes), moments
