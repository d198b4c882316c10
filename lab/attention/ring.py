"""Ring attention (Liu et al. 2023; Ch. 17): queries stay, keys and values go round, and what a rank has of each block
merges.

Every block is sent on before it is worked on, so that the next can come meanwhile. The backward pass sends keys and
values round again instead of keeping all that came; their gradients travel with them, in float32, and are cast before
the hop that takes them home.

Dims: S queries and T keys of one rank, B sequences, K key-value heads with G queries each, H head dim; n pieces of a
chunk (see `order`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lab.attention.mask import CAUSAL, Mask
from lab.attention.order import CONTIGUOUS, Index, Order, Pair
from lab.attention.softmax import Finished, Gradients, Partial, finished, merged, nothing, pulled
from lab.attention.tiles import attended, block_gradients, joined, parted
from lab.meshes.errors import UsageError

Kept = tuple[jax.Array, jax.Array, jax.Array, Finished]
"""Queries, keys, values, and what came of them by piece, for the backward pass."""
Arrays = dict[str, jax.Array]
"""What goes round, by the name of its scope."""


def hops(mask: Mask, length: int, ranks: int) -> int:
    """How far keys go: all round, or to the last rank that sees the first key of a window: ceil((W - 1) / (S / P)) (Ch.
    31a, `ch31a.swa`)."""
    return min(-(-(mask.window - 1) * ranks // length), ranks - 1) if mask.window else ranks - 1


def check(mask: Mask, order: Order) -> None:
    """Raises UsageError where an order passes over pieces that this mask does not hide."""
    if order.pieces > 1 and mask != CAUSAL:
        found = f"{order.name} order with causal={mask.causal}, window={mask.window}"
        raise UsageError(
            f"{found}: its ranks pass over pieces that a plainly causal mask hides; use contiguous order, or "
            "causal=True and window=0"
        )


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def ring_attention(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask, axis: str, order: Order = CONTIGUOUS
) -> jax.Array:
    """Attention of this rank's queries to the keys of all ranks along `axis`, [B, S, K, G, H]; inside `jax.shard_map`.

    Args:
      q_BSKGH, k_BTKH, v_BTKH: this rank's chunk, tokens in `order`, positions already turned.
    Raises:
      UsageError: an order that leaves pieces out, for a mask that is not plainly causal; or a chunk that does not split
        into its pieces.

    Cost: with h = `hops`, 2 h messages of b (S / P) K H forward; backward as many again, 2 h of float32, and 2 that
    take gradients home.
    """
    return _forward(q_BSKGH, k_BTKH, v_BTKH, mask, axis, order)[0]


def _forward(
    q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask, axis: str, order: Order
) -> tuple[jax.Array, Kept]:
    ring, q_nBSKGH = Ring(axis, mask, order, q_BSKGH.shape[1]), parted(q_BSKGH, order.pieces)

    def visit(hop: Index, state: Partial, kv: Arrays) -> Partial:
        for i, j, q_at_S, k_at_T in ring.meetings(hop):
            part = attended(_at(q_nBSKGH, i), _at(kv["keys"], j), _at(kv["values"], j), mask, q_at_S, k_at_T)
            state = _with(state, i, merged(_at(state, i), part))
        return state

    state = ring.around(
        {"keys": parted(k_BTKH, order.pieces), "values": parted(v_BTKH, order.pieces)},
        visit,
        jax.vmap(partial(nothing, value_dim=v_BTKH.shape[-1]))(q_nBSKGH),
    )
    done_n = jax.vmap(partial(finished, dtype=q_BSKGH.dtype))(state)
    return joined(done_n.y), (q_BSKGH, k_BTKH, v_BTKH, done_n)


def _backward(mask: Mask, axis: str, order: Order, kept: Kept, y_bar_BSKGH: jax.Array) -> tuple[jax.Array, ...]:
    q_BSKGH, k_BTKH, v_BTKH, done_n = kept
    ring, q_nBSKGH = Ring(axis, mask, order, q_BSKGH.shape[1], is_second=True), parted(q_BSKGH, order.pieces)
    back_n = jax.vmap(pulled)(done_n, parted(y_bar_BSKGH, order.pieces))

    def visit(hop: Index, found: Gradients, kv: Arrays) -> Gradients:
        """The query's gradients add up here; those of keys and values come with their block and are added to."""
        q_bar, *bars = found
        k_bar, v_bar = (
            bars if hop is OWN else ring.sent_on({"key_gradients": bars[0], "value_gradients": bars[1]}).values()
        )
        for i, j, q_at_S, k_at_T in ring.meetings(hop):
            part = block_gradients(
                _at(q_nBSKGH, i), _at(kv["keys"], j), _at(kv["values"], j), mask, q_at_S, k_at_T, _at(back_n, i)
            )
            q_bar, k_bar, v_bar = (
                _with(x, at, _at(x, at) + new)
                for x, at, new in zip((q_bar, k_bar, v_bar), (i, j, j), part, strict=True)
            )
        return Gradients(q_bar, k_bar, v_bar)

    kv = {"keys": parted(k_BTKH, order.pieces), "values": parted(v_BTKH, order.pieces)}
    found = ring.around(kv, visit, Gradients(*(jnp.zeros(x.shape, jnp.float32) for x in (q_nBSKGH, *kv.values()))))
    q_bar, k_bar, v_bar = (joined(bar).astype(x.dtype) for bar, x in zip(found, (q_BSKGH, k_BTKH, v_BTKH), strict=True))
    return q_bar, *ring.sent_home({"key_gradients": k_bar, "value_gradients": v_bar}).values()


ring_attention.defvjp(_forward, _backward)

OWN = 0
"""The hop at which each rank has its own block."""


@dataclass(frozen=True)
class Ring:
    """The ranks along `axis`, each with a chunk of as many tokens, and where this rank stands among them.

    Attributes:
      is_second: keys and values go round once more, for the gradients.
    """

    axis: str
    mask: Mask
    order: Order
    chunk: int
    is_second: bool = False

    def __post_init__(self) -> None:
        check(self.mask, self.order)

    @property
    def ranks(self) -> int:
        return jax.lax.axis_size(self.axis)

    @property
    def length(self) -> int:
        return self.chunk * self.ranks

    @property
    def hops(self) -> int:
        return hops(self.mask, self.length, self.ranks)

    def positions(self, rank: Index) -> jax.Array:
        """[n, S / n], of a rank's tokens."""
        return self.order.positions(self.length, rank, self.ranks).reshape(self.order.pieces, -1)

    def meetings(self, hop: Index) -> list[tuple[Index, Index, jax.Array, jax.Array]]:
        """Pieces of own queries and of the block that has come `hop` ranks, and where these queries and keys stand."""
        rank = jax.lax.axis_index(self.axis)
        source = (rank - hop) % self.ranks
        pairs: tuple[Pair, ...] = self.order.own if hop is OWN else self.order.others(rank, source)
        return [(i, j, _at(self.positions(rank), i), _at(self.positions(source), j)) for i, j in pairs]

    def around(self, block: Arrays, visit: Callable[[Index, Any, Arrays], Any], state: Any) -> Any:
        """Folds `visit` over the own block and over all that come, each sent on before it is visited."""
        if self.hops == 0:
            return visit(OWN, state, block)
        coming = self.sent_on(block)
        state = visit(OWN, state, block)
        hop = lambda i, carry: (visit(i, *carry), self.sent_on(carry[1]))  # noqa: E731
        state, last = jax.lax.fori_loop(1, self.hops, hop, (state, coming))
        return visit(self.hops, state, last)

    def sent_on(self, arrays: Arrays) -> Arrays:
        """Each rank's to the next."""
        return self._moved(arrays, 1)

    def sent_home(self, arrays: Arrays) -> Arrays:
        """Each rank's to where it came from, in one hop however far that is."""
        with jax.named_scope("home"):
            return self._moved(arrays, -self.hops) if self.hops else arrays

    def _moved(self, arrays: Arrays, distance: int) -> Arrays:
        # In another order the second time: of equal permutes compilers make one, and keep what came in a recomputed
        # forward pass.
        ranks = range(self.ranks)[:: -1 if self.is_second else 1]
        pairs = [(rank, (rank + distance) % self.ranks) for rank in ranks]
        moved = {}
        for name, x in arrays.items():
            with jax.named_scope(name):
                moved[name] = jax.lax.ppermute(x, self.axis, pairs)
        return moved


def _at(tree: Any, i: Index) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), tree)


def _with(tree: Any, i: Index, new: Any) -> Any:
    return jax.tree.map(lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, i, 0), tree, new)
