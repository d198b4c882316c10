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


B1, B2, DECAY = 0.9, 0.95, 0.1
"""Source: Brown et al. 2020."""
EPS = 1e-8


def optimizer(learning_rate: float = 3e-4) -> optax.GradientTransformation:
    """Source: Loshchilov & Hutter 2019."""
    return optax.adamw(learning_rate, b1=B1, b2=B2, eps=EPS, weight_decay=DECAY)


def optimizer_of_momenta(learning_rate: float = 3e-4) -> optax.GradientTransformation:
    """The same of first moments in place of gradients; the second moments stay as `frozen` made them. Source: Tang et
    al. 2021."""
    after = optax.chain(optax.add_decayed_weights(DECAY), optax.scale_by_learning_rate(learning_rate))

    def update(momenta: Parameters, moments: Any, master: Parameters | None = None) -> tuple[Parameters, Any]:
        adam, *rest = moments
        count = adam.count + 1
        first = optax.tree.bias_correction(momenta, B1, count)
        changes = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + EPS), first, adam.nu)
        changes, rest = after.update(changes, tuple(rest), master)
        return changes, (adam._replace(count=count, mu=momenta), *rest)

    return optax.GradientTransformation(optimizer(learning_rate).init, update)


def momenta(gradients: Parameters, moments: Any) -> Parameters:
    """The first moments that these gradients lead to."""
    return jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, moments[0].mu, gradients)


def frozen(moments: Any) -> Any:
    """With second moments that are no longer too small for having begun at 0; those of no step at all stay 0."""
    adam, *rest = moments
    share = jnp.where(adam.count > 0, 1 - B2**adam.count, 1)
    return (adam._replace(nu=jax.tree.map(lambda v: v / share, adam.nu)), *rest)


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
