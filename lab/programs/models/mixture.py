"""A decoder's layer of experts: whom a router sends where, in slots or as many as there are, on one device or over the
ranks that hooks reach.

Dims: B batch (sequences), S length, D embed, E experts, F mlp, C slots of an expert, N nodes of e experts and M slots;
T = B S tokens, k copies of each, R rows of a rank's experts. Source: Ch. 18 and 35.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from lab.programs.models import dropless, experts, routers
from lab.programs.models.activations import hidden
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.routers import Routes
from lab.programs.models.shape import DecoderShape

Use = Callable[[str], jax.Array]
"""A layer's weight by name, as products use it."""
scope = jax.named_scope


def mixture(
    stream_BSD: jax.Array, x_BSD: jax.Array, use: Use, shape: DecoderShape, hooks: CollectiveHooks
) -> jax.Array:
    """What a router's choice of experts makes of each token. Each sequence is routed by itself, so that no layout of
    batches changes which tokens are dropped; where ranks hold parts of a sequence, each part is.

    Args:
      stream_BSD: tokens between blocks, by which experts are chosen.
      x_BSD: the same as they entered the block.
    """
    parts = shape.length // x_BSD.shape[1]
    shape = replace(shape, length=x_BSD.shape[1], batch=parts * shape.batch)
    with scope("router"):
        logits_BSE = hooks.router(jnp.einsum("bsd,de->bse", stream_BSD, use("router")))
        gates_BSE = (routers.sigmoid_gates if shape.router == "sigmoid_bias" else routers.softmax_gates)(logits_BSE)
    chosen = _chosen_by_experts if shape.router == "expert_choice" else _chosen_by_tokens
    y_BSD, loss = chosen(x_BSD, gates_BSE, use, shape, hooks)
    with scope("balance"):
        if shape.z:
            loss += shape.z / shape.batch * jnp.sum(jax.vmap(routers.z_loss)(logits_BSE))
        return routers.charged(y_BSD, jnp.asarray(loss))


def _chosen_by_tokens(
    x_BSD: jax.Array, gates_BSE: jax.Array, use: Use, shape: DecoderShape, hooks: CollectiveHooks
) -> tuple[jax.Array, jax.Array]:
    with scope("bias"):
        bias_E = use("bias") if shape.biases else 0.0
    with scope("router"):
        routes = jax.vmap(
            lambda gates_SE: routers.routes(gates_SE, shape.top_k, bias_E, shape.nodes, shape.node_limit)
        )(gates_BSE)
        used = routes._replace(weight_Tk=hooks.routed(shape.routed_scale * routes.weight_Tk))
    way = _dropless if shape.is_dropless else _over_nodes if shape.nodes > 1 else _in_slots
    y_BSD = way(x_BSD, used, use, shape, hooks)
    with scope("balance"):
        return y_BSD, _imbalance(gates_BSE, bias_E, routes, shape)


def _imbalance(gates_BSE: jax.Array, bias_E: jax.Array | float, routes: Routes, shape: DecoderShape) -> jax.Array:
    """A loss of unequal loads; its gradient by the bias is how many assignments too many each expert has."""
    shares_BSE = gates_BSE / jnp.sum(gates_BSE, -1, keepdims=True) if shape.biases else gates_BSE
    loss = shape.balance / shape.batch * jnp.sum(jax.vmap(routers.balance_loss)(shares_BSE, routes.expert_Tk))
    if not shape.biases:
        return loss
    excess_BE = jax.vmap(partial(routers.excess, experts=shape.experts))(routes.expert_Tk)
    return loss + jnp.sum(bias_E * jnp.sum(excess_BE, 0))


def _chosen_by_experts(
    x_BSD: jax.Array, gates_BSE: jax.Array, use: Use, shape: DecoderShape, hooks: CollectiveHooks
) -> tuple[jax.Array, float]:
    """Full slots need no loss of balance."""
    with scope("router"):
        filled = jax.vmap(partial(routers.expert_choice, slots=shape.slots))(gates_BSE)
        filled = filled._replace(weight_EC=hooks.routed(shape.routed_scale * filled.weight_EC))
    with scope("dispatch"):
        x_BECD = hooks.dispatch(jax.vmap(experts.taken)(x_BSD, filled.token_EC))
    y_BECD = _slots_through(x_BECD, use, shape)
    with scope("combine"):
        return jax.vmap(partial(experts.weighed, tokens=x_BSD.shape[1]))(hooks.combine(y_BECD), filled), 0.0


def _in_slots(x_BSD: jax.Array, routes: Routes, use: Use, shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    with scope("dispatch"):
        x_BECD = hooks.dispatch(
            jax.vmap(partial(experts.dispatched, experts=shape.experts, slots=shape.slots))(x_BSD, routes)
        )
    y_BECD = _slots_through(x_BECD, use, shape)
    with scope("combine"):
        return jax.vmap(experts.combined)(hooks.combine(y_BECD), routes)


def _over_nodes(x_BSD: jax.Array, routes: Routes, use: Use, shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    """A token goes to each of its nodes once, and there to its experts; what they make of it is added up before it goes
    home."""
    with scope("across"):
        token_BNM, weight_BNMe = jax.vmap(
            partial(experts.by_nodes, experts=shape.experts, nodes=shape.nodes, slots=shape.node_slots)
        )(routes)
        x_BNMD, weight_BNMe = (
            hooks.node_dispatch(jax.vmap(experts.taken)(x_BSD, token_BNM)),
            hooks.node_dispatch(weight_BNMe),
        )
    B, N, M, D = x_BNMD.shape
    with scope("dispatch"):
        filled = jax.vmap(jax.vmap(partial(experts.filled, slots=shape.slots)))(weight_BNMe)
        x_BNeCD = jax.vmap(jax.vmap(experts.taken))(x_BNMD, filled.token_EC)
        x_BECD = hooks.dispatch(x_BNeCD.reshape(B, -1, shape.slots, D))
    y_BECD = _slots_through(x_BECD, use, shape)
    with scope("combine"):
        y_BNeCD = hooks.combine(y_BECD).reshape(B, N, -1, shape.slots, D)
        y_BNMD = jax.vmap(jax.vmap(partial(experts.weighed, tokens=M)))(y_BNeCD, filled)
    with scope("home"):
        return jax.vmap(partial(experts.added, tokens=x_BSD.shape[1]))(hooks.node_return(y_BNMD), token_BNM)


def _slots_through(x_BECD: jax.Array, use: Use, shape: DecoderShape) -> jax.Array:
    """What is in the slots, each through its expert."""
    hidden_BECF = hidden(lambda name: jnp.einsum("becd,edf->becf", x_BECD, use(name)), shape.activation)
    with scope("down"):
        return jnp.einsum("becf,efd->becd", hidden_BECF, use("down"))


def _dropless(x_BSD: jax.Array, routes: Routes, use: Use, shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    """Nothing is dropped, so that it does not matter with which others a token is sent: all of a device go at once."""
    matrices = {}
    for name in ("gate", "up", "down") if shape.is_gated else ("up", "down"):
        with scope(name):
            matrices[name] = use(name)

    def own(x_RD: jax.Array, count_E: jax.Array) -> jax.Array:
        hidden_RF = hidden(lambda name: jax.lax.ragged_dot(x_RD, matrices[name], count_E), shape.activation)
        return jax.lax.ragged_dot(hidden_RF, matrices["down"], count_E)

    with scope("visit"):
        expert_Tk, weight_Tk = (x.reshape(-1, shape.top_k) for x in (routes.expert_Tk, routes.weight_Tk))
        visit = partial(hooks.expert_apply, own=own, how=shape.dispatch)
        return dropless.mixture(x_BSD.reshape(-1, x_BSD.shape[-1]), expert_Tk, weight_Tk, shape.experts, visit).reshape(
            x_BSD.shape
        )
