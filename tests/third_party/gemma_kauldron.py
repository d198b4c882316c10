"""Gemma 3 of Google DeepMind's `gemma`, trained by Kauldron's train step with its FSDP rule: every large parameter is
split in its largest dim over all devices."""

import jax
import numpy as np
import optax
from gemma import gm
from gemma.gm.nn import _config, _modules
from kauldron import kd

CONFIG = _config.TransformerConfig(
    num_embed=8192,
    embed_dim=1024,
    hidden_dim=4096,
    num_heads=4,
    head_dim=256,
    num_kv_heads=1,
    final_logit_softcap=None,
    use_post_attn_norm=True,
    use_post_ffw_norm=True,
    use_qk_norm=True,
    attention_types=(_modules.AttentionType.LOCAL_SLIDING, _modules.AttentionType.GLOBAL),
    query_pre_attn_norm=_config.QueryPreAttentionNormalisation.BY_ONE_OVER_SQRT_HEAD_DIM,
    attn_logits_soft_cap=None,
    sliding_window_size=256,
)

LOSS = kd.losses.SoftmaxCrossEntropyWithIntLabels(logits="preds.logits", labels="batch.target", mask="batch.mask")
step = kd.train.TrainStep(
    model=gm.nn.Gemma3_1B(config=CONFIG, tokens="batch.input"),
    optimizer=optax.adamw(1e-4),
    rng_streams=kd.train.RngStreams(seed=0),
    sharding=kd.sharding.ShardingStrategy(params=kd.sharding.FSDPSharding()),
    init_transform=kd.ckpts.NoopTransform(),
    aux=kd.train.Auxiliaries(losses={"next": LOSS}, metrics={}, summaries={}),
)
tokens = np.ones((16, 512), np.int32)
batch = kd.sharding.device_put(
    {"input": tokens, "target": tokens[..., None], "mask": tokens[..., None]}, kd.sharding.FIRST_DIM
)
state = step.init(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch))
step.step(state, batch, return_losses=True)
