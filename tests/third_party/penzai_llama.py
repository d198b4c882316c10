"""Penzai's Llama, trained by its own trainer; its named axes are its sharding rules: neurons, groups of heads and vocabulary over
`model`, the batch over `data`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from penzai import pz
from penzai.models.transformer.variants.llamalike_common import (
    AttentionTypeGlobalCausal,
    LlamalikeTransformerConfig,
    build_llamalike_transformer,
)
from penzai.toolshed import sharding_util
from penzai.toolshed.basic_training import StatefulTrainer

CONFIG = LlamalikeTransformerConfig(
    num_kv_heads=4,
    query_head_multiplier=2,
    embedding_dim=1024,
    projection_dim=128,
    mlp_hidden_dim=4096,
    num_decoder_blocks=2,
    vocab_size=8192,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
    rope_wavelength=10_000,
    rms_norm_eps=1e-6,
    attention_type=AttentionTypeGlobalCausal(),
    parameter_dtype=jnp.bfloat16,
    activation_dtype=jnp.bfloat16,
)
AXES = {"neurons": "model", "head_groups": "model", "vocabulary": "model", "batch": "data"}


def next_token_loss(model, state, rng, tokens):
    logits = model(tokens)
    log_p = pz.nx.nmap(jax.nn.log_softmax)(logits.untag("vocabulary"))
    picked = pz.nx.nmap(lambda log_p, token: log_p[token])(log_p, tokens)
    return -pz.nx.nmap(jnp.mean)(picked.untag("batch", "seq")).unwrap(), state, {}


mesh = jax.make_mesh((len(jax.devices()) // 4, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
model = sharding_util.sharded_init(
    build_llamalike_transformer, CONFIG, init_base_rng=jax.random.key(0), mesh=mesh, axis_name_to_mesh_name=AXES
)
tokens = sharding_util.name_to_name_device_put(pz.nx.wrap(np.ones((16, 512), np.int32)).tag("batch", "seq"), mesh, AXES)
trainer = StatefulTrainer.build(jax.random.key(1), model, optax.adamw(1e-4), next_token_loss, donate_states=True)
trainer.step(tokens=tokens)
