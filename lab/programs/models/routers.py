"""Routers as pure functions of one group of tokens: whom a token, or an expert, chooses, and what keeps the loads in
balance.

Dims: T tokens of the group, E experts, k of them for each token, C slots of an expert, D embed, N nodes. Source: Ch. 18
and 35; Fedus et al. 2021 (Switch), Zhou et al. 2022 (expert choice), DeepSeek-AI 2024 (arXiv:2412.19437).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

CHOICE = "choice"
"""Name of what a router chooses, for policies of recomputation."""


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


class Filled(NamedTuple):
    """Which token is in each slot.

    Attributes:
      token_EC: int32, T where nobody is.
      weight_EC: float32, of what the expert makes of it.
    """

    token_EC: jax.Array
    weight_EC: jax.Array


def softmax_gates(logits_TE: jax.Array) -> jax.Array:
    """In float32; any leading dims."""
    return jax.nn.softmax(logits_TE.astype(jnp.float32))


def sigmoid_gates(logits_TE: jax.Array) -> jax.Array:
    """In float32, each expert by itself (DeepSeek-V3); any leading dims."""
    return jax.nn.sigmoid(logits_TE.astype(jnp.float32))


def noisy_logits(x_TD: jax.Array, gate_DE: jax.Array, noise_DE: jax.Array, key: jax.Array) -> jax.Array:
    """x W_g + N(0, 1) softplus(x W_noise), so that near choices alternate (Shazeer et al. 2017; `ch18.noisy_topk`); any
    leading dims."""
    clean_TE = x_TD @ gate_DE
    return clean_TE + jax.random.normal(key, clean_TE.shape) * jax.nn.softplus(x_TD @ noise_DE)


def routes(gates_TE: jax.Array, k: int, bias_E: jax.Array | float = 0.0, nodes: int = 1, limit: int = 1) -> Routes:
    """Each token to the k experts of its largest gates, on at most `limit` of the nodes; see `chosen` for the bias, by
    which nodes are chosen as well."""
    biased_TE = gates_TE + bias_E
    expert_Tk = chosen(within_nodes(biased_TE, nodes, limit, k) if limit < nodes else biased_TE, k)
    return Routes(
        expert_Tk, slots(expert_Tk, gates_TE.shape[-1]), weights(jnp.take_along_axis(gates_TE, expert_Tk, -1))
    )


def chosen(gates_TE: jax.Array, k: int, bias_E: jax.Array | float = 0.0) -> jax.Array:
    """[T, k]: the experts of each token's largest gates, the largest first.

    Args:
      bias_E: added to the gates to choose by, and not to weigh by (DeepSeek-V3).
    """
    return _largest(gates_TE + bias_E, k)


def _largest(x: jax.Array, k: int) -> jax.Array:
    """Indices of the k largest along the last dim, the largest first; kept for the backward pass, which could choose
    otherwise by the last bit of a sum."""
    # A choice has no gradient; what is chosen has. Sorted: for a top_k the CPU's compiler gathers the gates of all
    # ranks.
    return checkpoint_name(jnp.argsort(-jax.lax.stop_gradient(x), axis=-1)[..., :k], CHOICE)


def weights(gate_Tk: jax.Array) -> jax.Array:
    """Normalised to 1, but for k = 1: a weight of 1 would give the router no gradient (Switch)."""
    return gate_Tk if gate_Tk.shape[-1] == 1 else gate_Tk / jnp.sum(gate_Tk, -1, keepdims=True)


def slots(expert_Tk: jax.Array, experts: int) -> jax.Array:
    """How many came to the same expert before, token by token: no later token takes an earlier one's slot."""
    is_sent_NE = expert_Tk.reshape(-1, 1) == jnp.arange(experts)
    return jnp.sum(jnp.where(is_sent_NE, before(is_sent_NE), 0), -1, dtype=jnp.int32).reshape(expert_Tk.shape)


def before(is_sent_TE: jax.Array) -> jax.Array:
    """How many earlier tokens went there; int32 [T, E]."""
    return jnp.cumsum(is_sent_TE, 0, dtype=jnp.int32) - is_sent_TE


def expert_choice(gates_TE: jax.Array, slots: int) -> Filled:
    """Each expert takes the tokens of its largest gates: full slots, and no causal order, since a later token can take
    an earlier one's (Zhou et al. 2022)."""
    token_EC = _largest(gates_TE.T, slots)
    return Filled(token_EC, jnp.take_along_axis(gates_TE.T, token_EC, -1))


def within_nodes(gates_TE: jax.Array, nodes: int, limit: int, k: int) -> jax.Array:
    """Gates, with their bias, of the experts on the `limit` nodes of each token with the largest sums of their k /
    limit best; elsewhere -inf.

    Experts lie on nodes in order, E / nodes each. Source: DeepSeek-V3, section 2.1.2, whose k / limit is 2; that its
    sums have the bias is said by the model's own code alone (`inference/model.py` of deepseek-ai/DeepSeek-V3).
    """
    gates_TNe = gates_TE.reshape(*gates_TE.shape[:-1], nodes, -1)
    best_TN = jnp.sum(jnp.sort(gates_TNe, -1)[..., -(k // limit) :], -1)
    is_open_TN = jnp.any(_largest(best_TN, limit)[..., None] == jnp.arange(nodes), -2)
    return jnp.where(is_open_TN[..., None], gates_TNe, -jnp.inf).reshape(gates_TE.shape)


def balance_loss(gates_TE: jax.Array, expert_Tk: jax.Array) -> jax.Array:
    """E sum_i f_i p_i, f shares of assignments and p mean gates, of gates that sum to 1; 1 in balance (`ch18.aux_loss`
    as corrected).

    Of a sequence by itself it needs no other rank's counts (DeepSeek-V3, section 2.1.2).
    """
    return gates_TE.shape[-1] * jnp.sum(assigned(expert_Tk, gates_TE.shape[-1]) * jnp.mean(gates_TE, 0))


def assigned(expert_Tk: jax.Array, experts: int) -> jax.Array:
    """[E]: each expert's share of all assignments, float32."""
    return jnp.mean(expert_Tk[..., None] == jnp.arange(experts), (0, 1), dtype=jnp.float32)


def excess(expert_Tk: jax.Array, experts: int) -> jax.Array:
    """[E]: assignments to each expert beyond the mean, float32."""
    return jnp.sum(expert_Tk[..., None] == jnp.arange(experts), (0, 1), dtype=jnp.float32) - expert_Tk.size / experts


def z_loss(logits_TE: jax.Array) -> jax.Array:
    """(1/T) sum logsumexp^2 keeps logits small (Zoph et al. 2022; `ch18.z_loss`)."""
    return jnp.mean(jax.nn.logsumexp(logits_TE.astype(jnp.float32), -1) ** 2)


@jax.custom_vjp
def charged(x: jax.Array, loss: jax.Array) -> jax.Array:
    """`x` as it is; the backward pass adds the gradient of `loss` to that of whatever is made of `x` (as Megatron-LM's
    auxiliary losses)."""
    return x


charged.defvjp(lambda x, loss: (x, loss), lambda loss, g: (g, jnp.ones_like(loss)))


def rebalanced(bias_E: jax.Array, load_E: jax.Array, rate: float) -> jax.Array:
    """A fixed step up for every expert below the mean load and down for every one above (DeepSeek-V3, section
    2.1.2)."""
    return bias_E + rate * jnp.sign(jnp.mean(load_E) - load_E)
