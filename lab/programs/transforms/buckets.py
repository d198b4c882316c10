"""Gradients in buckets (Ch. 31): as many together as a bucket holds, each bucket one all-reduce of one array.

Those of a loop over layers are there together, when it ends, so they are taken by their size, the largest first, and
not in the order in which a backward pass makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from lab.book.overlap import formed_buckets
from lab.core.ledger import Kind
from lab.programs.strategies.exchange import Exchange, Message, Sizes
from lab.programs.strategies.exchanged import by_exchange
from lab.programs.strategies.strategy import Strategy

BYTES = 4
"""Of a number: gradients are summed in float32."""


def bucketed(cap_bytes: int) -> Strategy:
    """Gradients of matrices, summed in buckets of at most so many bytes; a larger one has a bucket of its own.

    Source: Li et al. 2020 (PyTorch DDP); Ch. 31, `ch31.bucketing_algo`.
    """
    return by_exchange(Exchange(run=partial(_run, cap_bytes), sends=partial(_sends, cap_bytes)))


def _run(
    cap_bytes: int, gradients: Sequence[jax.Array], kept: Any, step: jax.Array, over: tuple[str, ...]
) -> tuple[list[jax.Array], Any]:
    sums: dict[int, jax.Array] = {}
    by_size = sorted(range(len(gradients)), key=lambda at: gradients[at].size)
    for places in _filled([gradients[at].size * BYTES for at in by_size], cap_bytes):
        bucket = [by_size[place] for place in places]
        flat = jnp.concatenate([gradients[at].ravel() for at in bucket])
        parts = jnp.split(jax.lax.psum(flat, over), _ends([gradients[at].size for at in bucket]))
        sums |= {at: part.reshape(gradients[at].shape) for at, part in zip(bucket, parts, strict=True)}
    return [sums[at] for at in range(len(gradients))], kept


def _filled(sizes: Sequence[int], cap_bytes: int) -> list[list[int]]:
    """Places of what goes together, from the last on."""
    buckets: list[list[int]] = []
    room = 0
    for at in reversed(range(len(sizes))):
        if not buckets or sizes[at] > room:
            buckets.append([])
            room = cap_bytes
        buckets[-1].append(at)
        room -= sizes[at]
    return buckets


def _ends(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[: at + 1]) for at in range(len(sizes) - 1)]


def _sends(cap_bytes: int, sizes: Sequence[Sizes], ranks: int) -> list[Message]:
    of_each = sorted(BYTES * prod(some) for some in sizes)
    buckets = formed_buckets(of_each, cap_bytes)
    return [Message(Kind.ALL_REDUCE, "f32", sum(of_each[at] for at in bucket)) for bucket in buckets]
