"""Adam's moments of matrices in 8 bits between steps: codes, and a float32 scale for each block of them (Ch. 30).

The second moment is stored as its root, which needs half the exponents, and never as zero where others of its block are
above it: an update divides by it. Source: Dettmers et al. 2022 (arXiv:2110.02861, 8-bit optimizers by blocks), here in
float8.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lab.core.dtypes import DTYPES
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.strategies.strategy import SPLIT, is_split
from lab.programs.strategies.update import is_weight
from lab.programs.strategies.wire import LARGEST, Narrow

_LEAST = {"f8e4m3fn": 2.0**-9, "f8e5m2": 2.0**-16, "s8": 1.0}
"""Above zero."""


class Scales(NamedTuple):
    """Of both moments of matrices, by the path of each."""

    mu: dict[str, Parameter]
    nu: dict[str, Parameter]


def narrowed(moments: Any, narrow: Narrow | None) -> Any:
    """What is kept of an optimizer's state: without a format all as it is; else with scales as a last entry."""
    if narrow is None:
        return moments
    adam, *others = moments
    (mu, of_mu), (nu, of_nu) = (_parted(x, narrow, is_root) for x, is_root in ((adam.mu, False), (adam.nu, True)))
    return (adam._replace(mu=mu, nu=nu), *others, Scales(of_mu, of_nu))


def widened(moments: Any, narrow: Narrow | None) -> Any:
    """The optimizer's state, in float32, of what `narrowed` kept."""
    if narrow is None:
        return moments
    adam, *others, scales = moments
    mu, nu = _joined(adam.mu, scales.mu, is_root=False), _joined(adam.nu, scales.nu, is_root=True)
    return (adam._replace(mu=mu, nu=nu), *others)


def block_of(narrow: Narrow, dims: Dims, sizes: tuple[int, ...]) -> int:
    """Values that share a scale: of the format's block as many as divide the dim that blocks lie along."""
    return gcd(narrow.block, sizes[_along(dims)])


def _along(dims: Dims) -> int:
    """The last dim that sharded data parallelism leaves whole."""
    return max(at for at, dim in enumerate(dims) if dim not in SPLIT)


def _parted(tree: Parameters, narrow: Narrow, is_root: bool) -> tuple[Parameters, dict[str, Parameter]]:
    scales: dict[str, Parameter] = {}

    def code(path: Any, w: Parameter) -> Parameter:
        if not is_split(w.dims):
            return w
        value = jnp.sqrt(w.get_value()) if is_root else w.get_value()
        code, scale = _quantised(value, w.dims, narrow, is_root)
        scales[jax.tree_util.keystr(path)] = w.replace(scale)
        return w.replace(code)

    return jax.tree.map_with_path(code, tree, is_leaf=is_weight), scales


def _joined(tree: Parameters, scales: dict[str, Parameter], is_root: bool) -> Parameters:
    def value(path: Any, w: Parameter) -> Parameter:
        scale = scales.get(jax.tree_util.keystr(path))
        if scale is None:
            return w
        code, at = w.get_value().astype(jnp.float32), _along(w.dims)
        parts = code.reshape(*code.shape[:at], scale.shape[at], -1, *code.shape[at + 1 :])
        x = (parts * jnp.expand_dims(scale.get_value(), at + 1)).reshape(code.shape)
        return w.replace(jnp.square(x) if is_root else x)

    return jax.tree.map_with_path(value, tree, is_leaf=is_weight)


def _quantised(x: jax.Array, dims: Dims, narrow: Narrow, is_root: bool) -> tuple[jax.Array, jax.Array]:
    """Codes like `x`, and the scale of each block."""
    at, top = _along(dims), LARGEST[narrow.dtype]
    parts = x.reshape(*x.shape[:at], -1, block_of(narrow, dims, x.shape), *x.shape[at + 1 :])
    largest = jnp.max(jnp.abs(parts), at + 1, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest / top)
    code = jnp.clip(parts / scale, -top, top)
    if is_root:
        code = jnp.where(largest == 0, 0, jnp.maximum(code, _LEAST[narrow.dtype]))
    rounded = jnp.round(code) if narrow.dtype == "s8" else code
    return rounded.astype(DTYPES[narrow.dtype][0]).reshape(x.shape), jnp.squeeze(scale, at + 1)
