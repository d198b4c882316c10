"""Where a strategy's exchange of gradients stands in a step: which gradients go together, what ranks keep of them, and
what theory says they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from lab.core.known import known
from lab.core.ledger import Transfer
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.exchange import Exchange, Sizes
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import UPDATE, local_dims, transfer, weights
from lab.programs.strategies.update import is_weight, momenta

SCOPE = "exchange"


class Group(NamedTuple):
    """Gradients that are exchanged together.

    Attributes:
      over: the axes of the ranks that they are summed over.
      varying: all axes along which devices have gradients, and so errors, of their own.
    """

    over: tuple[str, ...]
    varying: tuple[str, ...]


def group_of(strategy: Strategy, dims: Dims, axes: Axes) -> Group | None:
    """None where a gradient is summed in full."""
    over = strategy.exchanged_over(dims)
    parts = {axis for dim in dims for axis in strategy.master.axes_of(dim, axes.names)}
    return Group(axes.ordered(over), axes.ordered(over | parts)) if over else None


def exchanged_sizes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> dict[Group, list[Sizes]]:
    """Of each group, the sizes of its gradients on a device.

    Raises:
      UsageError: the strategy has an exchange, and no gradient for it.
    """
    found: dict[Group, list[Sizes]] = {}
    for weight in weights(shape):
        if group := group_of(strategy, weight.dims, axes):
            stack = (weight.per_pass,) if weight.stack in shape.stacks else ()
            found.setdefault(group, []).append((*stack, *local_dims(weight, strategy.master, shape, axes)))
    if strategy.exchange and not found:
        raise UsageError(
            "this strategy sums no whole gradient of a matrix, so there is none to exchange; compose with DATA_PARALLEL"
        )
    return found


def exchange_terms(strategy: Strategy, shape: DecoderShape, axes: Axes) -> tuple[Transfer, ...]:
    """The messages of a strategy's exchange, after the backward pass."""
    exchange = known(strategy.exchange)
    return tuple(
        transfer(message.kind, SCOPE, group.over, message.payload_bytes, UPDATE, message.dtype, 1, axes)
        for group, sizes in exchanged_sizes(strategy, shape, axes).items()
        for message in exchange.sends(sizes, _ranks(group.over, axes))
    )


def memory_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """That a device keeps of its exchange between steps."""
    groups = exchanged_sizes(strategy, shape, axes).items()
    kept = [
        jax.eval_shape(partial(known(strategy.exchange).memory, sizes, _ranks(group.over, axes)))
        for group, sizes in groups
    ]
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept))


def by_exchange(exchange: Exchange) -> Strategy:
    """What to compose with a strategy whose gradients are to be exchanged so."""
    return Strategy(terms=(exchange_terms,), exchange=exchange, styles=("explicit",))


def first_memory(strategy: Strategy, master: Parameters, axes: Axes) -> tuple[Any, ...] | None:
    """What a first step takes, of each group: arrays of one device, behind a dim of all devices that have their own.

    Args:
      master: weights, whole.
    """
    if strategy.exchange is None:
        return None
    memory = strategy.exchange.memory

    def on_all(group: Group, sizes: Sequence[Sizes]) -> Any:
        devices = _ranks(group.varying, axes)
        return jax.tree.map(
            lambda x: jnp.tile(x[None], (devices, *[1] * x.ndim)), memory(sizes, _ranks(group.over, axes))
        )

    def on_device(w: Parameter) -> Sizes:
        return strategy.master.local_shape(w.dims, w.shape, axes)

    return tuple(on_all(group, [on_device(w) for w in some]) for group, some in _groups(strategy, master, axes).items())


def memory_specs(strategy: Strategy, memory: tuple[Any, ...] | None, master: Parameters, axes: Axes) -> Any:
    """Of `first_memory`."""
    if memory is None:
        return None
    groups = _groups(strategy, master, axes)
    return tuple(
        jax.tree.map(lambda _, group=group: PartitionSpec(group.varying), tree)
        for group, tree in zip(groups, memory, strict=True)
    )


def exchanged(
    strategy: Strategy, gradients: Parameters, moments: Any, memory: tuple[Any, ...] | None, axes: Axes
) -> tuple[Parameters, tuple[Any, ...] | None]:
    """The gradients with those of the exchange summed, or in their place the new first moments, and what ranks keep;
    inside `jax.shard_map`."""
    if strategy.exchange is None:
        return gradients, memory
    if strategy.exchange.of_momentum:
        gradients = momenta(gradients, _shares(strategy, moments, axes))
    count = moments[0].count
    leaves, structure = jax.tree.flatten(gradients, is_leaf=is_weight)
    kept = []
    groups = _groups(strategy, gradients, axes)
    for (group, some), own in zip(groups.items(), known(memory), strict=True):
        with jax.named_scope(SCOPE):
            sums, own = strategy.exchange.run(
                [g.get_value().astype(jnp.float32) for g in some],
                jax.tree.map(lambda x: x[0], own),
                count,
                group.over,
            )
        kept.append(jax.tree.map(lambda x: x[None], own))
        new = {id(g): g.replace(total) for g, total in zip(some, sums, strict=True)}
        leaves = [new.get(id(g), g) for g in leaves]
    return jax.tree.unflatten(structure, leaves), tuple(kept)


def _shares(strategy: Strategy, moments: Any, axes: Axes) -> Any:
    """Moments of which each rank has its share, as of gradients, where they are exchanged."""
    adam, *rest = moments

    def share(m: Parameter) -> Parameter:
        group = group_of(strategy, m.dims, axes)
        return m.replace(m.get_value() / _ranks(group.over, axes)) if group else m

    return (adam._replace(mu=jax.tree.map(share, adam.mu, is_leaf=is_weight)), *rest)


def _groups(strategy: Strategy, tree: Parameters, axes: Axes) -> Mapping[Group, list[Parameter]]:
    found: dict[Group, list[Parameter]] = {}
    for w in jax.tree.leaves(tree, is_leaf=is_weight):
        if group := group_of(strategy, w.dims, axes):
            found.setdefault(group, []).append(w)
    return found


def _ranks(over: tuple[str, ...], axes: Axes) -> int:
    return prod(axes[axis] for axis in over)
