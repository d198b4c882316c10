"""A layer of experts without dispatch: every expert on every token, and a matrix of weights with zeros for what was not
chosen or dropped.

Dims: B sequences, S tokens of each, D embed, E experts, N nodes of e experts, F mlp. Weights as in
`lab.programs.models.decoder`, without the dim of layers. Of a shape it takes sizes and the names of choices alone.
"""

import jax
import jax.numpy as jnp

from lab.programs.models.shape import DecoderShape


def gates(x_BSD: jax.Array, router_DE: jax.Array, router: str) -> jax.Array:
    if router == "sigmoid_bias":
        return 1 / (1 + jnp.exp(-(x_BSD @ router_DE)))
    exponentials_BSE = jnp.exp(x_BSD @ router_DE)
    return exponentials_BSE / exponentials_BSE.sum(-1, keepdims=True)


def is_among_the_largest(x: jax.Array, k: int, axis: int = -1) -> jax.Array:
    """Fewer than k are larger, along one dim."""
    x = jnp.moveaxis(x, axis, -1)
    return jnp.moveaxis((x[..., None, :] > x[..., :, None]).sum(-1) < k, -1, axis)


def weights(x_BSD: jax.Array, w: dict[str, jax.Array], shape: DecoderShape) -> jax.Array:
    """[B, S, E]: of what is chosen and finds room in order of tokens, on its node first, then with its expert."""
    gates_BSE = gates(x_BSD, w["router"], shape.router)
    if shape.router == "expert_choice":
        return shape.routed_scale * gates_BSE * is_among_the_largest(gates_BSE, shape.slots, axis=1)
    chosen_BSE = chosen(gates_BSE, w.get("bias", 0.0), shape)
    share_BSE = gates_BSE * chosen_BSE
    kept_BSE = chosen_BSE
    if shape.nodes > 1:
        visits_BSN = _by_node(chosen_BSE, shape).any(-1)
        kept_BSE = kept_BSE & _of_experts(visits_BSN.cumsum(1) <= shape.node_slots, shape)
    if shape.dispatch == "slots":
        kept_BSE = kept_BSE & (kept_BSE.cumsum(1) <= shape.slots)
    unit_BSE = share_BSE / share_BSE.sum(-1, keepdims=True) if shape.top_k > 1 else share_BSE
    return shape.routed_scale * unit_BSE * kept_BSE


def chosen(gates_BSE: jax.Array, bias_E: jax.Array | float, shape: DecoderShape) -> jax.Array:
    if shape.nodes == 1:
        return is_among_the_largest(gates_BSE + bias_E, shape.top_k)
    best = shape.top_k // shape.node_limit
    biased_BSNe = _by_node(gates_BSE + bias_E, shape)
    score_BSN = (biased_BSNe * is_among_the_largest(biased_BSNe, best)).sum(-1)
    open_BSE = _of_experts(is_among_the_largest(score_BSN, shape.node_limit), shape)
    # Gates of sigmoids and softmaxes are at most 1, and so are the tests' biases.
    return is_among_the_largest(gates_BSE + bias_E + 10.0 * open_BSE, shape.top_k)


def _by_node(x_BSE: jax.Array, shape: DecoderShape) -> jax.Array:
    return x_BSE.reshape(*x_BSE.shape[:-1], shape.nodes, -1)


def _of_experts(x_BSN: jax.Array, shape: DecoderShape) -> jax.Array:
    return jnp.repeat(x_BSN, shape.experts // shape.nodes, axis=-1)


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    h = x @ gate
    return (h / (1 + jnp.exp(-h)) * (x @ up)) @ down


def mixture(x_BSD: jax.Array, w: dict[str, jax.Array], shape: DecoderShape) -> jax.Array:
    by_expert_EBSD = jax.vmap(swiglu, (None, 0, 0, 0))(x_BSD, w["gate"], w["up"], w["down"])
    y_BSD = jnp.einsum("bse,ebsd->bsd", weights(x_BSD, w, shape), by_expert_EBSD)
    return y_BSD + swiglu(x_BSD, w["shared_gate"], w["shared_up"], w["shared_down"])


def losses(x_BSD: jax.Array, w: dict[str, jax.Array], shape: DecoderShape) -> jax.Array:
    """Of balance, E sum f p of each sequence, dropped or not; of large logits; and what stands for one of a bias: the
    loads beyond their mean."""
    logits_BSE = x_BSD @ w["router"]
    of_logits = shape.z * (jnp.log(jnp.exp(logits_BSE).sum(-1)) ** 2).mean(1).sum() / shape.batch
    if shape.router == "expert_choice":
        return of_logits
    gates_BSE = gates(x_BSD, w["router"], shape.router)
    chosen_BSE = chosen(gates_BSE, w.get("bias", 0.0), shape)
    p_BE = (gates_BSE / gates_BSE.sum(-1, keepdims=True)).mean(1)
    balance = shape.balance / shape.batch * (shape.experts * (chosen_BSE.mean(1) / shape.top_k * p_BE).sum(-1)).sum()
    load_E = chosen_BSE.sum((0, 1))
    return of_logits + balance + (w.get("bias", 0.0) * (load_E - load_E.mean())).sum()
