"""Narrow formats on the wire: what is moved is rounded to 8 bits before, and scales travel beside it (Ch. 30).

A weight is seen as x_ADB: D is the dim that sharded data parallelism splits, A the dims before it, B those after it, so
that a block of values that share a scale never crosses the boundary between two ranks' parts.
Source: Micikevicius et al. 2022 (a scale for a tensor), DeepSeek-V3 (arXiv:2412.19437, tiles of 128), the OCP
Microscaling specification 1.0 (blocks of 32, each with a power of two), ZeRO++ (arXiv:2306.10209, sums by all_to_all).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from lab.core.dtypes import DTYPES
from lab.meshes.errors import UsageError
from lab.programs.models.collective_hooks import Dims, WeightHook

LARGEST = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0, "s8": 127.0}
"""Magnitude that a format reaches, by XLA's name."""
_SPLIT: Dims = ("", "embed", "")
"""Dims of x_ADB, for a hook that gathers along the split one."""


@dataclass(frozen=True)
class Narrow:
    """A format of 8 bits, and which values share a scale.

    Attributes:
      dtype: by XLA's name: "f8e4m3fn", "f8e5m2" or "s8".
      block: values that share a scale; 0: all of a tensor, whose largest magnitude an all_reduce finds.
      scale: dtype of a scale: "f32", or "u8" for the exponent of a power of two (microscaling).
    Raises:
      UsageError: no such format.
    """

    dtype: str
    block: int = 0
    scale: str = "f32"

    def __post_init__(self) -> None:
        for name, known in ((self.dtype, (*LARGEST,)), (self.scale, ("f32", "u8"))):
            if name not in known:
                raise UsageError(f"{self}: found {name}, expected one of {', '.join(known)}")

    @property
    def scale_bytes(self) -> int:
        return DTYPES[self.scale][1]


@dataclass(frozen=True)
class Wire:
    """Formats in which values travel; None: as they are.

    Attributes:
      weights: of matrices that are gathered.
      gradients: of matrices' gradients: an all_to_all of narrow parts, and a float32 sum of what arrives.
    """

    weights: Narrow | None = None
    gradients: Narrow | None = None

    def __or__(self, other: Wire) -> Wire:
        """Raises UsageError as `one_of`."""
        return Wire(
            one_of("weights on the wire", self.weights, other.weights),
            one_of("gradients on the wire", self.gradients, other.gradients),
        )


def one_of(what: str, one: Narrow | None, other: Narrow | None) -> Narrow | None:
    """Raises UsageError where both name a format, and not the same one."""
    if None not in (one, other) and one != other:
        raise UsageError(f"two formats for {what}, {one} and {other}; choose one of them")
    return one or other


AS_IT_IS = Wire()


def seen_as(shape: tuple[int, ...], at: int) -> tuple[int, int, int]:
    """[A, D, B] of an array whose dim `at` is split."""
    return prod(shape[:at]), shape[at], prod(shape[at + 1 :])


def check_blocks(narrow: Narrow, shape: tuple[int, ...], at: int) -> None:
    """Raises UsageError where blocks do not fill the dims beside the split one."""
    A, _, B = seen_as(shape, at)
    length = B if B > 1 else A
    if narrow.block and length % narrow.block:
        raise UsageError(
            f"blocks of {narrow.block} do not divide the {length} values beside the split dim of a weight "
            f"{list(shape)}; choose sizes that they divide, or recipe=tensor"
        )


def quantised(x_ADB: jax.Array, narrow: Narrow, over: tuple[str, ...] = ()) -> tuple[jax.Array, jax.Array]:
    """Rounded to the nearest, and what to multiply that with; there may be dims before A.

    Args:
      over: axes of the ranks that share a tensor's one scale.
    Returns:
      [..., A, D, B] in the narrow dtype; scales [..., A, D, B / block], or [..., A / block, D, 1] where B is 1, or []
      for a tensor.
    """
    x = x_ADB.astype(jnp.float32)
    parts, axis = _in_blocks(x, narrow.block)
    largest = jnp.max(jnp.abs(parts), axis)
    if over and not narrow.block:
        largest = jax.lax.pmax(largest, over)
    scale = _scale(largest, narrow)
    top = LARGEST[narrow.dtype]
    # A power of two below may leave the largest beyond what the format has.
    clipped = jnp.clip(parts / _spread(scale, axis), -top, top).reshape(x.shape)
    return (jnp.round(clipped) if narrow.dtype == "s8" else clipped).astype(DTYPES[narrow.dtype][0]), scale


def dequantised(q_ADB: jax.Array, scale: jax.Array, narrow: Narrow) -> jax.Array:
    """In float32."""
    parts, axis = _in_blocks(q_ADB.astype(jnp.float32), narrow.block)
    return (parts * _spread(scale, axis)).reshape(q_ADB.shape)


def rounded(x_ADB: jax.Array, narrow: Narrow) -> jax.Array:
    """What arrives of values that travel in this format."""
    q_ADB, scale = quantised(x_ADB, narrow)
    # Held: GPUs' compilers drop a float that is rounded and widened again (G14).
    return dequantised(jax.lax.optimization_barrier(q_ADB), scale, narrow).astype(x_ADB.dtype)


def _in_blocks(x_ADB: jax.Array, block: int) -> tuple[jax.Array, int | None]:
    """With blocks as a dim of their own, and which; None: all are one."""
    if not block:
        return x_ADB, None
    *first, A, D, B = x_ADB.shape
    if B > 1:
        return x_ADB.reshape(*first, A, D, B // block, block), len(first) + 3
    return x_ADB.reshape(*first, A // block, block, D, 1), len(first) + 1


def _scale(largest: jax.Array, narrow: Narrow) -> jax.Array:
    """That brings the largest magnitude to the format's, or for a power of two into its top octave."""
    is_zero = largest == 0
    if narrow.scale == "f32":
        return jnp.where(is_zero, 1, largest / LARGEST[narrow.dtype])
    # 2^(e - 1) <= m < 2^e; exponents are stored with a bias of 127.
    exponent = jnp.frexp(largest)[1] - jnp.frexp(jnp.float32(LARGEST[narrow.dtype]))[1]
    return jnp.where(is_zero, 127, jnp.clip(exponent + 127, 1, 254)).astype(narrow.scale.replace("u8", "uint8"))


def _spread(scale: jax.Array, axis: int | None) -> jax.Array:
    """Float32, against blocks."""
    if scale.dtype == jnp.uint8:
        scale = jax.lax.bitcast_convert_type(scale.astype(jnp.uint32) << 23, jnp.float32)
    return scale if axis is None else jnp.expand_dims(scale, axis)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3, 4))
def on_wire(gather: WeightHook, wire: Wire, over: tuple[str, ...], at: int, dims: Dims, w: jax.Array) -> jax.Array:
    """What `gather` makes whole of a weight, moved in the wire's format; gradients pass as if nothing were rounded.

    Args:
      gather: a hook that makes a split dim whole, whatever the dtype.
      over: the axes that it gathers over.
      at: the split one of `dims`.
    """
    if wire.weights is None:
        return gather(w, dims)
    check_blocks(wire.weights, w.shape, at)
    q_ADB, scale = quantised(w.reshape(seen_as(w.shape, at)), wire.weights, over)
    # Held on both sides: XLA may move casts across what it moves.
    q_ADB = gather(jax.lax.optimization_barrier(q_ADB), _SPLIT)
    with jax.named_scope("scale"):
        scale = gather(scale, _SPLIT) if wire.weights.block else scale
    whole = dequantised(jax.lax.optimization_barrier(q_ADB), scale, wire.weights).astype(w.dtype)
    return whole.reshape(*w.shape[:at], -1, *w.shape[at + 1 :])


def _forward(gather: WeightHook, wire: Wire, over: tuple[str, ...], at: int, dims: Dims, w: jax.Array) -> Any:
    # The gather is linear: of its pullback nothing is kept.
    return on_wire(gather, wire, over, at, dims, w), jax.vjp(lambda w: gather(w, dims), w)[1]


def _backward(
    gather: WeightHook, wire: Wire, over: tuple[str, ...], at: int, dims: Dims, pull: Any, g: jax.Array
) -> tuple[jax.Array]:
    return pull(g) if wire.gradients is None else (scattered(g, wire.gradients, over, at),)


def scattered(g: jax.Array, narrow: Narrow, over: tuple[str, ...], at: int) -> jax.Array:
    """This rank's part of the sum of all ranks' gradients, along dim `at`: what one sends to another is rounded, sums
    are not."""
    ranks = jax.lax.axis_size(over)
    check_blocks(narrow, g.shape, at)
    A, D, B = seen_as(g.shape, at)
    g_PADB = g.reshape(A, ranks, D // ranks, B).swapaxes(0, 1)
    q_PADB, scale = quantised(g_PADB, narrow, over)
    q_PADB = jax.lax.all_to_all(jax.lax.optimization_barrier(q_PADB), over, 0, 0, tiled=True)
    with jax.named_scope("scale"):
        scale = jax.lax.all_to_all(scale, over, 0, 0, tiled=True) if narrow.block else scale
    part_ADB = jnp.sum(dequantised(jax.lax.optimization_barrier(q_PADB), scale, narrow), 0)
    return part_ADB.astype(g.dtype).reshape(*g.shape[:at], -1, *g.shape[at + 1 :])


on_wire.defvjp(_forward, _backward)
