"""A language model of flax.linen under scalax's rules: parameters by their paths, activations by the names of their
annotations."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P
from scalax.sharding import MeshShardingHelper, TreePathShardingRule, with_sharding_annotation

EMBED, MLP, VOCAB, HEADS, LAYERS = 1024, 4096, 8192, 8, 2


class Block(nn.Module):
    @nn.compact
    def __call__(self, x_BSD):
        attend = nn.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16, use_bias=False, name="attention")
        x_BSD += attend(nn.RMSNorm()(x_BSD), mask=nn.make_causal_mask(x_BSD[..., 0]))
        hidden_BSF = nn.silu(nn.Dense(MLP, dtype=jnp.bfloat16, use_bias=False, name="up")(nn.RMSNorm()(x_BSD)))
        hidden_BSF = with_sharding_annotation(hidden_BSF, "hidden")
        x_BSD += nn.Dense(EMBED, dtype=jnp.bfloat16, use_bias=False, name="down")(hidden_BSF)
        return with_sharding_annotation(x_BSD, "residual")


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens_BS):
        x_BSD = with_sharding_annotation(nn.Embed(VOCAB, EMBED, dtype=jnp.bfloat16)(tokens_BS), "residual")
        for _ in range(LAYERS):
            x_BSD = nn.remat(Block)()(x_BSD)
        return nn.Dense(VOCAB, dtype=jnp.bfloat16, use_bias=False, name="head")(nn.RMSNorm()(x_BSD))


mesh = MeshShardingHelper([-1, 2], ["fsdp", "tensor"])
parameters = TreePathShardingRule(
    ("embedding", P("tensor", "fsdp")),
    ("attention/(query|key|value)/kernel", P("fsdp", "tensor")),
    ("attention/out/kernel", P("tensor", None, "fsdp")),
    ("(up|head)/kernel", P("fsdp", "tensor")),
    ("down/kernel", P("tensor", "fsdp")),
    strict=False,
)
annotations = {"hidden": P("fsdp", None, "tensor"), "residual": P("fsdp")}
model, optimizer = Model(), optax.adamw(1e-4)
tokens_BS = np.ones((16, 512), np.int32)


def initial():
    return TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), tokens_BS), tx=optimizer)


def step(state, tokens_BS):
    def loss(parameters):
        logits_BSV = state.apply_fn(parameters, tokens_BS[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits_BSV, tokens_BS[:, 1:]).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), value


state = mesh.sjit(initial, out_shardings=parameters, annotation_shardings=annotations)()
mesh.sjit(
    step,
    in_shardings=(parameters, P("fsdp")),
    out_shardings=(parameters, P()),
    donate_argnums=0,
    annotation_shardings=annotations,
)(state, tokens_BS)
