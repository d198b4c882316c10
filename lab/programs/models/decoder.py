"""A decoder-only transformer as people train it: RMSNorm, rotary positions, grouped-query attention, SwiGLU or an MLP
without a gate, a head over the vocabulary.

Dims: L layers, B batch (sequences), S length, T length of keys, D embed, K key-value heads, G queries a key-value head,
H head dim, F mlp, V vocabulary.
One device's sizes where the program is explicit. Source: Touvron et al. 2023, Ainslie et al. 2023 (GQA),
Shazeer 2020 (SwiGLU), Su et al. 2021 (rotary positions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from lab.programs.models.activations import hidden
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.mixture import mixture
from lab.programs.models.routers import CHOICE
from lab.programs.models.shape import DTYPES, OFFLOAD, DecoderShape

NORMS = ("norm", "head_norm", "query_latent_norm", "kv_latent_norm")
"""Dims of weights that scale what has been normalised."""
LEAVES = ("attention_leaves", "mlp_leaves")
INPUT = "layer_input"
ROTARY_BASE = 500_000.0
scope = jax.named_scope
Parameter = nnx.Variable[Any]
"""One weight, with its `dims`: an array, or what a strategy puts in its place; or its gradient."""
Parameters = nnx.State[str, Any]
"""Of a decoder, by name, those of its layers under the names of their stacks; or of one stack alone; or their
gradients."""


class Layers(nnx.Module):
    """The weights of layers that are alike, stacked along the first dim."""

    def __init__(self, shape: DecoderShape, rngs: nnx.Rngs) -> None:
        weight = partial(_weight, shape, rngs, "layers")
        self.attention_norm = weight("norm")
        queries, keys, width = ("embed", "embed", "head_dim")
        if shape.is_latent:
            queries, keys, width = ("query_rank", "kv_rank", "score_dim")
            self.query_latent = weight("embed", "query_latent")
            self.query_latent_norm = weight("query_latent_norm")
            self.kv_latent = weight("embed", "kv_latent")
            self.kv_latent_norm = weight("kv_latent_norm")
            self.rotary_key = weight("embed", "rope_dim")
        self.query = weight(queries, "kv_heads", "queries", width)
        self.key = weight(keys, "kv_heads", "head_dim")
        self.value = weight(keys, "kv_heads", "head_dim")
        if shape.normed_heads:
            self.query_norm = weight("head_norm")
            self.key_norm = weight("head_norm")
        self.out = weight("kv_heads", "queries", "head_dim", "embed")
        self.mlp_norm = weight("norm")
        *each, embed = ("experts", "expert_embed") if shape.experts else ("embed",)
        if shape.is_gated:
            self.gate = weight(*each, embed, "mlp")
        self.up = weight(*each, embed, "mlp")
        self.down = weight(*each, "mlp", embed)
        if shape.experts:
            self.router = weight("embed", "choices")
        if shape.biases:
            self.bias = weight("bias")
        if shape.experts and shape.shared:
            if shape.is_gated:
                self.shared_gate = weight("embed", "shared_mlp")
            self.shared_up = weight("embed", "shared_mlp")
            self.shared_down = weight("shared_mlp", "embed")


class Join(nnx.Module):
    """The weights that make one stream of a token's and of the next token's embedding, and the norm of its end."""

    def __init__(self, shape: DecoderShape, rngs: nnx.Rngs) -> None:
        weight = partial(_weight, shape, rngs)
        self.stream_norm = weight("norm")
        self.token_norm = weight("norm")
        self.projection = weight("joined", "embed")
        self.norm = weight("norm")


class Decoder(nnx.Module):
    """All weights, in float32; a tied decoder has no `head`."""

    def __init__(self, shape: DecoderShape, rngs: nnx.Rngs) -> None:
        self.embedding = _weight(shape, rngs, "vocab", "embed")
        for name, stack in shape.stacks.items():
            setattr(self, name, Layers(stack, rngs))
        if shape.mtp:
            self.join = Join(shape, rngs)
        self.norm = _weight(shape, rngs, "norm")
        if not shape.tied:
            self.head = _weight(shape, rngs, "embed", "vocab")


def _weight(shape: DecoderShape, rngs: nnx.Rngs, *dims: str) -> Parameter:
    """Ones for a norm, zeros for a bias; else normal entries over the root of the inputs, so that a product keeps its
    scale."""
    sizes = tuple(getattr(shape, dim) for dim in dims)
    if dims[-1] in NORMS:
        return nnx.Param(jnp.ones(sizes), dims=dims)
    if dims[-1] == "bias":
        return nnx.Param(jnp.zeros(sizes), dims=dims)
    inputs = prod(size for dim, size in zip(dims, sizes, strict=True) if dim in _inputs(dims))
    return nnx.Param(jax.random.normal(rngs.params(), sizes) * inputs**-0.5, dims=dims)


def _inputs(dims: Dims) -> Dims:
    """The dims that a product with this weight sums over; a lookup sums over none, and its rows have the scale of
    `embed`."""
    if dims[-1] == "embed" and "kv_heads" in dims:
        return ("kv_heads", "queries", "head_dim")
    if dims[-2:-1] in (("mlp",), ("shared_mlp",)):
        return dims[-2:-1]
    return tuple(dim for dim in dims if dim in ("query_rank", "kv_rank", "joined", "expert_embed")) or ("embed",)


def weights(shape: DecoderShape) -> Parameters:
    """Shapes of all weights, each leaf a Param with its `dims`."""
    return nnx.state(nnx.eval_shape(lambda: Decoder(shape, nnx.Rngs(0))), nnx.Param)


def initial(shape: DecoderShape, seed: int = 0) -> Parameters:
    return nnx.state(Decoder(shape, nnx.Rngs(seed)), nnx.Param)


def total_loss(
    state: Parameters,
    tokens_BS: jax.Array,
    targets_BS: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks = CollectiveHooks(),
) -> jax.Array:
    """Cross-entropy summed over all tokens of all devices, float32; with `shape.mtp` that of the token after the next,
    too, weighted.

    Args:
      state: the weights, as stored.
      tokens_BS, targets_BS: int32 below `shape.vocab`.
    """
    table_VD = table(state, shape, hooks)
    head_VD = table_VD if shape.tied else None
    if not shape.mtp:
        x_BSD = _through_loops(state, embedded(table_VD, tokens_BS, hooks), shape, hooks)
        return head_loss(state, head_VD, x_BSD, targets_BS, shape, hooks)
    # A target is the next token. Both predictions share one lookup.
    x_BSD, next_BSD = _parted(embedded(table_VD, _paired(tokens_BS, targets_BS), hooks))
    x_BSD = _through_loops(state, x_BSD, shape, hooks)
    return loss_of_both(state, head_VD, x_BSD, next_BSD, targets_BS, shape, hooks)


def loss_of_both(
    state: Mapping[str, Any],
    table_VD: jax.Array | None,
    x_BSD: jax.Array,
    next_BSD: jax.Array,
    targets_BS: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """`head_loss`, with that of the token after the next, weighted: one head makes both predictions.

    Args:
      next_BSD: embeddings of the targets, which are the next tokens.
    """
    y_BSD = joined(state["join"], x_BSD, next_BSD, shape, hooks)
    y_BSD = layers(state["mtp"], y_BSD, shape.stacks["mtp"], hooks, name="mtp")
    x_BSD = _ended(state, x_BSD, shape, hooks)
    with scope("join"):
        y_BSD = _ended(state["join"], y_BSD, shape, hooks)
    with scope("loss"):
        later_BS = jnp.roll(targets_BS, -1, axis=1)
    losses_BS = losses(state, table_VD, _paired(x_BSD, y_BSD), _paired(targets_BS, later_BS), shape, hooks)
    with scope("loss"):
        # After the last token of a sequence nobody knows what follows.
        is_known_S = jnp.arange(targets_BS.shape[1]) < targets_BS.shape[1] - 1
        weight_S = _paired(jnp.ones((1, shape.length)), shape.mtp_weight * is_known_S[None])
        return hooks.total(jnp.sum(weight_S * losses_BS))


def _through_loops(state: Parameters, x_BSD: jax.Array, shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    for name, stack in shape.loops.items():
        x_BSD = layers(state[name], x_BSD, stack, hooks, name=name)
    return x_BSD


def _ended(state: Mapping[str, Parameter], x_BSD: jax.Array, shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    """What layers end with, as the head takes it."""
    with scope("norm"):
        return rms_norm(x_BSD, _use(shape, hooks, state["norm"]))


def _paired(a_BS: jax.Array, b_BS: jax.Array) -> jax.Array:
    """[B, 2 S, ...], token by token: wherever a sequence is split, both are on one side."""
    return jnp.stack([a_BS, b_BS], axis=2).reshape(a_BS.shape[0], -1, *a_BS.shape[2:])


def _parted(ab_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The inverse of `_paired`."""
    ab_BS2D = ab_BSD.reshape(ab_BSD.shape[0], -1, 2, ab_BSD.shape[2])
    return ab_BS2D[:, :, 0], ab_BS2D[:, :, 1]


def joined(
    state: Mapping[str, Parameter],
    x_BSD: jax.Array,
    next_BSD: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """One stream of that of the tokens and the embeddings of the next ones."""
    use = partial(_use, shape, hooks)
    with scope("join"):
        with scope("stream_norm"):
            x_BSD = rms_norm(x_BSD, use(state["stream_norm"]))
        with scope("token_norm"):
            next_BSD = rms_norm(next_BSD, use(state["token_norm"]))
        with scope("projection"):
            both_BSE = jnp.concatenate([x_BSD, next_BSD], -1)
            return hooks.residual(jnp.einsum("bse,ed->bsd", both_BSE, use(state["projection"])))


def table(state: Mapping[str, Parameter], shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    """The embedding's table as products use it: [V, D]."""
    with scope("embedding"):
        return _use(shape, hooks, state["embedding"])


def embedded(table_VD: jax.Array, tokens_BS: jax.Array, hooks: CollectiveHooks) -> jax.Array:
    """What the layers begin with: [B, S, D]."""
    with scope("embedding"):
        return hooks.embed(lookup(table_VD, tokens_BS, hooks))


def head_loss(
    state: Mapping[str, Parameter],
    table_VD: jax.Array | None,
    x_BSD: jax.Array,
    targets_BS: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """Cross-entropy of what the layers end with, summed over all tokens of all devices, float32; `table_VD` where the
    head is tied to it, else None."""
    losses_BS = losses(state, table_VD, _ended(state, x_BSD, shape, hooks), targets_BS, shape, hooks)
    with scope("loss"):
        return hooks.total(jnp.sum(losses_BS))


def losses(
    state: Mapping[str, Parameter],
    table_VD: jax.Array | None,
    x_BSD: jax.Array,
    targets_BS: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """Cross-entropy of each token of a normalised stream, [B, S] float32."""
    use = partial(_use, shape, hooks)
    with scope("head"):
        x_BSD = hooks.block_in(x_BSD)
        logits_BSV = (
            jnp.einsum("bsd,dv->bsv", x_BSD, use(state["head"]))
            if table_VD is None
            else jnp.einsum("bsd,vd->bsv", x_BSD, table_VD)
        )
        logits_BSV = hooks.inside(logits_BSV, ("batch", "length", "vocab"))
    with scope("loss"):
        return cross_entropy(logits_BSV, targets_BS, hooks)


def _use(shape: DecoderShape, hooks: CollectiveHooks, weight: Parameter) -> jax.Array:
    """A weight in the dtype of the products, but for a bias, as the hook gives it; what a scan has taken one layer of
    has no dim "layers"."""
    dims = tuple(dim for dim in weight.dims if dim != "layers")
    dtype = jnp.float32 if dims == ("bias",) else DTYPES[shape.dtype]
    return hooks.weight(jax.tree.map(lambda w: w.astype(dtype), weight.get_value()), dims)


def lookup(table_VD: jax.Array, tokens_BS: jax.Array, hooks: CollectiveHooks) -> jax.Array:
    """Rows of a table of which this device may hold a part: zero for the tokens of other devices."""
    V = table_VD.shape[0]
    row_BS = tokens_BS - hooks.vocab_offset(V)
    x_BSD = hooks.lookup(table_VD, row_BS)
    is_here_BS = (row_BS >= 0) & (row_BS < V)
    return jnp.where(is_here_BS[..., None], x_BSD, 0)


Layer = Callable[[jax.Array, Any], tuple[jax.Array, None]]
"""(x_BSD, weights of one layer) to x_BSD, as `jax.lax.scan` takes it."""


def layers(
    state: Mapping[str, Parameter],
    x_BSD: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks,
    count: jax.Array | None = None,
    is_in_vain: bool = False,
    name: str = "layers",
) -> jax.Array:
    """All layers of a stack, one after the other; or the first `count` of them: the others are skipped, or done in
    vain."""
    rotation_SH = rotation(shape, hooks.positions(shape.length))

    def layer(x_BSD: jax.Array, state: Mapping[str, Parameter]) -> tuple[jax.Array, None]:
        x_BSD = hooks.residual(x_BSD + attention(x_BSD, state, rotation_SH, shape, hooks))
        return hooks.residual(x_BSD + mlp(x_BSD, state, shape, hooks)), None

    with scope(name):
        if count is None:
            return jax.lax.scan(_recomputed(layer, shape.remat), x_BSD, state)[0]
        numbers_L = jnp.arange(jax.tree.leaves(state)[0].shape[0])
        # In the branch, too: else it would hand out all that is kept of it to be gone through backwards.
        below = _below(count, _recomputed(layer, shape.remat), is_in_vain)
        return jax.lax.scan(_recomputed(below, shape.remat), x_BSD, (numbers_L, state))[0]


def _below(count: jax.Array, layer: Layer, is_in_vain: bool) -> Layer:
    """The layer where its number is below; else nothing."""

    def numbered(x_BSD: jax.Array, met: tuple[jax.Array, Mapping[str, Parameter]]) -> tuple[jax.Array, None]:
        number, state = met
        if is_in_vain:
            return jnp.where(number < count, layer(x_BSD, state)[0], x_BSD), None
        return jax.lax.cond(number < count, layer, lambda x_BSD, state: (x_BSD, None), x_BSD, state)

    return numbered


def _recomputed(layer: Layer, remat: str) -> Layer:
    if remat == OFFLOAD:
        return _offloaded(layer)
    named, dots = (
        jax.checkpoint_policies.save_only_these_names,
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    )
    policies = {
        "full": named(CHOICE),
        "dots": jax.checkpoint_policies.save_from_both_policies(dots, named(CHOICE)),
        "names": named(CHOICE, *LEAVES),
    }
    # A scan keeps the recomputation apart by itself, without the barriers that prevent_cse adds.
    return jax.checkpoint(layer, prevent_cse=False, policy=policies[remat]) if remat in policies else layer


def _offloaded(layer: Layer) -> Layer:
    """Computed again from its input, which waits on the host."""
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[CHOICE],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def named(x_BSD: jax.Array, met: Any) -> tuple[jax.Array, None]:
        return layer(checkpoint_name(x_BSD, INPUT), met)

    return jax.checkpoint(named, prevent_cse=False, policy=policy)


def attention(
    x_BSD: jax.Array,
    state: Mapping[str, Parameter],
    rotation_SH: tuple[jax.Array, jax.Array],
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """What one layer's attention adds to the residual stream."""
    use = partial(_use, shape, hooks)
    with scope("attention"):
        with scope("norm"):
            x_BSD = rms_norm(x_BSD, use(state["attention_norm"]))
        made = of_latents if shape.is_latent else of_stream
        q_BSKGH, k_BTKH, v_BTKH = made(x_BSD, state, rotation_SH, shape, hooks)
        with scope("core"):
            attend = partial(hooks.attend, mask=shape.mask)
            core = jax.checkpoint(attend, prevent_cse=False) if shape.remat == "selective" else attend
            y_BSKGH = hooks.inside(
                core(q_BSKGH, k_BTKH, v_BTKH), ("batch", "length", "kv_heads", "queries", "head_dim")
            )
        with scope("out"):
            y_BSD = hooks.contract("bskgh,kghd->bsd", y_BSKGH, use(state["out"]))
        with scope("leave"):
            return checkpoint_name(hooks.block_out(y_BSD), LEAVES[0])


def of_stream(
    x_BSD: jax.Array,
    state: Mapping[str, Parameter],
    rotation_SH: tuple[jax.Array, jax.Array],
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of the normalised stream."""
    use = partial(_use, shape, hooks)
    with scope("enter"):
        x_BSD = hooks.block_in(x_BSD)
    with scope("query"):
        q_BSKGH = hooks.product("bsd,dkgh->bskgh", x_BSD, use(state["query"]))
    with scope("query_norm"):
        q_BSKGH = rms_norm(q_BSKGH, use(state["query_norm"])) if shape.normed_heads else q_BSKGH
    with scope("query"):
        q_BSKGH = hooks.inside(rotated(q_BSKGH, *rotation_SH), ("batch", "length", "kv_heads", "queries", "head_dim"))
    with scope("key"):
        k_BTKH = hooks.product("bsd,dkh->bskh", x_BSD, use(state["key"]))
    with scope("key_norm"):
        k_BTKH = rms_norm(k_BTKH, use(state["key_norm"])) if shape.normed_heads else k_BTKH
    with scope("key"):
        k_BTKH = hooks.inside(rotated(k_BTKH, *rotation_SH), ("batch", "length", "kv_heads", "head_dim"))
    with scope("value"):
        v_BTKH = hooks.inside(
            hooks.product("bsd,dkh->bskh", x_BSD, use(state["value"])), ("batch", "length", "kv_heads", "head_dim")
        )
    return q_BSKGH, k_BTKH, v_BTKH


def of_latents(
    x_BSD: jax.Array,
    state: Mapping[str, Parameter],
    rotation_SH: tuple[jax.Array, jax.Array],
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values by way of latent vectors, which enter the block in place of the stream: what makes them
    has all heads' work in it, and so no rank a part of it (DeepSeek-V2, section 2.1).

    C entries of a latent, R dims of a head that positions rotate.
    """
    use, product = partial(_use, shape, hooks), partial(jnp.einsum, "bsd,dc->bsc")
    with scope("query_latent"):
        q_BSC = product(x_BSD, use(state["query_latent"]))
    with scope("query_latent_norm"):
        q_BSC = rms_norm(q_BSC, use(state["query_latent_norm"]))
    with scope("kv_latent"):
        kv_BSC = product(x_BSD, use(state["kv_latent"]))
    with scope("kv_latent_norm"):
        kv_BSC = rms_norm(kv_BSC, use(state["kv_latent_norm"]))
    with scope("rotary_key"):
        # Constrained to the tokens between blocks, as the norms are; else a partitioner gathers the stream.
        key_BSR = hooks.residual(product(x_BSD, use(state["rotary_key"])))
    with scope("enter"):
        q_BSC, kv_BTC, key_BTR = (hooks.block_in(x) for x in (q_BSC, kv_BSC, key_BSR))
    with scope("query"):
        q_BSKGH = hooks.product("bsc,ckgh->bskgh", q_BSC, use(state["query"]))
        q_BSKGH, q_BSKGR = jnp.split(q_BSKGH, (shape.head_dim,), -1)
        q_BSKGH = jnp.concatenate([q_BSKGH, rotated(q_BSKGR, *rotation_SH)], -1)
        q_BSKGH = hooks.inside(q_BSKGH, ("batch", "length", "kv_heads", "queries", "score_dim"))
    with scope("key"):
        k_BTKH = hooks.product("bsc,ckh->bskh", kv_BTC, use(state["key"]))
        # Added to zeros of all heads, whose type says which of them are here; rotated after that, so that the sum of
        # their gradients is the last that is done before these leave.
        k_BTKR = rotated(jnp.zeros_like(k_BTKH[..., :1]) + key_BTR[:, :, None], *rotation_SH)
        k_BTKH = hooks.inside(jnp.concatenate([k_BTKH, k_BTKR], -1), ("batch", "length", "kv_heads", "score_dim"))
    with scope("value"):
        v_BTKH = hooks.inside(
            hooks.product("bsc,ckh->bskh", kv_BTC, use(state["value"])), ("batch", "length", "kv_heads", "head_dim")
        )
    return q_BSKGH, k_BTKH, v_BTKH


def mlp(x_BSD: jax.Array, state: Mapping[str, Parameter], shape: DecoderShape, hooks: CollectiveHooks) -> jax.Array:
    """What one layer's MLP, or its experts, add to the residual stream."""
    use = partial(_use, shape, hooks)
    with scope("mlp"):
        with scope("norm"):
            x_BSD = rms_norm(x_BSD, use(state["mlp_norm"]))
        with scope("enter"):
            entered_BSD = hooks.block_in(x_BSD)
        y_BSD = (
            routed_and_shared(x_BSD, entered_BSD, state, shape, hooks)
            if shape.experts
            else matrices(entered_BSD, state, shape, hooks)
        )
        with scope("leave"):
            return checkpoint_name(hooks.block_out(y_BSD), LEAVES[1])


def matrices(
    x_BSD: jax.Array,
    state: Mapping[str, Parameter],
    shape: DecoderShape,
    hooks: CollectiveHooks,
    name: str = "",
    width: str = "mlp",
) -> jax.Array:
    """An MLP's products, of the matrices whose names begin with `name`, `width` wide."""

    def product(matrix: str) -> jax.Array:
        return hooks.product("bsd,df->bsf", x_BSD, _use(shape, hooks, state[name + matrix]))

    hidden_BSF = hidden(product, shape.activation)
    with scope("up"):
        hidden_BSF = hooks.inside(hidden_BSF, ("batch", "length", width))
    with scope("down"):
        return hooks.contract("bsf,fd->bsd", hidden_BSF, _use(shape, hooks, state[f"{name}down"]))


def routed_and_shared(
    x_BSD: jax.Array,
    entered_BSD: jax.Array,
    state: Mapping[str, Parameter],
    shape: DecoderShape,
    hooks: CollectiveHooks,
) -> jax.Array:
    """Experts that a router chooses, and those that every token visits; the router looks at the residual stream, so
    that ranks with parts of the same experts' work have one choice."""
    y_BSD = mixture(x_BSD, entered_BSD, lambda name: _use(shape, hooks, state[name]), shape, hooks)
    with scope("shared"):
        return y_BSD + matrices(entered_BSD, state, shape, hooks, "shared_", "shared_mlp") if shape.shared else y_BSD


def rms_norm(x_BSD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """Computed in float32, over the last dim of any number."""
    x = x_BSD.astype(jnp.float32)
    # x * x keeps x alone for the backward pass; jnp.square would keep 2 x beside it.
    return (x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)).astype(x_BSD.dtype) * scale_D


def rotation(shape: DecoderShape, positions_S: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of each position's angles, each [S, H / 2], float32; under latent attention of the dims that
    rotate alone."""
    dims = shape.rope_dim or shape.head_dim
    frequency_H = ROTARY_BASE ** (-jnp.arange(0, dims, 2) / dims)
    angle_SH = positions_S[:, None] * frequency_H
    return jnp.cos(angle_SH), jnp.sin(angle_SH)


def rotated(x_BSnH: jax.Array, cos_SH: jax.Array, sin_SH: jax.Array) -> jax.Array:
    """Each pair (i, i + H / 2) of a head turned by its position's angle; any number of head dims."""
    first, second = jnp.split(x_BSnH.astype(jnp.float32), 2, axis=-1)
    cos, sin = (x.reshape(x.shape[0], *(1,) * (x_BSnH.ndim - 3), x.shape[1]) for x in (cos_SH, sin_SH))
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BSnH.dtype)


def cross_entropy(logits_BSV: jax.Array, targets_BS: jax.Array, hooks: CollectiveHooks) -> jax.Array:
    """Of each token, float32 [B, S]; a device may hold a part of the vocabulary (Megatron-LM's parallel
    cross-entropy)."""
    logits_BSV = logits_BSV.astype(jnp.float32)
    V = logits_BSV.shape[-1]
    with scope("largest"):
        largest_BS = hooks.vocab_max(jnp.max(jax.lax.stop_gradient(logits_BSV), axis=-1))
    with scope("exponentials"):
        shifted_BSV = logits_BSV - largest_BS[..., None]
        exponentials_BS = hooks.vocab_sum(jnp.sum(jnp.exp(shifted_BSV), axis=-1))
    with scope("target"):
        # A comparison, not an index: an index into a split dim would gather the logits.
        is_target_BSV = targets_BS[..., None] == hooks.vocab_offset(V) + jnp.arange(V)
        target_BS = hooks.vocab_sum(jnp.sum(jnp.where(is_target_BSV, shifted_BSV, 0), axis=-1))
    return jnp.log(exponentials_BS) - target_BS
