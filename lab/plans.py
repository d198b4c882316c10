"""What XLA plans for the decoder's programs on a target: each is compiled once, and read as every program is."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from lab.inspection import inspect_program
from lab.ledger import Ledger
from lab.models import decoder
from lab.models.seams import Seams
from lab.models.shape import DTYPES, DecoderShape
from lab.strategies import program
from lab.strategies.strategy import Strategy
from meshes.axes import DATA, Axes
from meshes.targets import make_mesh, parse_target, prepare


@cache
def planned_step(strategy: Strategy, style: str, shape: DecoderShape, target: str, axes: Axes) -> Ledger:
    """A whole training step."""
    return _planned(lambda mesh: program.step(strategy, style, shape, mesh), target, axes)


@cache
def planned_layers(shape: DecoderShape, target: str) -> Ledger:
    """Gradients of the layers alone, of weights in the dtype of the products, on every device of the target for itself.

    The shape's batch is one device's.
    """
    return _planned(lambda mesh: gradients_of_layers(shape, mesh), target, Axes.of({DATA: parse_target(target).devices}))


def gradients_of_layers(shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    def total(state: Any, x_BSD: jax.Array) -> jax.Array:
        return jnp.sum(decoder.layers(state, x_BSD, shape, Seams()).astype(jnp.float32))

    state = jax.eval_shape(lambda: program.in_use(decoder.initial(shape), shape))["layers"]
    x_BSD = jax.ShapeDtypeStruct((shape.batch, shape.length, shape.embed), DTYPES[shape.dtype])
    everywhere = NamedSharding(mesh, PartitionSpec())
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), (state, x_BSD))
    return jax.jit(jax.value_and_grad(total, argnums=(0, 1))), args


def _planned(build: Any, target: str, axes: Axes) -> Ledger:
    place = parse_target(target)
    prepare([place])
    mesh = make_mesh(place, axes)
    function, args = build(mesh)
    return inspect_program(function.lower(*args).compile(), (), mesh, place, source=target)
