"""Blocks of float32 numbers as few bits each and one float32 scale (Ch. 28). Bits of several numbers share a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

SCALE_BYTES = 4


@dataclass(frozen=True)
class Codec:
    """A way to write blocks of numbers.

    Attributes:
      bits: of a number.
      block: numbers that share a scale.
      dtype: of what is sent, as the ledger names it.
      encode: (x [..., block], random key) to codes [..., block * bits / 8] and scales [...].
      decode: the way back.
    """

    bits: int
    block: int
    dtype: str
    encode: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
    decode: Callable[[jax.Array, jax.Array], jax.Array]

    def bytes(self, numbers: int) -> tuple[int, int]:
        """Of the codes and of the scales of so many numbers, a multiple of a block."""
        return numbers * self.bits // 8, numbers // self.block * SCALE_BYTES


@cache
def int8(block: int = 128) -> Codec:
    """The nearest of 255 levels up to the block's largest."""
    return Codec(8, block, "s8", _to_int8, lambda codes, scale: codes.astype(jnp.float32) * scale[..., None])


def _to_int8(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps, scale = _nearest(x, 127)
    return steps.astype(jnp.int8), scale


LARGEST_INT4 = 7


@cache
def int4(block: int = 256) -> Codec:
    """The nearest of 15 levels up to the block's largest."""
    return Codec(4, block, "u8", _to_int4, _from_int4)


def _to_int4(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    steps, scale = _nearest(x, LARGEST_INT4)
    return packed((steps + LARGEST_INT4).astype(jnp.uint8), 4), scale


def _from_int4(codes: jax.Array, scale: jax.Array) -> jax.Array:
    return (unpacked(codes, 4).astype(jnp.float32) - LARGEST_INT4) * scale[..., None]


def _nearest(x: jax.Array, largest: int) -> tuple[jax.Array, jax.Array]:
    scale = jnp.max(jnp.abs(x), -1) / largest
    return jnp.round(_over(x, scale)), scale


FLOAT8 = jnp.float8_e4m3fn
LARGEST_FLOAT8 = 448


@cache
def float8(block: int = 128) -> Codec:
    """E4M3 with the block's largest at 448; sent as bytes, since compilers widen float8 on the wire."""
    return Codec(8, block, "u8", _to_float8, _from_float8)


def _to_float8(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale = jnp.max(jnp.abs(x), -1) / LARGEST_FLOAT8
    return jax.lax.bitcast_convert_type(_over(x, scale).astype(FLOAT8), jnp.uint8), scale


def _from_float8(codes: jax.Array, scale: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(codes, FLOAT8).astype(jnp.float32) * scale[..., None]


QSGD_LEVELS = 7


@cache
def qsgd(block: int = 512) -> Codec:
    """A sign and one of 8 levels of the block's Euclidean norm in 4 bits, drawn so that it is right on average. Source:
    Alistarh et al. 2017."""
    return Codec(4, block, "u8", _to_levels, _from_levels)


def _to_levels(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    norm = jnp.sqrt(jnp.sum(jnp.square(x), -1))
    level = jnp.floor(QSGD_LEVELS * jnp.abs(_over(x, norm)) + jax.random.uniform(key, x.shape))
    return packed((jnp.sign(x) * level + QSGD_LEVELS).astype(jnp.uint8), 4), norm


def _from_levels(codes: jax.Array, norm: jax.Array) -> jax.Array:
    return (unpacked(codes, 4).astype(jnp.float32) - QSGD_LEVELS) / QSGD_LEVELS * norm[..., None]


@cache
def terngrad(block: int = 512) -> Codec:
    """The sign, as often as a number is large beside the block's largest, else nothing: 2 bits. Source: Wen et al.
    2017."""
    return Codec(2, block, "u8", _to_ternary, _from_ternary)


def _to_ternary(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    top = jnp.max(jnp.abs(x), -1)
    is_kept = jax.random.uniform(key, x.shape) < jnp.abs(_over(x, top))
    return packed((jnp.sign(x) * is_kept + 1).astype(jnp.uint8), 2), top


def _from_ternary(codes: jax.Array, top: jax.Array) -> jax.Array:
    return (unpacked(codes, 2).astype(jnp.float32) - 1) * top[..., None]


@cache
def signs(block: int = 1024) -> Codec:
    """Signs alone, at the mean size of the block's numbers: 1 bit. Source: Seide et al. 2014, Tang et al. 2021."""
    return Codec(1, block, "u8", _to_signs, _from_signs)


def _to_signs(x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return packed((x >= 0).astype(jnp.uint8), 1), jnp.mean(jnp.abs(x), -1)


def _from_signs(codes: jax.Array, size: jax.Array) -> jax.Array:
    return (2 * unpacked(codes, 1).astype(jnp.float32) - 1) * size[..., None]


def packed(codes: jax.Array, bits: int) -> jax.Array:
    """[..., n] of numbers below 2^bits to [..., n * bits / 8] bytes, the first in the lowest bits."""
    each = 8 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, each) << (bits * jnp.arange(each, dtype=jnp.uint8))
    return jnp.sum(parts, -1, dtype=jnp.uint8)


def unpacked(packed: jax.Array, bits: int) -> jax.Array:
    """The way back."""
    each = 8 // bits
    parts = packed[..., None] >> (bits * jnp.arange(each, dtype=jnp.uint8))
    return (parts & jnp.uint8(2**bits - 1)).reshape(*packed.shape[:-1], -1)


def _over(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Blocks of zeros stay zeros."""
    return x / jnp.where(scale > 0, scale, 1)[..., None]
