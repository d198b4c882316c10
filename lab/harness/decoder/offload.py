"""State and activations in the host's memory: the decoder's programs with memory kinds, and what XLA then plans on
device and host."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.core.known import known
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target
from lab.programs.models import decoder
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.decoder import Parameters
from lab.programs.models.shape import DTYPES, DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy

HOST, DEVICE = "pinned_host", "device"


class Planned(NamedTuple):
    """Bytes of one device and of its share of the host."""

    device_arguments: int
    host_arguments: int
    device_temporaries: int
    host_temporaries: int
    device_peak: int


@cache
def offloaded_step(strategy: Strategy, shape: DecoderShape, target: str, axes: Axes, is_offloaded: bool) -> Planned:
    """A whole step whose master weights and moments are on the host between steps, and on the device for the update."""
    return _planned(partial(_step, strategy, shape, is_offloaded), target, axes)


@cache
def offloaded_layers(shape: DecoderShape, target: str, axes: Axes, is_offloaded: bool) -> Planned:
    """Gradients of the layers, each recomputed from its input, which waits on the host; the shape's batch is one
    device's."""
    return _planned(partial(_layers, shape, is_offloaded), target, axes)


def _planned(build: Callable[[Mesh], program.Program], target: str, axes: Axes) -> Planned:
    place = parse_target(target)
    prepare([place])
    function, args = build(make_mesh(place, axes))
    found = known(function.lower(*args).compile().memory_analysis())
    return Planned(
        device_arguments=found.argument_size_in_bytes,
        host_arguments=found.host_argument_size_in_bytes,
        device_temporaries=found.temp_size_in_bytes,
        host_temporaries=found.host_temp_size_in_bytes,
        device_peak=found.peak_memory_in_bytes,
    )


def _step(strategy: Strategy, shape: DecoderShape, is_offloaded: bool, mesh: Mesh) -> program.Program:
    placed = program.PlacedStrategy(strategy, shape, mesh)
    one_step, on_device = (
        program.explicit_step(placed, program.explicit_gradients(placed)),
        placed.shardings(placed.state_specs),
    )
    between = _on_host(on_device) if is_offloaded else on_device

    def step(
        state: program.TrainState, tokens_BS: jax.Array, targets_BS: jax.Array
    ) -> tuple[program.TrainState, program.Metrics]:
        new, metrics = one_step(jax.device_put(state, on_device), tokens_BS, targets_BS)
        return jax.device_put(new, between), metrics

    state, *batch = program.arguments(placed)
    state = jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, between)
    return jax.jit(step, donate_argnums=0, out_shardings=(between, None)), (state, *batch)


def _on_host(state: program.TrainState) -> program.TrainState:
    """Master and moments; weights in use stay, and so does what has no dims, such as the count of steps."""
    master, moments = (
        jax.tree.map(lambda s: s.with_memory_kind(HOST) if s.spec else s, part)
        for part in (state.master, state.moments)
    )
    return program.TrainState(master, moments, state.weights)


def _layers(shape: DecoderShape, is_offloaded: bool, mesh: Mesh) -> program.Program:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[] if is_offloaded else ["input"],
        names_which_can_be_offloaded=["input"] if is_offloaded else [],
        offload_src=DEVICE,
        offload_dst=HOST,
    )

    def one(x_BSD: jax.Array, state: Parameters) -> tuple[jax.Array, None]:
        alone = jax.tree.map(lambda w: w[None], state)
        return decoder.layers(alone, checkpoint_name(x_BSD, "input"), shape, CollectiveHooks()), None

    def total(state: Parameters, x_BSD: jax.Array) -> jax.Array:
        return jnp.sum(
            jax.lax.scan(jax.checkpoint(one, prevent_cse=False, policy=policy), x_BSD, state)[0].astype(jnp.float32)
        )

    everywhere = NamedSharding(mesh, PartitionSpec())
    state = jax.eval_shape(lambda: program.in_use(decoder.initial(shape), shape))["layers"]
    x_BSD = jax.ShapeDtypeStruct((shape.batch, shape.length, shape.embed), DTYPES[shape.dtype])
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), (state, x_BSD))
    return jax.jit(jax.value_and_grad(total, argnums=(0, 1))), args
