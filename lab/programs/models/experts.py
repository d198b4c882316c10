"""Experts with slots, as pure functions of one group of tokens: copies of tokens into slots, and results back to
tokens.

Dims: T tokens of the group, E experts, k of them for each token, C slots of an expert, D embed; N nodes of e experts
and M slots. Source: Ch. 18; Lepikhin et al. 2020 (GShard), DeepSeek-AI 2024 (arXiv:2412.19437).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from lab.programs.models.routers import Filled, Routes, before


def dispatched(x_TD: jax.Array, routes: Routes, experts: int, slots: int) -> jax.Array:
    """[E, C, D]: copies of tokens in the slots of their experts, zeros in those that nobody takes."""
    T, k = routes.expert_Tk.shape
    token_Tk = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[:, None], (T, k))
    return taken(x_TD, _seated(token_Tk, routes.expert_Tk, routes.slot_Tk, experts, slots, T))


def taken(x_TD: jax.Array, token_EC: jax.Array) -> jax.Array:
    """[E, C, D]: the tokens with these numbers, zeros for T."""
    return x_TD.at[token_EC].get(mode="fill", fill_value=0)


def _seated(token: jax.Array, expert: jax.Array, slot: jax.Array, experts: int, slots: int, nobody: int) -> jax.Array:
    """[E, C] int32: which token is in each slot; those whose slot is beyond the last are in none."""
    place = jnp.where(slot < slots, expert * slots + slot, experts * slots)
    return jnp.full(experts * slots, nobody, jnp.int32).at[place].set(token, mode="drop").reshape(experts, slots)


def combined(y_ECD: jax.Array, routes: Routes) -> jax.Array:
    """[T, D]: the weighted results of each token's experts; nothing for what was dropped."""
    y_TkD = y_ECD.at[routes.expert_Tk, routes.slot_Tk].get(mode="fill", fill_value=0)
    return jnp.einsum("tk,tkd->td", routes.weight_Tk.astype(y_ECD.dtype), y_TkD)


def added(y_ECD: jax.Array, token_EC: jax.Array, tokens: int) -> jax.Array:
    """[T, D]: the sum of what the slots of each token give it."""
    return jnp.zeros((tokens, y_ECD.shape[-1]), y_ECD.dtype).at[token_EC].add(y_ECD, mode="drop")


def weighed(y_ECD: jax.Array, filled: Filled, tokens: int) -> jax.Array:
    """[T, D]: the weighted results of the experts that took each token."""
    return added(filled.weight_EC[..., None].astype(y_ECD.dtype) * y_ECD, filled.token_EC, tokens)


def by_nodes(routes: Routes, experts: int, nodes: int, slots: int) -> tuple[jax.Array, jax.Array]:
    """Which token is in each slot of a node, once however many experts it visits there, and the weights of that node's
    experts for it.

    Returns:
      token_NM: int32, T where nobody is.
      weight_NMe: float32, 0 for experts that the token does not visit.
    """
    T, _ = routes.expert_Tk.shape
    weight_TE = jnp.sum(
        jnp.where(routes.expert_Tk[..., None] == jnp.arange(experts), routes.weight_Tk[..., None], 0), 1
    )
    weight_TNe = weight_TE.reshape(T, nodes, -1)
    visits_TN = jnp.any(routes.expert_Tk[..., None] // (experts // nodes) == jnp.arange(nodes), 1)
    token_TN, node_TN = jnp.indices((T, nodes), jnp.int32)
    token_NM = _seated(token_TN, node_TN, jnp.where(visits_TN, before(visits_TN), slots), nodes, slots, T)
    return token_NM, weight_TNe.at[token_NM, jnp.arange(nodes)[:, None]].get(mode="fill", fill_value=0)


def filled(weight_Te: jax.Array, slots: int) -> Filled:
    """The experts' slots, filled token by token with those whose weight is not 0."""
    T, e = weight_Te.shape
    is_sent_Te = weight_Te > 0
    token_Te, expert_Te = jnp.indices((T, e), jnp.int32)
    token_eC = _seated(token_Te, expert_Te, jnp.where(is_sent_Te, before(is_sent_Te), slots), e, slots, T)
    return Filled(token_eC, weight_Te.at[token_eC, jnp.arange(e)[:, None]].get(mode="fill", fill_value=0))
