"""Tunix's Llama 3, trained by its own trainer: axes fsdp and tp, as its model's sharding rules name them."""

import flax.nnx as nnx
import jax
import numpy as np
import optax
from tunix.models.llama3.model import Llama3, ModelConfig, RematConfig
from tunix.sft import utils
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput

config = ModelConfig(
    num_layers=2,
    vocab_size=2048,
    embed_dim=512,
    hidden_dim=2048,
    num_heads=8,
    head_dim=64,
    num_kv_heads=4,
    rope_theta=500_000,
    norm_eps=1e-5,
    remat_config=RematConfig.BLOCK,
)


def model_input(batch):
    positions = utils.build_positions_from_mask(batch.input_mask)
    mask = utils.make_causal_attn_mask(batch.input_mask)
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": positions,
        "attention_mask": mask,
    }


@nnx.jit
def sharded_model():
    model = Llama3(config, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.update(model, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))
    return model


batch = TrainingInput(np.ones((16, 512), np.int32), np.ones((16, 512), bool))
with jax.make_mesh((len(jax.devices()) // 2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2):
    trainer = PeftTrainer(sharded_model(), optax.adamw(1e-4), TrainingConfig(eval_every_n_steps=10, max_steps=1))
    trainer.with_gen_model_input_fn(model_input).train([batch])
