"""Local SGD and DiLoCo (Ch. 29): replicas take h steps of their own and then meet; the mean of what they changed is one
step of an outer optimizer.

Near the optimum the mean of several short descents is about the descent on the mean gradient, which is why a sum every
step can become one every h. A round is one program: h steps of any inner strategy in a scan, of which none sends
anything between replicas, and what fragments of the layers send in turn, one every h / F steps (Stich 2018; Douillard
et al. 2023, arXiv:2311.08105, and 2025, arXiv:2501.18512).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from math import prod
from operator import or_
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.core.known import known
from lab.core.ledger import Ledger, Transfer
from lab.meshes.axes import DATA, FSDP, REPLICA, TENSOR, Axes
from lab.meshes.errors import UsageError
from lab.programs.models import decoder
from lab.programs.models.collective_hooks import Dims
from lab.programs.models.decoder import Parameter, Parameters
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.program import (
    Metrics,
    PlacedStrategy,
    Program,
    TrainState,
    each,
    explicit_gradients,
    spread_over,
    state_of,
    step_on_device,
)
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.update import is_weight
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms import outer_mean
from lab.programs.transforms.codecs import Codec

INNER = {DATA: DATA_PARALLEL, FSDP: ZERO3, TENSOR: TENSOR_PARALLEL}
"""What runs along the axes inside a replica."""
OUTER, CLIPPING = "outer", "clip"
"""Scopes of what replicas send each other, and of the norm by which gradients are clipped."""
MIXED = 0.5
"""Share of its own weights that a replica keeps where the mean comes late (arXiv:2501.18512, section 2.3)."""


@dataclass(frozen=True)
class OuterStep:
    """Nesterov's momentum on the mean of what replicas have moved: u = m u + d, w -= r (m u + d); float32. Source:
    Douillard et al. 2023, section 3."""

    learning_rate: float = 0.7
    momentum: float = 0.9


@dataclass(frozen=True)
class Rounds:
    """How replicas learn.

    Attributes:
      outer: DiLoCo's second optimizer, after AdamW inside; None: local SGD, plain descent whose weights are averaged.
      learning_rate: of plain descent.
    """

    outer: OuterStep | None = None
    learning_rate: float = 0.1


LOCAL_SGD, DILOCO = Rounds(), Rounds(OuterStep())


@dataclass(frozen=True)
class RoundShape(DecoderShape):
    """Sizes of a model and of the batch of one inner step of all replicas, and what a round is.

    Attributes:
      every: inner steps of a round.
      fragments: of the layers, which meet in turn, one every `every // fragments` steps; all else, and of one fragment
        all, meets at the end of the round.
      outer: in which replicas send what they changed: "f32", or "int8" or "int4" with a scale for 256 numbers; norms
        always in float32.
      delay: inner steps between the one whose weights a fragment sends and the one that takes the mean.

    Raises:
      UsageError: as `DecoderShape`; fragments of unequal layers, more of them than steps, a delay as long as a
        fragment's steps, an unknown format.
    """

    every: int = 16
    fragments: int = 1
    outer: str = "f32"
    delay: int = 0

    CHOICES: ClassVar[tuple[str, ...]] = (*DecoderShape.CHOICES, "fragments", "outer", "delay")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every < 1:
            raise UsageError(f"every={self.every}: expected 1 step or more between meetings")
        if not 1 <= self.fragments <= self.every or self.layers % self.fragments:
            raise UsageError(
                f"fragments={self.fragments} of layers={self.layers} in every={self.every} steps: expected a divisor "
                "of the layers, and no more than the steps"
            )
        if self.fragments > 1 and len(self.stacks) > 1:
            raise UsageError(
                f"fragments={self.fragments} of a model with {len(self.stacks)} stacks of layers; set fragments=1"
            )
        if not 0 <= self.delay < self.steps_between:
            raise UsageError(
                f"delay={self.delay}: expected 0 or more, and less than every // fragments = {self.steps_between}"
            )
        outer_mean.check_format(self.outer)

    @property
    def steps_between(self) -> int:
        """Inner steps from one fragment's meeting to the next one's."""
        return self.every // self.fragments

    @property
    def steps_left(self) -> int:
        """Inner steps after the last fragment's meeting."""
        return self.every - self.fragments * self.steps_between


class RoundState(NamedTuple):
    """What a round begins with.

    Attributes:
      replicas: of each its own, along a first dim of all arrays.
      anchor: DiLoCo's weights after the last meeting, float32, alike for all replicas; None in local SGD.
      momentum: of the outer step, the same.
    """

    replicas: TrainState
    anchor: Parameters | None
    momentum: Parameters | None


class RoundMetrics(NamedTuple):
    """Of each replica and inner step, float32 [R, h]: the mean loss of its own batch."""

    loss_Rh: jax.Array


def inner(axes: Axes) -> Strategy:
    """What a replica does along its own axes.

    Raises:
      UsageError: there is no axis for replicas, or one along which nothing is known to run.
    """
    if REPLICA not in axes.names or not set(axes.names) <= {REPLICA, *INNER}:
        found = f"mesh {axes}: expected {REPLICA}, and inside it some of {', '.join(INNER)}"
        raise UsageError(f"{found}; name it as in {REPLICA}=2,{FSDP}=4")
    return reduce(or_, (INNER[name] for name in axes.names if name != REPLICA), Strategy(terms=()))


def of_one_replica(shape: RoundShape, axes: Axes) -> DecoderShape:
    """Its model and its part of the batch.

    Raises:
      UsageError: the batch does not split over the replicas.
    """
    if shape.batch % axes[REPLICA]:
        raise UsageError(f"batch={shape.batch} over {REPLICA}={axes[REPLICA]}: expected a multiple")
    sizes = {field.name: getattr(shape, field.name) for field in fields(DecoderShape)}
    return DecoderShape(**sizes | {"batch": shape.batch // axes[REPLICA]})


def messages(
    dims: Mapping[str, Dims], shape: RoundShape, strategy: Strategy
) -> Iterator[tuple[str, Codec | None, tuple[str, ...]]]:
    """What weights that meet at once are sent in: a scope, the integers, and which weights go into it.

    In float32 each alone. In fewer bits all matrices that the same axes split go as one array, and norms alone, in
    float32.
    """
    together: dict[str, list[str]] = {}
    for name, of in dims.items():
        if outer_mean.FORMATS[shape.outer] is None or len(set(of) - {"layers"}) == 1:
            yield f"{OUTER}/{name}", None, (name,)
        else:
            split = {axis for dim in of for axis in strategy.master.axes_of(dim)}
            together.setdefault("/".join((OUTER, "matrices", *sorted(split))), []).append(name)
    for scope, names in together.items():
        yield scope, outer_mean.FORMATS[shape.outer], tuple(names)


def is_in_fragments(dims: Dims, shape: RoundShape) -> bool:
    return shape.fragments > 1 and "layers" in dims


def initial(rounds: Rounds, shape: RoundShape, replicas: int, master: Parameters) -> RoundState:
    """All replicas with these weights of the model."""
    start = state_of(Strategy(terms=()), of_one_replica(shape, Axes.of({REPLICA: replicas})), master)
    if rounds.outer is None:
        start = start._replace(moments=())
    # Copied, since a round takes its whole state over.
    copies = jax.tree.map(lambda x: jnp.repeat(x[None], replicas, axis=0), start)
    if rounds.outer is None:
        return RoundState(copies, None, None)
    return RoundState(copies, jax.tree.map(jnp.copy, master), jax.tree.map(jnp.zeros_like, master))


def program(rounds: Rounds, shape: RoundShape, mesh: Mesh) -> Program:
    """A round, jitted, and its arguments as shapes with shardings: the state, which is donated, and the tokens and
    targets of h steps [h, B, S].

    Raises:
      UsageError: as `inner`, or a dim does not split over its axes.
    """
    axes = Axes.of(mesh.shape)
    placed = spread_over(inner(axes), "explicit", of_one_replica(shape, axes), mesh)
    model = jax.eval_shape(lambda: decoder.initial(placed.shape))
    state = jax.eval_shape(partial(initial, rounds, shape, axes[REPLICA]), model)
    specs = _specs(placed, state)
    out_specs = specs, PartitionSpec(REPLICA)
    tokens = PartitionSpec(None, *_within_replicas(placed.batch))
    one_round = jax.shard_map(
        _round(rounds, shape, placed), mesh=mesh, in_specs=(specs, tokens, tokens), out_specs=out_specs
    )
    sizes = (shape.every, shape.batch, shape.length)
    tokens_hBS = jax.ShapeDtypeStruct(sizes, jnp.int32, sharding=NamedSharding(mesh, tokens))
    arguments = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, placed.shardings(specs)
    )
    compiled = jax.jit(one_round, donate_argnums=0, out_shardings=placed.shardings(out_specs))
    return compiled, (arguments, tokens_hBS, tokens_hBS)


def _specs(placed: PlacedStrategy, state: RoundState) -> RoundState:
    layout = placed.strategy.master
    one = each(state.replicas, lambda w: placed.spec(layout, *w.dims), lambda _: PartitionSpec())
    each_own = jax.tree.map(
        lambda spec: PartitionSpec(REPLICA, *spec), one, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
    return RoundState(each_own, *(placed.specs(x, layout) for x in (state.anchor, state.momentum)))


def _within_replicas(batch: PartitionSpec) -> tuple[Any, ...]:
    """The batch of all replicas, of which each has its part of the first dim."""
    first, *rest = batch
    own = () if first is None else first if isinstance(first, tuple) else (first,)
    return ((REPLICA, *own), *rest)


def _round(rounds: Rounds, shape: RoundShape, placed: PlacedStrategy) -> Callable[..., Any]:
    """Of one device: (state, tokens_hBS, targets_hBS) to the new state and its metrics."""
    find = explicit_gradients(placed)
    step = step_on_device(placed, find) if rounds.outer else _descent(find, rounds.learning_rate)

    def steps(own: RoundState, *batches_sBS: jax.Array) -> tuple[RoundState, jax.Array]:
        def one(state: TrainState, batch: tuple[jax.Array, ...]) -> tuple[TrainState, jax.Array]:
            state, metrics = step(state, *batch)
            return state, metrics.loss

        replica, loss_s = jax.lax.scan(one, own.replicas, batches_sBS)
        return own._replace(replicas=replica), loss_s

    def until_next(own: RoundState, xs: tuple[jax.Array, ...]) -> tuple[RoundState, jax.Array]:
        number, *batches_sBS = xs
        early = shape.steps_between - shape.delay
        own, loss_s = steps(own, *(x_sBS[:early] for x_sBS in batches_sBS))
        fragment = _fragment(own, shape, number)
        means = _means(shape, placed.strategy, own, fragment)
        if shape.delay:
            own, late_s = steps(own, *(x_sBS[early:] for x_sBS in batches_sBS))
            loss_s = jnp.concatenate((loss_s, late_s))
        return _met(rounds, own, fragment, means, MIXED if shape.delay else 0.0), loss_s

    def one_round(state: RoundState, *batches_hBS: jax.Array) -> tuple[RoundState, RoundMetrics]:
        own = state._replace(replicas=jax.tree.map(lambda x: x[0], state.replicas))
        in_turn = shape.every - shape.steps_left
        batches_FsBS = [x[:in_turn].reshape(shape.fragments, -1, *x.shape[1:]) for x in batches_hBS]
        own, loss_Fs = jax.lax.scan(until_next, own, (jnp.arange(shape.fragments), *batches_FsBS))
        loss_h = loss_Fs.ravel()
        if shape.steps_left:
            own, last_s = steps(own, *(x[in_turn:] for x in batches_hBS))
            loss_h = jnp.concatenate((loss_h, last_s))
        if shape.fragments > 1:
            rest = Fragment({name: dims for name, dims in _dims(own).items() if not is_in_fragments(dims, shape)})
            own = _met(rounds, own, rest, _means(shape, placed.strategy, own, rest))
        replicas = jax.tree.map(lambda x: x[None], own.replicas)
        return own._replace(replicas=replicas), RoundMetrics(loss_h[None])

    return one_round


def _descent(find: Callable[..., Any], learning_rate: float) -> Callable[..., tuple[TrainState, Metrics]]:
    """A step of plain gradient descent, of one device."""

    def step(state: TrainState, tokens_BS: jax.Array, targets_BS: jax.Array) -> tuple[TrainState, Metrics]:
        loss, gradients = find(state, tokens_BS, targets_BS)
        master = jax.tree.map(lambda w, g: w - learning_rate * g.astype(w.dtype), state.master, gradients)
        return state._replace(master=master), Metrics(loss, loss)

    return step


@dataclass(frozen=True)
class Fragment:
    """Weights that meet at once.

    Attributes:
      dims: of each, by its name.
      first, layers: of the stack, those that meet; None: the weights as a whole.
    """

    dims: Mapping[str, Dims]
    first: jax.Array | None = None
    layers: int = 0

    def of(self, weights: Parameters) -> dict[str, jax.Array]:
        found = {name: x for name, x in _by_name(weights).items() if name in self.dims}
        if self.first is None:
            return found
        return {name: jax.lax.dynamic_slice_in_dim(x, self.first, self.layers) for name, x in found.items()}

    def put(self, weights: Parameters, parts: Mapping[str, jax.Array]) -> Parameters:
        def new(name: str, x: jax.Array) -> jax.Array:
            if name not in parts:
                return x
            part = parts[name]
            return part if self.first is None else jax.lax.dynamic_update_slice_in_dim(x, part, self.first, 0)

        leaves = [new(name, x) for name, x in _by_name(weights).items()]
        return jax.tree.unflatten(jax.tree.structure(weights), leaves)


def _by_name(weights: Parameters) -> dict[str, jax.Array]:
    return {name: w.get_value() for name, w in _variables(weights)}


def _variables(weights: Parameters) -> list[tuple[str, Parameter]]:
    """Each with its name, such as `layers/query`."""
    found = jax.tree.leaves_with_path(weights, is_leaf=is_weight)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), w) for path, w in found]


def _dims(own: RoundState) -> dict[str, Dims]:
    return {name: w.dims for name, w in _variables(own.replicas.master)}


def _fragment(own: RoundState, shape: RoundShape, number: jax.Array) -> Fragment:
    if shape.fragments == 1:
        return Fragment(_dims(own))
    layers = shape.layers // shape.fragments
    dims = {name: dims for name, dims in _dims(own).items() if is_in_fragments(dims, shape)}
    return Fragment(dims, number * layers, layers)


def _means(shape: RoundShape, strategy: Strategy, own: RoundState, fragment: Fragment) -> dict[str, jax.Array]:
    """Over replicas: of how far the anchor is from their weights; in local SGD, of these."""
    sent = fragment.of(own.replicas.master)
    if own.anchor is not None:
        sent = {name: anchor - sent[name] for name, anchor in fragment.of(own.anchor).items()}
    means: dict[str, jax.Array] = {}
    for scope, codec, names in messages(fragment.dims, shape, strategy):
        with jax.named_scope(scope):
            flat = sent[names[0]] if codec is None else jnp.concatenate([sent[name].ravel() for name in names])
            mean = outer_mean.mean(flat, REPLICA, codec)
            ends = np.cumsum([sent[name].size for name in names])[:-1]
            parts = [mean] if codec is None else jnp.split(mean, ends)
            means |= {name: part.reshape(sent[name].shape) for name, part in zip(names, parts, strict=True)}
    return means


def _met(
    rounds: Rounds, own: RoundState, fragment: Fragment, means: dict[str, jax.Array], kept: float = 0.0
) -> RoundState:
    """With the new weights of a fragment, of which a replica keeps a share of its own."""
    new = means
    if rounds.outer:
        rate, m = rounds.outer.learning_rate, rounds.outer.momentum
        momentum = {name: m * u + means[name] for name, u in fragment.of(known(own.momentum)).items()}
        anchor = fragment.of(known(own.anchor))
        new = {name: w - rate * (m * momentum[name] + means[name]) for name, w in anchor.items()}
        own = own._replace(
            anchor=fragment.put(known(own.anchor), new), momentum=fragment.put(known(own.momentum), momentum)
        )
    new = {name: jax.lax.pcast(w, REPLICA, to="varying") for name, w in new.items()}
    if kept:
        new = {name: kept * w + (1 - kept) * new[name] for name, w in fragment.of(own.replicas.master).items()}
    return own._replace(replicas=own.replicas._replace(master=fragment.put(own.replicas.master, new)))


def predict(rounds: Rounds, shape: RoundShape, axes: Axes) -> Ledger:
    """The ledger of a round: h times that of a replica's step, and what replicas send each other.

    Raises:
      UsageError: as `program`.
    """
    strategy, one = inner(axes), of_one_replica(shape, axes)
    steps = strategy.predict(one, axes).transfers
    # Plain descent clips nothing, and so needs no norm.
    needed = (t for t in steps if rounds.outer or t.scope != CLIPPING)
    repeated = (
        replace(t, executions=shape.every * known(t.executions), provenance=replace(t.provenance, steps=shape.every))
        for t in needed
    )
    transfers = (*repeated, *_between_replicas(strategy, shape, axes))
    return Ledger(transfers, devices=axes.size, mesh=axes.shape, steps=shape.every)


def _between_replicas(strategy: Strategy, shape: RoundShape, axes: Axes) -> Iterator[Transfer]:
    weights = dict(_variables(decoder.weights(shape)))
    in_turn = [name for name, w in weights.items() if is_in_fragments(w.dims, shape)]
    at_end = [name for name in weights if name not in in_turn]
    for meeting, times in ((in_turn, shape.fragments), (at_end, 1)):
        local = {name: strategy.master.local_shape(weights[name].dims, weights[name].shape, axes) for name in meeting}
        part = {name: (layers // times, *dims) for name, (layers, *dims) in local.items()}
        for scope, codec, names in messages({name: weights[name].dims for name in meeting}, shape, strategy):
            dims = part[names[0]] if codec is None else (sum(prod(part[name]) for name in names),)
            yield from outer_mean.sent(scope, dims, codec, REPLICA, times, axes)
