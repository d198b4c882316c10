"""A layer of experts without dispatch: every expert on every token, and a matrix of weights with zeros for what was not chosen or dropped.

Dims: B sequences, S tokens of each, D embed, E experts, F mlp. Weights as in `lab.models.decoder`, without the dim of layers.
"""

import jax
import jax.numpy as jnp


def weights(x_BSD: jax.Array, router_DE: jax.Array, k: int, slots: int) -> jax.Array:
    """[B, S, E]: of a softmax's k largest entries, normalised where there are several, those that find room in order of tokens."""
    exponentials_BSE = jnp.exp(x_BSD @ router_DE)
    gates_BSE = exponentials_BSE / exponentials_BSE.sum(-1, keepdims=True)
    larger_BSE = (gates_BSE[..., None, :] > gates_BSE[..., :, None]).sum(-1)
    chosen_BSE = larger_BSE < k
    has_room_BSE = chosen_BSE.cumsum(1) <= slots
    share_BSE = gates_BSE * chosen_BSE
    return (share_BSE / share_BSE.sum(-1, keepdims=True) if k > 1 else share_BSE) * has_room_BSE


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    h = x @ gate
    return (h / (1 + jnp.exp(-h)) * (x @ up)) @ down


def mixture(x_BSD: jax.Array, w: dict[str, jax.Array], k: int, slots: int) -> jax.Array:
    by_expert_EBSD = jax.vmap(swiglu, (None, 0, 0, 0))(x_BSD, w["gate"], w["up"], w["down"])
    y_BSD = jnp.einsum("bse,ebsd->bsd", weights(x_BSD, w["router"], k, slots), by_expert_EBSD)
    return y_BSD + swiglu(x_BSD, w["shared_gate"], w["shared_up"], w["shared_down"])


def balance(x_BSD: jax.Array, router_DE: jax.Array, k: int) -> jax.Array:
    """E sum f p of each sequence, dropped or not, summed over sequences."""
    chosen_BSE = weights(x_BSD, router_DE, k, x_BSD.shape[1]) > 0
    p_BE = jax.nn.softmax(x_BSD @ router_DE).mean(1)
    return (router_DE.shape[1] * (chosen_BSE.mean(1) / k * p_BE).sum(-1)).sum()
