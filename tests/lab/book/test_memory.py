"""Chapter 19 and 20: bytes that XLA says a device holds of a state that is laid out by ZeRO stage."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.book.memory import least_devices, model_state_bytes, total_bytes

pytestmark = pytest.mark.compiles

RANKS, SHAPE = 8, (64, 48)
PARAMETERS = 64 * 48


def held_bytes(stage: int, optimizer, dtype=jnp.bfloat16) -> int:
    """Bytes of arguments of one device: weights, gradients, master weights and the optimizer's state, steps counted
    aside."""
    mesh = jax.make_mesh((RANKS,), ("fsdp",))

    def placed(first, dtype):
        spec = PartitionSpec("fsdp") if stage >= first else PartitionSpec()
        return jax.ShapeDtypeStruct(SHAPE, dtype, sharding=NamedSharding(mesh, spec))

    def step(weights, gradients, master, state):
        updates, state = optimizer.update(gradients.astype(jnp.float32), state, master)
        master = optax.apply_updates(master, updates)
        return weights + master.astype(dtype), master, state

    master = placed(1, jnp.float32)
    moments = [leaf for leaf in jax.tree.leaves(jax.eval_shape(optimizer.init, master)) if leaf.shape == SHAPE]
    state = jax.tree.map(
        lambda leaf: placed(1, leaf.dtype) if leaf.shape == SHAPE else leaf, jax.eval_shape(optimizer.init, master)
    )
    compiled = jax.jit(step).lower(placed(3, dtype), placed(2, jnp.bfloat16), master, state).compile()
    counters = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) - sum(
        m.size * m.dtype.itemsize for m in moments
    )
    return compiled.memory_analysis().argument_size_in_bytes - counters


@pytest.mark.parametrize("stage", range(4))
def test_adam_holds_16_bytes_a_parameter_split_from_its_stage_on(stage):
    assert held_bytes(stage, optax.adam(1e-3)) == model_state_bytes(PARAMETERS, RANKS, stage)


@pytest.mark.parametrize("stage", range(4))
def test_float32_weights_are_split_at_stage_3_and_16_bit_gradients_at_2(stage):
    assert held_bytes(stage, optax.adam(1e-3), jnp.float32) == model_state_bytes(
        PARAMETERS, RANKS, stage, weight_bytes=4
    )


@pytest.mark.parametrize("optimizer, moment_bytes", [(optax.sgd(0.1, momentum=0.9), 4), (optax.sgd(0.1), 0)])
def test_momentum_holds_12_and_plain_descent_8_bytes_a_parameter(optimizer, moment_bytes):
    assert (
        held_bytes(0, optimizer)
        == model_state_bytes(PARAMETERS, moment_bytes=moment_bytes)
        == PARAMETERS * (8 + moment_bytes)
    )


def test_a_7b_model_holds_112_then_38_5_then_26_25_then_14_gb_on_each_of_8():
    assert [float(model_state_bytes(7 * 10**9, 8, stage)) / 1e9 for stage in range(4)] == [112, 38.5, 26.25, 14]


def test_state_is_exact_where_it_does_not_divide():
    assert model_state_bytes(1, 3, 2) == 2 + Fraction(14, 3)


def test_stages_are_swept_in_one_call():
    assert model_state_bytes(7e9, 8, np.arange(4)).tolist() == [112e9, 38.5e9, 26.25e9, 14e9]


def test_70b_needs_14_devices_of_80_gb_and_fits_no_number_of_them_unsplit():
    assert least_devices(70e9, 16, 80e9) == 14 and model_state_bytes(70e9, 1000, stage=0) > 80e9


def test_7b_with_2048_tokens_holds_140_74_gb_which_are_131_07_gib():
    assert total_bytes(112e9, 14_495_514_624) / 2**30 == pytest.approx(131.07, rel=1e-4)


def test_stage_four_is_refused():
    with pytest.raises(ValueError, match="stage=4"):
        model_state_bytes(1, 8, 4)
