"""MaxText's pre-training step of a small Llama 3, by its own configuration and logical rules, built as its own
`train_compile` does it: fsdp over half of the devices, tensor over two."""

from importlib.resources import files

import jax
from flax.core.spmd import logical_axis_rules
from jax.sharding import AxisType, Mesh
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, sharding

SMALL = {
    "base_emb_dim": 1024,
    "base_mlp_dim": 4096,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 4,
    "base_num_decoder_layers": 4,
    "head_dim": 128,
    "vocab_size": 8192,
    "max_target_length": 1024,
    "per_device_batch_size": 2,
}
RUN = {
    "run_name": "small",
    "enable_checkpointing": False,
    "dataset_type": "synthetic",
    "attention": "dot_product",
    "decoder_block": "llama2",
    "ici_fsdp_parallelism": -1,
    "ici_tensor_parallelism": 2,
    "skip_jax_distributed_system": True,
}


def build(_):
    config = pyconfig.initialize(["", str(files("maxtext") / "configs/base.yml")], **RUN, **SMALL)
    devices = maxtext_utils.create_device_mesh(config)
    mesh = Mesh(devices, config.mesh_axes, axis_types=(AxisType.Auto,) * len(config.mesh_axes))
    args, kwargs, state, _, model = train_compile.get_shaped_inputs(mesh, config)
    parameters, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    step, in_shardings, out_shardings, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, sharding.get_input_data_sharding(config, mesh), state, model, config, parameters
    )
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        jitted = jax.jit(
            step, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static, donate_argnums=donated
        )
        return jitted.lower(*args, **kwargs)
