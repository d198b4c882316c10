"""What XLA plans for the decoder's programs on a target: each is compiled once, and read as every program is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from lab.compile.inspection import inspect_program
from lab.core.ledger import Ledger
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target
from lab.programs.models import decoder
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.decoder import Parameters
from lab.programs.models.shape import DTYPES, DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy


@cache
def planned_step(strategy: Strategy, style: str, shape: DecoderShape, target: str, axes: Axes) -> Ledger:
    """A whole training step."""
    return _planned(lambda mesh: program.step(strategy, style, shape, mesh), target, axes)


@cache
def planned_layers(shape: DecoderShape, target: str, segment: int = 0) -> Ledger:
    """Gradients of the layers alone, of weights in the dtype of the products, on every device of the target for itself.

    Args:
      shape: its batch is one device's.
      segment: layers that are recomputed together from the input of the first; 0 for none beyond `shape.remat`.
    """
    return _planned(
        lambda mesh: gradients_of_layers(shape, segment, mesh),
        target,
        Axes.of({DATA: device_count(parse_target(target))}),
    )


def gradients_of_layers(shape: DecoderShape, segment: int, mesh: jax.sharding.Mesh) -> program.Program:
    run = (
        partial(in_segments, shape, segment)
        if segment
        else partial(decoder.layers, shape=shape, hooks=CollectiveHooks())
    )

    def total(state: Parameters, x_BSD: jax.Array) -> jax.Array:
        return jnp.sum(run(state, x_BSD).astype(jnp.float32))

    state = jax.eval_shape(lambda: program.in_use(decoder.initial(shape), shape))["layers"]
    x_BSD = jax.ShapeDtypeStruct((shape.batch, shape.length, shape.embed), DTYPES[shape.dtype])
    everywhere = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), (state, x_BSD))
    return jax.jit(jax.value_and_grad(total, argnums=(0, 1))), args


def in_segments(shape: DecoderShape, segment: int, state: Parameters, x_BSD: jax.Array) -> jax.Array:
    """All layers, recomputed `segment` at a time."""

    def several(x_BSD: jax.Array, state: Parameters) -> tuple[jax.Array, None]:
        return decoder.layers(state, x_BSD, shape, CollectiveHooks()), None

    parts = jax.tree.map(lambda w: w.reshape(-1, segment, *w.shape[1:]), state)
    return jax.lax.scan(jax.checkpoint(several, prevent_cse=False), x_BSD, parts)[0]


def _planned(build: Callable[[jax.sharding.Mesh], program.Program], target: str, axes: Axes) -> Ledger:
    place = parse_target(target)
    prepare([place])
    mesh = make_mesh(place, axes)
    function, args = build(mesh)
    return inspect_program(function.lower(*args).compile(), (), mesh, place, source=target)
