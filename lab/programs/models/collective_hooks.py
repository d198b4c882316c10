"""Where a sharded decoder may communicate. Without strategies every hook leaves its value as it is: the program of one
device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp

from lab.attention import dense
from lab.meshes.errors import UsageError

Dims = tuple[str, ...]
Hook = Callable[[jax.Array], jax.Array]
WeightHook = Callable[[Any, Dims], jax.Array]


def unchanged(x: jax.Array) -> jax.Array:
    return x


def as_stored(w: Any, dims: Dims) -> jax.Array:
    return w


def whole(size: int) -> int:
    return 0


def rows(table_VD: jax.Array, row_BS: jax.Array) -> jax.Array:
    return jnp.take(table_VD, row_BS, axis=0, mode="clip")


def in_place(
    x_ND: jax.Array, count_E: jax.Array, own: Callable[[jax.Array, jax.Array], jax.Array], how: str
) -> jax.Array:
    return own(x_ND, count_E)


@dataclass(frozen=True)
class CollectiveHooks:
    """Each hook takes a value as it was made to what the next step needs.

    `a | b` does at each hook what `a` does, then what `b` does; on axes apart the order does not matter. What stands in
    `ONCE` does not change a value but makes one: there a second is refused.

    Attributes:
      weight: (w, dims) as stored, to w for use.
      block_in: x_BSD of the residual stream, into a block.
      router: logits_BSE of the residual stream's tokens, to those of the block's tokens.
      routed: weights of experts' results, to what multiplies the parts that this device has of them.
      inside: an activation whose dims are given, between two products of a block.
      block_out: y_BSD, out of a block, into the residual stream.
      embed: x_BSD, out of the embedding, into the residual stream.
      residual: the residual stream between two blocks.
      vocab_sum: a sum over this device's part of the vocabulary, to the sum over all of it.
      vocab_max: the same for a maximum.
      total: a sum over this device's tokens, to the sum over all.
      vocab_offset: index of the first of this device's `size` entries of the vocabulary.
      scatter: (g, dims) a gradient of a whole copy of a weight, to the sum of this device's part (ZeRO-1).
      gather_updated: (w, dims) this device's part of the new weights, to the whole (ZeRO-1 and 2).
      lookup: (table_VD, row_BS) to x_BSD, of a table that may be split.
      dispatch: x_BECD, this device's sequences in the slots of all experts, to those of all sequences in the slots of
        its own experts.
      combine: the way back.
      node_dispatch: [B, N, ...] of this device's sequences for all nodes, to that of all sequences for this node.
      node_return: the way back.
      expert_apply: (x_ND, count_E, own, how) copies of tokens sorted by expert, to what `own` of (rows, count of each
        expert) makes of them; `how` as the shape's `dispatch`.
      positions: length of the whole sequence to [S], where in it this device's tokens stand.
      attend: (q_BSKGH, k_BTKH, v_BTKH, mask) to y_BSKGH; this device may hold a part of the sequence.
      product: (equation, x, w) to a product that a block begins with.
      contract: (equation, x, w) to y_BSD, the product that a block ends with: the dims that it sums over may be split.
    """

    weight: WeightHook = as_stored
    block_in: Hook = unchanged
    router: Hook = unchanged
    routed: Hook = unchanged
    inside: WeightHook = as_stored
    block_out: Hook = unchanged
    embed: Hook = unchanged
    residual: Hook = unchanged
    vocab_sum: Hook = unchanged
    vocab_max: Hook = unchanged
    total: Hook = unchanged
    vocab_offset: Callable[[int], Any] = whole
    scatter: WeightHook = as_stored
    gather_updated: WeightHook = as_stored
    lookup: Callable[[jax.Array, jax.Array], jax.Array] = rows
    dispatch: Hook = unchanged
    combine: Hook = unchanged
    node_dispatch: Hook = unchanged
    node_return: Hook = unchanged
    expert_apply: Callable[..., jax.Array] = in_place
    positions: Callable[[int], jax.Array] = jnp.arange
    attend: Callable[..., jax.Array] = dense.attend
    product: Callable[[str, jax.Array, jax.Array], jax.Array] = jnp.einsum
    contract: Callable[[str, jax.Array, jax.Array], jax.Array] = jnp.einsum

    def __or__(self, other: CollectiveHooks) -> CollectiveHooks:
        """Raises UsageError where both make the same value, each in its own way."""
        nothing = CollectiveHooks()
        return CollectiveHooks(
            **{
                hook.name: _then(hook.name, *(getattr(hooks, hook.name) for hooks in (self, other, nothing)))
                for hook in fields(CollectiveHooks)
            }
        )


ONCE = (
    "vocab_offset",
    "lookup",
    "dispatch",
    "combine",
    "node_dispatch",
    "node_return",
    "expert_apply",
    "positions",
    "attend",
    "product",
    "contract",
)


AnyHook = Callable[..., Any]


def _then(name: str, first: AnyHook, second: AnyHook, nothing: AnyHook) -> AnyHook:
    if first is nothing or second is nothing:
        return second if first is nothing else first
    if name in ONCE and first is second:
        return first
    if name in ONCE:
        raise UsageError(
            f"two strategies both set the hook '{name}' (two kinds of attention, or of expert parallelism); compose "
            "only one of them"
        )
    return lambda x, *dims: second(first(x, *dims), *dims)
