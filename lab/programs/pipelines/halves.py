"""A backward in two halves: the one to the input keeps what each product with a layer's matrix met, the one to the
weights multiplies it (Ch. 16).

Weights that are no matrices of layers - norms, the table, the head - are not put off, nor those of experts and their
routers. Source: Qi et al. 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from lab.core.known import known
from lab.meshes.axes import PIPE, Axes
from lab.programs.models.collective_hooks import CollectiveHooks, Dims
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DTYPES, DecoderShape
from lab.programs.strategies.strategy import Strategy

ATTENTION = {"query": 1, "key": 1, "value": 1, "out": 3}
MLP = {"gate": 1, "up": 1, "down": 1}
"""The matrices of a layer, each with the number of its first dims that its product sums over."""
SCOPES = dict.fromkeys(ATTENTION, "attention") | dict.fromkeys(MLP, "mlp")
INPUT_OF = {"key": "query", "value": "query", "up": "gate"}
"""Products whose input is that of another one."""


T = TypeVar("T")


def matrices(shape: DecoderShape) -> dict[str, int]:
    """Those whose gradients are put off, each with the number of its first dims that its product sums over."""
    mlp = {name: summed for name, summed in MLP.items() if shape.is_gated or name != "gate"}
    return ATTENTION if shape.experts else ATTENTION | mlp


def input_of(name: str, shape: DecoderShape) -> str:
    """The product that keeps this one's input: the first of those with the same."""
    if shape.is_latent and name in ("key", "value"):
        return "key"
    return name if name == "up" and not shape.is_gated else INPUT_OF.get(name, name)


class Kept(NamedTuple, Generic[T]):
    """Of one product: its input, None where another's is the same, and the gradient of its output; both [B, S, ...], as
    arrays or as their local sizes."""

    input: T | None
    gradient: T


class Tapped(NamedTuple):
    """A matrix, and zeros whose gradients are what is to be kept of its product."""

    weight: jax.Array
    taps: Kept[jax.Array]


Taps = Mapping[str, Kept[jax.Array]]
"""By matrix of a layer."""


def product(equation: str, x: jax.Array, w: Any) -> jax.Array:
    return _product(equation, x, w) if isinstance(w, Tapped) else jnp.einsum(equation, x, w)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(equation: str, x: jax.Array, tapped: Tapped) -> jax.Array:
    return jnp.einsum(equation, x, tapped.weight)


def _forward(equation: str, x: jax.Array, tapped: Tapped) -> tuple[jax.Array, tuple[jax.Array, Tapped]]:
    return _product(equation, x, tapped), (x, tapped)


def _backward(equation: str, met: tuple[jax.Array, Tapped], dy: jax.Array) -> tuple[jax.Array, Tapped]:
    x, (weight, taps) = met
    _, pull = jax.vjp(lambda x: jnp.einsum(equation, x, weight), x)
    return *pull(dy), Tapped(jnp.zeros_like(weight), Kept(None if taps.input is None else x, dy))


_product.defvjp(_forward, _backward)


def tapped_hooks(hooks: CollectiveHooks) -> CollectiveHooks:
    """The same program, of `tapped` weights."""

    def weight(w: Any, dims: Dims) -> Any:
        return w._replace(weight=hooks.weight(w.weight, dims)) if isinstance(w, Tapped) else hooks.weight(w, dims)

    return replace(hooks, weight=weight, product=product, contract=product)


def tapped(layers: Mapping[str, Parameter], taps: Taps) -> Parameters:
    return nnx.State(
        {name: w.replace(Tapped(w.get_value(), taps[name])) if name in taps else w for name, w in layers.items()}
    )


def of_taps(gradients: Mapping[str, Parameter]) -> Taps:
    """What was kept, of the gradients of `tapped` layers."""
    return {name: value.taps for name, g in gradients.items() if isinstance(value := g.get_value(), Tapped)}


def not_put_off(gradients: Parameters) -> Parameters:
    return nnx.State({name: g for name, g in gradients.items() if not isinstance(g.get_value(), Tapped)})


def put_off(layers: Mapping[str, Parameter], kept: Taps, shape: DecoderShape, hooks: CollectiveHooks) -> Parameters:
    """Gradients of the matrices of layers, stacked along the first dim as they are: one product each."""

    def layer(_: None, met: tuple[dict[str, Parameter], Taps]) -> tuple[None, dict[str, Parameter]]:
        weights, kept = met
        return None, {name: _gradient(name, w, kept, shape, hooks) for name, w in weights.items()}

    with jax.named_scope("layers"):
        return nnx.State(jax.lax.scan(layer, None, ({name: layers[name] for name in kept}, kept))[1])


def _gradient(name: str, weight: Parameter, kept: Taps, shape: DecoderShape, hooks: CollectiveHooks) -> Parameter:
    """Sums over tokens, and goes back the way on which a stored weight came into use."""
    x, dy = known(kept[input_of(name, shape)].input), kept[name].gradient
    dims = weight.dims[1:]
    with jax.named_scope(SCOPES[name]), jax.named_scope(name):
        gradient = jnp.tensordot(x, dy, axes=((0, 1), (0, 1)))
        back = jax.linear_transpose(lambda w: hooks.weight(w.astype(DTYPES[shape.dtype]), dims), weight.get_value())
        return weight.replace(*back(gradient))


def sizes(
    weights: Mapping[str, Parameter], strategy: Strategy, shape: DecoderShape, axes: Axes
) -> Iterator[tuple[str, Kept[tuple[int, ...]]]]:
    """By matrix, the local sizes of what is kept in one layer of one micro-batch."""
    whole = {"batch": shape.micro_batch}

    def local(dims: Dims) -> tuple[int, ...]:
        dims = ("batch", "length", *dims)
        return tuple(strategy.inside.local_shape(dims, [whole.get(dim) or getattr(shape, dim) for dim in dims], axes))

    for name, summed in matrices(shape).items():
        dims = tuple(dim for dim in weights[name].dims if dim != "layers")
        yield name, Kept(None if input_of(name, shape) != name else local(dims[:summed]), local(dims[summed:]))


def nothing(weights: Mapping[str, Parameter], layers: int, strategy: Strategy, shape: DecoderShape, axes: Axes) -> Taps:
    """Zeros in the shapes and types of what is kept in the layers of a chunk: [layers, B, S, ...] each."""
    over = axes.ordered({PIPE, *(axis for _, axis in strategy.inside.rules if axis in axes.names)})

    def zeros(size: tuple[int, ...]) -> jax.Array:
        return jax.lax.pcast(jnp.zeros((layers, *size), DTYPES[shape.dtype]), over, to="varying")

    return {
        name: Kept(None if kept.input is None else zeros(kept.input), zeros(kept.gradient))
        for name, kept in sizes(weights, strategy, shape, axes)
    }
