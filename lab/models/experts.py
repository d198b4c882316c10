"""A mixture of experts as pure functions of one group of tokens: who goes where, in which slot, and what comes back.

Dims: T tokens of the group, E experts, k of them for each token, C slots of an expert, D embed. Source: Ch. 18; Fedus et al. 2021 (Switch),
Lepikhin et al. 2020 (GShard), Zhou et al. 2022 (expert choice), DeepSeek-AI 2024 (arXiv:2412.19437).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Routes(NamedTuple):
    """Where each token goes.

    Attributes:
      expert_Tk: int32.
      slot_Tk: int32, how many came to that expert before; from C on a token is dropped.
      weight_Tk: float32, of the expert's result.
    """

    expert_Tk: jax.Array
    slot_Tk: jax.Array
    weight_Tk: jax.Array


def softmax_gates(logits_TE: jax.Array) -> jax.Array:
    """In float32; any leading dims."""
    return jax.nn.softmax(logits_TE.astype(jnp.float32))


def sigmoid_gates(logits_TE: jax.Array) -> jax.Array:
    """In float32, each expert by itself (DeepSeek-V3); any leading dims."""
    return jax.nn.sigmoid(logits_TE.astype(jnp.float32))


def noisy_logits(x_TD: jax.Array, gate_DE: jax.Array, noise_DE: jax.Array, key: jax.Array) -> jax.Array:
    """x W_g + N(0, 1) softplus(x W_noise), so that near choices alternate (Shazeer et al. 2017; `ch18.noisy_topk`); any leading dims."""
    clean_TE = x_TD @ gate_DE
    return clean_TE + jax.random.normal(key, clean_TE.shape) * jax.nn.softplus(x_TD @ noise_DE)


def routes(gates_TE: jax.Array, k: int, bias_E: jax.Array | float = 0.0) -> Routes:
    """Each token to the k experts of its largest gates; see `chosen` for the bias."""
    expert_Tk = chosen(gates_TE, k, bias_E)
    return Routes(expert_Tk, slots(expert_Tk, gates_TE.shape[-1]), weights(jnp.take_along_axis(gates_TE, expert_Tk, -1)))


def chosen(gates_TE: jax.Array, k: int, bias_E: jax.Array | float = 0.0) -> jax.Array:
    """[T, k]: the experts of each token's largest gates, the largest first.

    Args:
      bias_E: added to the gates to choose by, and not to weigh by (DeepSeek-V3).
    """
    # A choice has no gradient; the gates of what is chosen do. Sorted: for a top_k the CPU's compiler gathers the gates of all ranks.
    return jnp.argsort(-jax.lax.stop_gradient(gates_TE + bias_E), axis=-1)[..., :k]


def weights(gate_Tk: jax.Array) -> jax.Array:
    """Normalised to 1, but for k = 1: a weight of 1 would give the router no gradient (Switch)."""
    return gate_Tk if gate_Tk.shape[-1] == 1 else gate_Tk / jnp.sum(gate_Tk, -1, keepdims=True)


def slots(expert_Tk: jax.Array, experts: int) -> jax.Array:
    """How many came to the same expert before, token by token: no later token takes an earlier one's slot."""
    is_sent_NE = expert_Tk.reshape(-1, 1) == jnp.arange(experts)
    before_NE = jnp.cumsum(is_sent_NE, 0, dtype=jnp.int32) - is_sent_NE
    return jnp.sum(jnp.where(is_sent_NE, before_NE, 0), -1, dtype=jnp.int32).reshape(expert_Tk.shape)


def dispatched(x_TD: jax.Array, routes: Routes, experts: int, slots: int) -> jax.Array:
    """[E, C, D]: copies of tokens in the slots of their experts, zeros in those that nobody takes."""
    T, k = routes.expert_Tk.shape
    is_kept_Tk = routes.slot_Tk < slots
    place_Tk = jnp.where(is_kept_Tk, routes.expert_Tk * slots + routes.slot_Tk, experts * slots)
    token_Tk = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[:, None], (T, k))
    token_N = jnp.full(experts * slots, T, jnp.int32).at[place_Tk].set(token_Tk, mode="drop")
    return x_TD.at[token_N].get(mode="fill", fill_value=0).reshape(experts, slots, -1)


def combined(y_ECD: jax.Array, routes: Routes) -> jax.Array:
    """[T, D]: the weighted results of each token's experts; nothing for what was dropped."""
    slots = y_ECD.shape[1]
    y_TkD = y_ECD.at[routes.expert_Tk, routes.slot_Tk].get(mode="fill", fill_value=0)
    weight_Tk = jnp.where(routes.slot_Tk < slots, routes.weight_Tk, 0)
    return jnp.einsum("tk,tkd->td", weight_Tk.astype(y_ECD.dtype), y_TkD)


def balance_loss(gates_TE: jax.Array, expert_Tk: jax.Array) -> jax.Array:
    """E sum_i f_i p_i, f shares of assignments and p mean gates; 1 in balance (`ch18.aux_loss` as corrected).

    Of a sequence by itself it needs no other rank's counts (DeepSeek-V3, section 2.1.2).
    """
    return gates_TE.shape[-1] * jnp.sum(assigned(expert_Tk, gates_TE.shape[-1]) * jnp.mean(gates_TE, 0))


def assigned(expert_Tk: jax.Array, experts: int) -> jax.Array:
    """[E]: each expert's share of all assignments, float32."""
    return jnp.mean(expert_Tk[..., None] == jnp.arange(experts), (0, 1), dtype=jnp.float32)


def z_loss(logits_TE: jax.Array) -> jax.Array:
    """(1/T) sum logsumexp^2 keeps logits small (Zoph et al. 2022; `ch18.z_loss`)."""
    return jnp.mean(jax.nn.logsumexp(logits_TE, -1) ** 2)


@jax.custom_vjp
def charged(x: jax.Array, loss: jax.Array) -> jax.Array:
    """`x` as it is; the backward pass adds the gradient of `loss` to that of whatever is made of `x` (as Megatron-LM's auxiliary losses)."""
    return x


charged.defvjp(lambda x, loss: (x, loss), lambda loss, g: (g, jnp.ones_like(loss)))


def expert_choice(gates_TE: jax.Array, slots: int) -> tuple[jax.Array, jax.Array]:
    """Tokens [E, C] that each expert takes by its largest gates, and these gates: full slots, and no causal order (Zhou et al. 2022)."""
    gate_EC, token_EC = jax.lax.top_k(gates_TE.T, slots)
    return token_EC, gate_EC


def within_nodes(gates_TE: jax.Array, nodes: int, limit: int, k: int) -> jax.Array:
    """Gates of the experts on the `limit` nodes of each token with the largest sums of their k / limit best; elsewhere -inf, which no bias lifts.

    Experts lie on nodes in order, E / nodes each. Source: DeepSeek-V3, section 2.1.2; its k / limit is whole.
    """
    gates_TNe = gates_TE.reshape(*gates_TE.shape[:-1], nodes, -1)
    best_TN = jnp.sum(jax.lax.top_k(gates_TNe, k // limit)[0], -1)
    node_Tl = jax.lax.top_k(best_TN, limit)[1]
    is_open_TN = jnp.any(node_Tl[..., None] == jnp.arange(nodes), -2)
    return jnp.where(is_open_TN[..., None], gates_TNe, -jnp.inf).reshape(gates_TE.shape)


def rebalanced(bias_E: jax.Array, load_E: jax.Array, rate: float) -> jax.Array:
    """A fixed step up for every expert below the mean load and down for every one above (DeepSeek-V3, section 2.1.2)."""
    return bias_E + rate * jnp.sign(jnp.mean(load_E) - load_E)
