"""Reduced precision (Ch. 30): weights and gradients that travel in 8 bits, products in float8, moments in float8."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp

from lab.meshes.errors import UsageError
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.wire import Narrow, Wire, quantised, rounded

RECIPES = {
    "tensor": Narrow("f8e4m3fn"),
    "tile128": Narrow("f8e4m3fn", block=128),
    "mxfp8": Narrow("f8e4m3fn", block=32, scale="u8"),
    "int8": Narrow("s8", block=128),
}
"""A scale for each tensor, found by an all_reduce; for each 128 values; the power of two of each 32 (MXFP8)."""
AS_IT_IS = "as_it_is"
OF_MOMENTS = ("tile128",)
OF_PRODUCTS = ("tensor", "tile128")
"""Recipes in which products are done: by the chip, where it multiplies float8; of values that are rounded to float8."""


def gathered_in(narrow: Narrow) -> Strategy:
    """Matrices of ZeRO-3 are gathered in this format, with their scales."""
    return Strategy(terms=(), wire=Wire(weights=narrow), styles=("explicit",))


def reduced_in(narrow: Narrow) -> Strategy:
    """Gradients of ZeRO-3's matrices travel in this format, and are summed in float32."""
    return Strategy(terms=(), wire=Wire(gradients=narrow), styles=("explicit",))


def moments_in(narrow: Narrow) -> Strategy:
    """Both moments of matrices are kept in this format between steps, with a scale for each block."""
    return Strategy(terms=(), moments=narrow)


def multiplied_in(recipe: str) -> Strategy:
    """A layer's products with weights in float8, forward and backward; scales are each device's own, so that nothing is
    sent for them.

    Args:
      recipe: "tensor": E4M3, and E5M2 for gradients, one scale each, multiplied as they are and summed in float32
        (Micikevicius et al. 2022); "tile128": E4M3 throughout, a scale for each 128 values that a product sums over
        (DeepSeek-V3); no XLA compiler multiplies tiles, so that the products are of rounded values in 16 or 32 bits.
    Raises:
      UsageError: no such recipe, or one of microscaled blocks.
    """
    if recipe in ("mxfp8", "nvfp4"):
        raise UsageError(
            f"products={recipe}: no step of the lab multiplies blocks that have scales of their own: "
            f"jax.nn.scaled_matmul dequantises them on H100s (G16) and is refused on TPUs (T23); use "
            f"{' or '.join(OF_PRODUCTS)}"
        )
    if recipe not in OF_PRODUCTS:
        raise UsageError(f"products={recipe}: expected one of {', '.join(OF_PRODUCTS)}")
    product = partial(_einsum, scaled_product if recipe == "tensor" else tiled_product)
    return Strategy(terms=(), hooks=CollectiveHooks(product=product, contract=product), styles=("explicit",))


Multiply = Callable[[jax.Array, jax.Array], jax.Array]
"""x_TK and w_KF to y_TF."""


def _einsum(multiply: Multiply, equation: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """Of the last dims of x with the first of w, as they lie."""
    first, second = equation.partition("->")[0].split(",")
    n = sum(dim in first for dim in second)
    K = prod(w.shape[:n])
    return multiply(x.reshape(-1, K), w.reshape(K, -1)).reshape(*x.shape[:-n], *w.shape[n:])


@jax.custom_vjp
def scaled_product(x_TK: jax.Array, w_KF: jax.Array) -> jax.Array:
    """Of float8 values, each tensor with a scale; so are both products of its gradients."""
    return _scaled_forward(x_TK, w_KF)[0]


def _scaled_forward(x_TK: jax.Array, w_KF: jax.Array) -> tuple[jax.Array, tuple[Quantised, Quantised]]:
    x, w = _of_tensor(x_TK, "f8e4m3fn"), _of_tensor(w_KF, "f8e4m3fn")
    return _product(x, w, "TK,KF->TF", x_TK.dtype), (x, w)


def _scaled_backward(kept: tuple[Quantised, Quantised], g_TF: jax.Array) -> tuple[jax.Array, jax.Array]:
    (x, w), g = kept, _of_tensor(g_TF, "f8e5m2")
    return _product(g, w, "TF,KF->TK", g_TF.dtype), _product(x, g, "TK,TF->KF", g_TF.dtype)


scaled_product.defvjp(_scaled_forward, _scaled_backward)

Quantised = tuple[jax.Array, jax.Array]
"""Values of 8 bits, and what to multiply them with."""


def _of_tensor(x: jax.Array, dtype: str) -> Quantised:
    return quantised(x, Narrow(dtype))


def _product(x: Quantised, y: Quantised, equation: str, dtype: Any) -> jax.Array:
    z = jnp.einsum(equation, x[0], y[0], preferred_element_type=jnp.float32)
    return (z * (x[1] * y[1])).astype(dtype)


@jax.custom_vjp
def tiled_product(x_TK: jax.Array, w_KF: jax.Array) -> jax.Array:
    """Of values rounded to float8 in tiles along what is summed; so are both products of its gradients."""
    return jnp.dot(_along(x_TK, 1), _along(w_KF, 0))


def _tiled_forward(x_TK: jax.Array, w_KF: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return tiled_product(x_TK, w_KF), (x_TK, w_KF)


def _tiled_backward(kept: tuple[jax.Array, jax.Array], g_TF: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_TK, w_KF = kept
    return jnp.dot(_along(g_TF, 1), _along(w_KF, 1).T), jnp.dot(_along(x_TK, 0).T, _along(g_TF, 0))


tiled_product.defvjp(_tiled_forward, _tiled_backward)


def _along(x: jax.Array, axis: int) -> jax.Array:
    """Rounded in tiles along a dim, of 128 or, where that does not divide it, as many as do."""
    tile = Narrow("f8e4m3fn", block=gcd(128, x.shape[axis]))
    return rounded(x[None] if axis else x[..., None], tile).reshape(x.shape)
