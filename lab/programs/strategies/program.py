"""The training step of a decoder under a strategy: declared (the compiler inserts the collectives), typed (it does,
where the types of arrays say so) or explicit (they are written out).

A step takes the state, tokens_BS and targets_BS, and gives the new state with the mean loss and the norm of the
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lab.attention import dense
from lab.attention.mask import Mask
from lab.meshes.axes import Axes
from lab.meshes.devices import typed
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.programs.models import decoder
from lab.programs.models.collective_hooks import CollectiveHooks, Dims, Hook, unchanged
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DTYPES, DecoderShape
from lab.programs.strategies import loss_scale
from lab.programs.strategies.anchored import hooks_of_pairs
from lab.programs.strategies.exchanged import exchanged, exchanged_sizes, first_memory, memory_specs
from lab.programs.strategies.loss_scale import NEEDS_SCALE, over_scale, times_scale, where_finite, without
from lab.programs.strategies.narrow_moments import narrowed, widened
from lab.programs.strategies.strategy import RESIDUAL, TABLE, Pair, Strategy
from lab.programs.strategies.update import (
    clipped,
    frozen,
    is_weight,
    optimizer,
    optimizer_of_momenta,
    squares,
    updated,
)
from lab.programs.strategies.wire import Narrow

Found = tuple[jax.Array, Parameters]
"""The loss, and the gradients of all weights."""
Program = tuple[jax.stages.Wrapped, tuple[Any, ...]]
"""A jitted function, and its arguments as shapes with shardings."""


class TrainState(NamedTuple):
    """What a step begins with: float32 master weights, their moments, under ZeRO-1 and 2 the weights that products use,
    and what ranks keep of an exchange of gradients."""

    master: Parameters
    moments: Any
    weights: Parameters | None
    exchange: Any = None


class Metrics(NamedTuple):
    """Of the whole batch, float32."""

    loss: jax.Array
    gradient_norm: jax.Array


@dataclass(frozen=True)
class PlacedStrategy:
    """A strategy on a mesh: what the styles' programs are made from."""

    strategy: Strategy
    shape: DecoderShape
    mesh: Mesh

    @property
    def axes(self) -> Axes:
        return Axes.of(self.mesh.shape)

    @property
    def is_typed(self) -> bool:
        return AxisType.Explicit in self.mesh.axis_types

    @property
    def batch(self) -> PartitionSpec:
        return self.spec(self.strategy.inside, "batch", "length")

    def spec(self, layout: Layout, *dims: str) -> PartitionSpec:
        return layout.spec(*dims, order=self.axes.names)

    def specs(self, tree: Any, layout: Layout) -> Any:
        """The same tree with each weight's spec, and replication for what is no weight."""
        return each(tree, lambda w: self.spec(layout, *w.dims), lambda _: PartitionSpec())

    def shardings(self, specs: Any) -> Any:
        return jax.tree.map(partial(NamedSharding, self.mesh), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))

    @property
    def state(self) -> TrainState:
        """What a step begins with, as shapes."""
        state = initial_shapes(self.shape, self.strategy.state is not None, self.strategy.moments)
        memory = jax.eval_shape(lambda: first_memory(self.strategy, state.master, self.axes))
        return state._replace(exchange=memory)

    @property
    def state_specs(self) -> TrainState:
        layouts, state = (self.strategy.master, self.strategy.master, self.strategy.weights), self.state
        specs = TrainState(*map(self.specs, state[:3], layouts))
        memory = memory_specs(self.strategy, state.exchange, state.master, self.axes)
        return specs._replace(exchange=memory)


def each(tree: Any, weight: Callable[[Parameter], Any], other: Callable[[Any], Any] = lambda x: x) -> Any:
    """A tree of the same structure, with a new value for each weight and for each other leaf."""
    return jax.tree.map(lambda x: x.replace(weight(x)) if is_weight(x) else other(x), tree, is_leaf=is_weight)


def initial_state(strategy: Strategy, shape: DecoderShape, seed: int = 0) -> TrainState:
    return state_of(strategy, shape, decoder.initial(shape, seed))


def state_of(strategy: Strategy, shape: DecoderShape, master: Parameters) -> TrainState:
    """What a first step takes, with these weights of the model; `with_exchange` adds what an exchange needs."""
    return _state(shape, strategy.state is not None, strategy.moments, master)


def with_exchange(strategy: Strategy, axes: Axes, state: TrainState) -> TrainState:
    """The state with what ranks keep of the strategy's exchange before its first step, and second moments as an
    exchange of momenta needs them."""
    is_frozen = strategy.exchange is not None and strategy.exchange.of_momentum
    return state._replace(
        moments=frozen(state.moments) if is_frozen else state.moments,
        exchange=first_memory(strategy, state.master, axes),
    )


def _state(shape: DecoderShape, has_master: bool, narrow: Narrow | None, master: Parameters) -> TrainState:
    # Copied, since a step takes its whole state over, and in float32 a cast is no copy.
    weights = jax.tree.map(jnp.copy, in_use(master, shape)) if has_master else None
    moments = narrowed(optimizer().init(master), narrow)
    return TrainState(master, (*moments, loss_scale.initial()) if shape.dtype == NEEDS_SCALE else moments, weights)


@cache
def initial_shapes(shape: DecoderShape, has_master: bool, narrow: Narrow | None = None) -> TrainState:
    """What `initial_state` makes, as shapes; where weights and master weights differ, with both."""
    return jax.eval_shape(lambda: _state(shape, has_master, narrow, decoder.initial(shape, 0)))


def in_use(master: Parameters, shape: DecoderShape) -> Parameters:
    """Weights in the dtype of the products; a router's bias stays as it is."""
    return each(master, lambda w: w.get_value() if "bias" in w.dims else w.get_value().astype(DTYPES[shape.dtype]))


def spread_over(strategy: Strategy, style: str, shape: DecoderShape, mesh: Mesh) -> PlacedStrategy:
    """Raises UsageError where the strategy lacks the style, a dim does not split over its axes, or the mesh lacks an
    axis; or where tokens cannot be sent as the shape says."""
    if style not in strategy.styles:
        raise UsageError(
            f"no style {style!r} of this strategy; every part of it has {', '.join(strategy.styles) or 'none'}: use "
            "one of these"
        )
    placed = PlacedStrategy(strategy.in_formats, shape, typed(mesh) if style == "typed" else mesh)
    if strategy.exchange and strategy.moments:
        raise UsageError("an exchange of gradients with moments in 8 bits: it needs them in float32; drop one of them")
    if strategy.exchange and shape.dtype == NEEDS_SCALE:
        raise UsageError(
            f"dtype={shape.dtype} with an exchange of gradients: a step that overflows would spoil its memory; use bf16"
        )
    strategy.check(shape, placed.axes)
    exchanged_sizes(strategy, shape, placed.axes)  # Refuses an exchange of no gradient.
    _check_dispatch(shape, style, mesh)
    if style != "explicit":
        _check_partial_sums(placed, style)
    _check_order(placed, style)
    return placed


def _check_dispatch(shape: DecoderShape, style: str, mesh: Mesh) -> None:
    if shape.is_dropless and style != "explicit":
        found = (
            f"dispatch={shape.dispatch} in the {style} style: the partitioner cannot shard an array with a "
            "data-dependent number of rows"
        )
        raise UsageError(f"{found}; set dispatch=slots, or --style explicit")
    if shape.dispatch == "ragged" and mesh.devices.flat[0].platform == "cpu":
        raise UsageError(
            "dispatch=ragged on CPUs, which have no ragged all-to-all; compile for a GPU or TPU, or set dispatch=padded"
        )


def _check_partial_sums(placed: PlacedStrategy, style: str) -> None:
    """A partitioner has no layout for a sum that is not finished: it finishes each where it begins."""
    strategy, shape, names = placed.strategy, placed.shape, placed.axes.names
    split = [axis for dim in ("mlp", "length") for axis in strategy.inside.axes_of(dim, names)]
    if shape.experts and split:
        raise UsageError(
            f"experts={shape.experts} with a layer's work sharded over {', '.join(split)} in the {style} style: the "
            "partitioner would sum the experts' slots where tokens are enough; use --style explicit"
        )
    if strategy.splits_further(TABLE) and (rest := placed.axes.ordered(strategy.summed_apart(TABLE))):
        raise UsageError(
            f"ZeRO-1 or 2 with weights replicated over {', '.join(rest)} as well in the {style} style: the partitioner "
            "would sum gradients over all axes at once, and scatter nothing; use --style explicit"
        )


def _check_order(placed: PlacedStrategy, style: str) -> None:
    """A dim that is split over several axes has consecutive parts along the last: without it, all others' parts lie
    elsewhere, and permutes have to bring them."""
    batch, experts = (
        [axis for axis in placed.strategy.inside.axes_of(dim, placed.axes.names) if placed.axes[axis] > 1]
        for dim in ("batch", "experts")
    )
    if style != "explicit" and experts and experts != batch[-len(experts) :]:
        last = [axis for axis in batch if axis not in experts] + experts
        found = (
            f"mesh {placed.axes} with experts over {', '.join(experts)} in the {style} style: {batch[-1]} shards the "
            "batch further, so that tokens would be permuted before they are dispatched"
        )
        raise UsageError(
            f"{found}; put {', '.join(experts)} last, as in "
            f"{','.join(f'{axis}={placed.axes[axis]}' for axis in last)}, or --style explicit"
        )


def step(strategy: Strategy, style: str, shape: DecoderShape, mesh: Mesh) -> Program:
    """One training step, jitted, and its arguments as shapes with shardings. The state is donated.

    Args:
      style: "declared", "typed" or "explicit".
    Raises:
      UsageError: the strategy lacks the style, a dim does not split over its axes, or the mesh lacks an axis.
    """
    placed = spread_over(strategy, style, shape, mesh)
    one_step = explicit_step(placed, explicit_gradients(placed)) if style == "explicit" else declared_step(placed)
    specs = (placed.state_specs, PartitionSpec())
    return jax.jit(_within(placed, one_step), donate_argnums=0, out_shardings=placed.shardings(specs)), arguments(
        placed
    )


def gradients(strategy: Strategy, style: str, shape: DecoderShape, mesh: Mesh) -> Program:
    """The mean loss and the gradients of a step, jitted, with the arguments of `step`; float32 comparisons begin
    here."""
    placed = spread_over(strategy, style, shape, mesh)
    find = {"declared": declared_gradients, "typed": declared_gradients, "explicit": explicit_gradients}[style](placed)
    specs = (PartitionSpec(), placed.state_specs.master)
    if style == "explicit":
        find = jax.shard_map(
            find, mesh=placed.mesh, in_specs=(placed.state_specs, placed.batch, placed.batch), out_specs=specs
        )
    return jax.jit(_within(placed, find), out_shardings=placed.shardings(specs)), arguments(placed)


def _within(placed: PlacedStrategy, function: Callable[..., Any]) -> Callable[..., Any]:
    """Typed arrays are made and combined where the mesh of their types is the ambient one."""

    @wraps(function)
    def on_mesh(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(placed.mesh.abstract_mesh):
            return function(*args)

    return on_mesh if placed.is_typed else function


def arguments(placed: PlacedStrategy) -> tuple[Any, ...]:
    """State, tokens and targets, as shapes with shardings."""
    shardings = placed.shardings(placed.state_specs)
    state = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), placed.state, shardings
    )
    sizes = (placed.shape.batch, placed.shape.length)
    tokens_BS = jax.ShapeDtypeStruct(sizes, jnp.int32, sharding=NamedSharding(placed.mesh, placed.batch))
    return state, tokens_BS, tokens_BS


def mean_loss(
    state: Parameters,
    tokens_BS: jax.Array,
    targets_BS: jax.Array,
    shape: DecoderShape,
    hooks: CollectiveHooks = CollectiveHooks(),
) -> jax.Array:
    """Over all tokens of the whole batch."""
    return decoder.total_loss(state, tokens_BS, targets_BS, shape, hooks) / float(shape.batch * shape.length)


def summed(
    find: Callable[[jax.Array, jax.Array], Found], nothing: Found, tokens_mBS: jax.Array, targets_mBS: jax.Array
) -> Found:
    """Loss and gradients added up over micro-batches, in float32."""

    def add(found: Found, batch: tuple[jax.Array, jax.Array]) -> tuple[Found, None]:
        return jax.tree.map(jnp.add, found, find(*batch)), None

    return jax.lax.scan(add, nothing, (tokens_mBS, targets_mBS))[0]


def explicit_gradients(placed: PlacedStrategy) -> Callable[..., Found]:
    """(state, tokens_BS, targets_BS) of one device to the mean loss and this device's part of the gradients."""
    strategy, shape = placed.strategy, placed.shape
    total = sum_over(strategy.token_axes(placed.axes))
    in_backward = replace(
        strategy.hooks, total=total, weight=lambda w, dims: strategy.hooks.weight(as_own(strategy, w, dims), dims)
    )

    def find(state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> Found:
        if shape.accumulation == 1 and not strategy.sums_late:
            of_scaled = jax.value_and_grad(times_scale(mean_loss, state.moments))
            return over_scale(of_scaled(state.master, tokens_BS, targets_BS, shape, in_backward), state.moments)
        if strategy.exchange and state.weights is None:
            # So that gradients that are not exchanged are summed in the dtype of the products.
            state = state._replace(weights=in_use(state.master, shape))
        loss, gradients = _of_own_tokens(placed, state, tokens_BS, targets_BS)
        found = total(loss), each(gradients, lambda g: reduced(strategy, g.get_value(), g.dims))
        return over_scale(found, state.moments)

    return find


def sum_over(axes: tuple[str, ...]) -> Hook:
    return partial(jax.lax.psum, axis_name=axes) if axes else unchanged


def as_own(strategy: Strategy, w: jax.Array, dims: Dims) -> jax.Array:
    """A copy that is the rank's own from here: the transpose sums the ranks' gradients."""
    return varying(w, strategy.copies(dims))


def varying(w: jax.Array, over: frozenset[str]) -> jax.Array:
    return jax.lax.pcast(w, tuple(sorted(over)), to="varying") if over else w


def _of_own_tokens(placed: PlacedStrategy, state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> Found:
    """Loss and gradients of this rank's tokens: copies are its own before any loop, so that none is summed inside."""
    strategy, shape = placed.strategy, placed.shape
    own, variables = of_own_tokens(strategy, state)

    def loss_of(variables: Parameters, tokens_BS: jax.Array, targets_BS: jax.Array) -> jax.Array:
        weights = paired(strategy, own, variables) if strategy.is_anchored else variables
        return mean_loss(weights, tokens_BS, targets_BS, shape, hooks_of_pairs(strategy))

    find = partial(jax.value_and_grad(times_scale(loss_of, state.moments)), variables)
    if shape.accumulation == 1:
        return find(tokens_BS, targets_BS)
    # Varying as the tokens are, along axes of replicas too.
    nothing = (
        jnp.zeros_like(tokens_BS, jnp.float32, shape=()),
        jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), variables),
    )
    return summed(find, nothing, *split(shape, tokens_BS, targets_BS))


def of_own_tokens(strategy: Strategy, state: TrainState) -> tuple[Parameters, Parameters]:
    """The weights that this rank's tokens meet, as copies of its own, and those that gradients belong to: the same, or
    under ZeRO-2 the parts of the master weights."""
    used = state.master if state.weights is None else state.weights
    own = each(used, lambda w: as_own(strategy, w.get_value(), w.dims))
    if not strategy.is_anchored:
        return own, own

    def part(m: Parameter, w: Parameter) -> Parameter:
        if not strategy.splits_further(w.dims):
            return w
        return m.replace(varying(m.get_value(), strategy.summed_apart(m.dims)))

    return own, jax.tree.map(part, state.master, own, is_leaf=is_weight)


def paired(strategy: Strategy, own: Any, masters: Any) -> Any:
    """ZeRO-2's pairs, of what `of_own_tokens` gives or of parts of it."""
    return jax.tree.map(
        lambda w, m: w.replace(Pair(w.get_value(), m.get_value())) if strategy.splits_further(w.dims) else m,
        own,
        masters,
        is_leaf=is_weight,
    )


def split(shape: DecoderShape, *batches_BS: jax.Array) -> list[jax.Array]:
    """[m, B / m, S] each; a device's sequences stay with it."""
    m = shape.accumulation
    return [x_BS.reshape(x_BS.shape[0] // m, m, x_BS.shape[1]).swapaxes(0, 1) for x_BS in batches_BS]


def reduced(strategy: Strategy, g: jax.Array, dims: Dims) -> jax.Array:
    """A gradient of own tokens, to what this device keeps of the sum; the same where an exchange is to sum it."""
    part = strategy.hooks.scatter(g, dims) if strategy.splits_further(dims) and not strategy.is_anchored else g
    return sum_over(tuple(sorted(strategy.summed_apart(dims) - strategy.exchanged_over(dims))))(part)


def declared_gradients(placed: PlacedStrategy) -> Callable[..., Found]:
    """(state, tokens_BS, targets_BS) to the mean loss and all gradients, held to the layouts."""
    strategy, shape = placed.strategy, placed.shape
    hooks = constraints(placed) | types(placed) if placed.is_typed else constraints(placed)
    loss_of = partial(mean_loss, shape=shape, hooks=hooks)

    def find(state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> Found:
        weights = state.master if state.weights is None else state.weights
        found = partial(jax.value_and_grad(times_scale(loss_of, state.moments)), weights)
        if shape.accumulation == 1:
            loss, gradients = found(tokens_BS, targets_BS)
        else:
            nothing = jnp.zeros(()), jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), weights)
            loss, gradients = summed(found, nothing, *split(shape, tokens_BS, targets_BS))
        loss, gradients = over_scale((loss, gradients), state.moments)
        return loss, each(gradients, lambda g: _held(placed, g.get_value(), *_places(strategy, g.dims)))

    return find


def _places(strategy: Strategy, dims: Dims) -> list[tuple[Layout, Dims]]:
    """Where a gradient goes. An embedding's is summed first: scattered at once, tokens and cotangents would be gathered
    instead (X2)."""
    first = [(strategy.weights, dims)] if dims == ("vocab", "embed") else []
    return [*first, (strategy.master, dims)]


def constraints(placed: PlacedStrategy) -> CollectiveHooks:
    """The hooks of the declared style: every value held to its layout, a weight first to the one, then to the other."""
    strategy = placed.strategy

    def weight(w: jax.Array, dims: Dims) -> jax.Array:
        return _held(placed, w, (strategy.weights, dims), (strategy.inside, dims))

    batch, experts = (strategy.inside.axes_of(dim, placed.axes.names) for dim in ("batch", "experts"))
    of_tokens, of_experts = (
        PartitionSpec(batch),
        PartitionSpec(tuple(axis for axis in batch if axis not in experts), experts),
    )

    def hold(*layouts: Layout) -> Hook:
        return lambda x_BSD: _held(placed, x_BSD, *((layout, RESIDUAL) for layout in layouts))

    def attend(q_BSKGH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, mask: Mask) -> jax.Array:
        queries, keys = (
            ("batch", "length", "kv_heads", "queries", "head_dim"),
            ("batch", "keys", "kv_heads", "head_dim"),
        )
        q, k, v = (
            _held(placed, x, (strategy.meeting, dims))
            for x, dims in ((q_BSKGH, queries), (k_BTKH, keys), (v_BTKH, keys))
        )
        return _held(placed, dense.attend(q, k, v, mask), (strategy.meeting, queries))

    return CollectiveHooks(
        weight=weight,
        attend=attend,
        block_in=hold(strategy.inside),
        inside=lambda x, dims: _held(placed, x, (strategy.inside, dims)),
        block_out=hold(strategy.residual),
        residual=hold(strategy.residual),
        # In two steps: looked up straight into a split sequence, tokens and activations would be permuted over both
        # axes (X1).
        embed=hold(strategy.inside, strategy.residual),
        # In two steps as well: held to the experts at once, all tokens would be gathered.
        dispatch=lambda x_BECD: _held_to(placed, x_BECD, of_tokens, of_experts),
        combine=lambda x_BECD: _held_to(placed, x_BECD, of_experts, of_tokens),
    )


def types(placed: PlacedStrategy) -> CollectiveHooks:
    """What the typed style adds: where a split dim is summed over or looked up in, the result's type does not follow
    and is asked for."""
    inside, residual = (placed.spec(layout, *RESIDUAL) for layout in (placed.strategy.inside, placed.strategy.residual))
    return CollectiveHooks(
        lookup=lambda table_VD, row_BS: table_VD.at[row_BS].get(mode="clip", out_sharding=inside),
        contract=partial(jnp.einsum, out_sharding=residual),
    )


def _held(placed: PlacedStrategy, x: jax.Array, *places: tuple[Layout, Dims]) -> jax.Array:
    return _held_to(placed, x, *(placed.spec(layout, *dims) for layout, dims in places))


def _held_to(placed: PlacedStrategy, x: jax.Array, *specs: PartitionSpec) -> jax.Array:
    for spec in specs:
        sharding = NamedSharding(placed.mesh, spec)
        x = jax.sharding.reshard(x, sharding) if placed.is_typed else jax.lax.with_sharding_constraint(x, sharding)
    return x


def update(
    placed: PlacedStrategy,
    state: TrainState,
    gradients: Parameters,
    square: jax.Array,
    renew: Callable[[jax.Array, Dims], jax.Array],
) -> tuple[TrainState, jax.Array]:
    """The new state, and the norm of the gradients of which `square` is the square; of an exchange of momenta, of
    these."""
    norm = jnp.sqrt(square)
    with jax.named_scope("update"):
        exchange = placed.strategy.exchange
        rule = optimizer_of_momenta() if exchange and exchange.of_momentum else optimizer()
        narrow = placed.strategy.moments
        before = widened(without(state.moments), narrow)
        master, moments = updated(rule, clipped(gradients, norm), before, state.master)
        new = master, narrowed(moments, narrow)
        master, moments = where_finite(norm, new, (state.master, state.moments))
    if state.weights is None:
        return TrainState(master, moments, None), norm
    used, splits = in_use(master, placed.shape), placed.strategy.splits_further
    return TrainState(
        master,
        moments,
        each(used, lambda w: renew(w.get_value(), w.dims) if splits(w.dims) else w.get_value()),
    ), norm


def explicit_step(placed: PlacedStrategy, find: Callable[..., Found]) -> Callable[..., Any]:
    """The update after `find`, which gives the mean loss and this device's part of the gradients."""
    specs = (placed.state_specs, PartitionSpec())
    return jax.shard_map(
        step_on_device(placed, find),
        mesh=placed.mesh,
        in_specs=(placed.state_specs, placed.batch, placed.batch),
        out_specs=specs,
    )


def step_on_device(placed: PlacedStrategy, find: Callable[..., Found]) -> Callable[..., tuple[TrainState, Metrics]]:
    """The same of one device, inside a `jax.shard_map`."""

    def one_step(state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> tuple[TrainState, Metrics]:
        loss, own = find(state, tokens_BS, targets_BS)
        gradients, memory = exchanged(placed.strategy, own, state.moments, state.exchange, placed.axes)
        state, norm = update(placed, state, gradients, _square(placed, gradients), placed.strategy.hooks.gather_updated)
        return state._replace(exchange=memory), Metrics(loss, norm)

    return one_step


def declared_step(placed: PlacedStrategy) -> Callable[..., Any]:
    find, strategy = declared_gradients(placed), placed.strategy

    def renew(w: jax.Array, dims: Dims) -> jax.Array:
        return _held(placed, w, (strategy.master, dims), (strategy.weights, dims))

    def one_step(state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> tuple[TrainState, Metrics]:
        loss, gradients = find(state, tokens_BS, targets_BS)
        # By hand: left to the compiler, every gradient's squares would be summed apart (X5).
        square = jax.shard_map(
            partial(_square, placed), mesh=placed.mesh, in_specs=(placed.state_specs.master,), out_specs=PartitionSpec()
        )(gradients)
        state, norm = update(placed, state, gradients, square, renew)
        return state, Metrics(loss, norm)

    return one_step


def _square(placed: PlacedStrategy, gradients: Parameters) -> jax.Array:
    """The square of the gradients' norm, from this device's parts."""
    axes = {g.dims: _axes_of(placed, g.dims) for g in jax.tree.leaves(gradients, is_leaf=is_weight)}
    over = placed.axes.ordered(axis for split in axes.values() for axis in split)
    repeats = {dims: prod(placed.axes[axis] for axis in over if axis not in split) for dims, split in axes.items()}
    with jax.named_scope("clip"):
        square = squares(gradients, repeats)
        return jax.lax.psum(square, over) if over else square


def _axes_of(placed: PlacedStrategy, dims: Dims) -> set[str]:
    return {axis for dim in dims for axis in placed.strategy.master.axes_of(dim, placed.axes.names)}
