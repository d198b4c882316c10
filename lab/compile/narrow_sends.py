"""Collectives and constraints of a traced program that move values made of narrow ones, made to move these instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile import equations
from lab.compile.equations import CONSTRAINTS, Edit, Equation
from lab.compile.explicit_types import pinned
from lab.core.dtypes import DTYPES
from lab.diagnosis.program import WRITTEN, NarrowValue
from lab.diagnosis.remedy import NotApplicable

_SCALES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"mul": jnp.multiply, "div": jnp.divide}
_SUMS = ("psum", "psum_invariant", "reduce_scatter")
_LAYOUTS = ("reshape", "transpose", "squeeze", "expand_dims")
_AS_IT_IS = ("optimization_barrier", "copy", "pvary", "pcast")


def narrow_in(jaxpr: Any, op_name: str, elements: int) -> NarrowValue | None:
    """What a transfer of this name moves by the traced program, where that is of 8 bits, or made of such a value by
    casts and scales alone: compilers drop a float that is rounded and widened again, so that their text need not
    tell.

    Args:
      elements: of its result on a device, by which it is known among several of one name; None of these may move
        anything else then.
    """
    at = [
        found if found.primitive in WRITTEN else equations.constraint_at(found)
        for found in equations.named(jaxpr, op_name)
    ]
    alike = [each for each in at if each and each.equation.outvars[0].aval.size == elements]
    found = {_moved_by(each) for each in alike or at}
    return found.pop() if len(found) == 1 else None


def _moved_by(at: Equation | None) -> NarrowValue | None:
    if at is None or len(at.equation.invars) != 1 or isinstance(at.equation.invars[0], Literal):
        return None
    moved = at.equation.invars[0].aval.dtype
    if _is_narrow(moved):
        return NarrowValue(_xla_name(moved), is_cast_before=True)
    try:
        return _narrow_value(at)
    except NotApplicable:
        return None


def _narrow_value(at: Equation) -> NarrowValue:
    """Raises NotApplicable as `sent_narrow`, but for a value that is laid out anew before it is sent."""
    source, steps = _way(at, _LAYOUTS)
    made = {id(v): eqn for eqn in at.inside.eqns for v in eqn.outvars}
    value, bits, number_bytes = source.invars[0].aval, Fraction(0), 0
    for step in steps:
        if step.scale is None or _is_literal(made, v := step.equation.invars[step.scale]):
            continue
        spread = _broadcast(made, step)
        v = v if spread is None else spread.invars[0]
        if v.aval.size > 1:
            bits += Fraction(8 * v.aval.size * v.aval.dtype.itemsize, value.size)
        elif at.primitive not in CONSTRAINTS:  # The compiler knows that one number is the same everywhere.
            number_bytes += v.aval.dtype.itemsize
    return NarrowValue(_xla_name(value.dtype), scale_bits=bits, number_bytes=number_bytes)


def constraints_of_narrow(jaxpr: Any) -> Iterator[Equation]:
    """Sharding constraints on values that are made of values of 8 bits."""
    for at in equations.equations(jaxpr):
        if at.primitive in CONSTRAINTS and not isinstance(at.equation.invars[0], Literal):
            with suppress(NotApplicable):
                _way(at)
                yield at


_PACKED = {"int4": "s4", "uint4": "u4", "int2": "s2", "uint2": "u2", "float4_e2m1fn": "f4e2m1fn"}
"""Of which several share a byte, as they are sent."""


def _xla_name(dtype: Any) -> str:
    known = next((name for name, (known, _) in DTYPES.items() if known == dtype.name), dtype.name)
    return _PACKED.get(dtype.name, known)


class _Step(NamedTuple):
    """On the way from the narrow value: an equation, and which of its operands is the scale; None: a cast."""

    equation: Any
    scale: int | None


def sent_narrow(at: Equation, before: NamedSharding | None = None) -> Iterator[tuple[Equation, Edit]]:
    """What stands in place of an equation, and of those that make its operand.

    Args:
      before: how the narrow value is split before a constraint, where that divides it.
    Raises:
      NotApplicable: its operand is not made of a value of 8 bits by casts and scales alone.
    """
    source, steps = _way(at)
    held: dict[int, Sequence[Any]] = {}

    def kept(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        held[id(eqn)] = operands
        return list(equations.bound(eqn, operands))

    made = {id(v): eqn for eqn in at.inside.eqns for v in eqn.outvars}
    for eqn in (source, *(step.equation for step in steps if step.scale is not None)):
        yield Equation("", eqn, at.inside), kept
    broadcasts = {id(step.equation): _broadcast(made, step) for step in steps if step.scale is not None}
    for eqn in (each for each in broadcasts.values() if each is not None):
        yield Equation("", eqn, at.inside), kept

    rank = len(source.outvars[0].aval.shape)

    def scale_of(step: _Step) -> jax.Array:
        """With a dim of 1 for each along which it is the same."""
        spread = broadcasts[id(step.equation)]
        if spread is None:
            return jnp.asarray(held[id(step.equation)][step.scale or 0])
        small = jnp.asarray(held[id(spread)][0])
        sizes = [1] * rank
        for at, size in zip(spread.params["broadcast_dimensions"], small.shape, strict=True):
            sizes[at] = size
        return small.reshape(sizes)

    def widened(narrow: jax.Array, moved: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """As the program makes it of the narrow value, each scale as `moved` gives it."""
        x = narrow.astype(source.params["new_dtype"])
        for eqn, scale in reversed(steps):
            if scale is None:
                x = x.astype(eqn.params["new_dtype"])
            else:
                step = _Step(eqn, scale)
                factor = scale_of(step) if _is_literal(made, eqn.invars[scale]) else moved(scale_of(step))
                x = _SCALES[eqn.primitive.name](x, factor).astype(x.dtype)
        return x

    def instead(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        del operands
        (narrow,) = held[id(source)]
        if eqn.primitive.name in CONSTRAINTS:
            if before is not None and _divides(placed := _of_slices(before, narrow.ndim), narrow.shape):
                narrow = pinned(narrow, placed)
            return equations.bound(eqn, [widened(equations.bound(eqn, [narrow])[0], partial(_placed_alike, eqn))])
        if eqn.primitive.name in _SUMS:
            return [_summed(eqn, narrow, widened)]
        whole = equations.bound(eqn, [narrow])[0]
        return [_where_sent_to(eqn, widened(whole, lambda scale: _moved_scale(eqn, scale, narrow.shape, whole.shape)))]

    yield at, instead


def _placed_alike(eqn: Any, scale: jax.Array) -> jax.Array:
    """Under the constraint of the values, where that divides it."""
    placed = eqn.params.get("sharding")
    is_placed = isinstance(placed, NamedSharding) and _divides(placed, scale.shape)
    return jnp.asarray(equations.bound(eqn, [scale])[0]) if is_placed else scale


def _of_slices(placed: NamedSharding, rank: int) -> NamedSharding:
    """Of what a loop takes of a stack one by one: without the dims in front."""
    return placed.update(spec=P(*placed.spec[-rank:]))


def _divides(placed: NamedSharding, shape: tuple[int, ...]) -> bool:
    names = [entry if isinstance(entry, tuple) else (entry,) if entry else () for entry in placed.spec]
    return len(names) <= len(shape) and not any(
        size % prod(placed.mesh.shape[name] for name in some) for size, some in zip(shape, names, strict=False)
    )


def _way(at: Equation, through: Collection[str] = ()) -> tuple[Any, list[_Step]]:
    """The cast of the narrow value, and what follows it, the last first.

    Args:
      through: operations that are passed over.
    """
    made = {id(v): eqn for eqn in at.inside.eqns for v in eqn.outvars}
    v, steps = at.equation.invars[0], list[_Step]()
    while (eqn := made.get(id(v))) is not None:
        name = eqn.primitive.name
        if name == "convert_element_type" and _is_narrow(eqn.invars[0].aval.dtype):
            return eqn, steps
        if name == "convert_element_type":
            steps.append(_Step(eqn, None))
        elif name in _SCALES:
            sides = (1, 0) if name == "mul" else (1,)
            scale = next((n for n in sides if _is_scale(made, eqn.invars[n], eqn.outvars[0].aval)), None)
            if scale is None:
                break
            steps.append(_Step(eqn, scale))
            v = eqn.invars[1 - scale]
            continue
        elif name in _LAYOUTS and name not in through:
            raise NotApplicable(f"a {name} stands between the value of 8 bits and the transfer; do it after that")
        elif name not in (*_AS_IT_IS, *through) or len(eqn.invars) != 1:
            break
        v = eqn.invars[0]
    raise NotApplicable("what is sent is not made of a value of 8 bits by casts and scales alone")


def _is_narrow(dtype: Any) -> bool:
    return bool(dtype.itemsize == 1 and dtype != jnp.bool_)


def _is_scale(made: dict[int, Any], v: Any, result: Any) -> bool:
    """A number, or an array that is spread over more values than it has."""
    maker = None if isinstance(v, Literal) else made.get(id(v))
    return bool(v.aval.size < result.size) or (maker is not None and maker.primitive.name == "broadcast_in_dim")


def _broadcast(made: dict[int, Any], step: _Step) -> Any:
    v = step.equation.invars[step.scale or 0]
    maker = None if isinstance(v, Literal) else made.get(id(v))
    return maker if maker is not None and maker.primitive.name == "broadcast_in_dim" else None


def _is_literal(made: dict[int, Any], v: Any) -> bool:
    """Every rank has it, however it is spread."""
    while not isinstance(v, Literal):
        maker = made.get(id(v))
        if maker is None or maker.primitive.name not in (*_AS_IT_IS, "broadcast_in_dim", "convert_element_type"):
            return False
        v = maker.invars[0]
    return True


def _where_sent_to(eqn: Any, x: jax.Array) -> jax.Array:
    """Ranks that a permute sends nothing to have zeros, whatever these are divided by."""
    if eqn.primitive.name != "ppermute":
        return x
    over, targets = eqn.params["axis_name"], [target for _, target in eqn.params["perm"]]
    if len(targets) == jax.lax.axis_size(over):
        return x
    return jnp.where(jnp.isin(jax.lax.axis_index(over), jnp.array(targets)), x, 0)


def _moved_scale(eqn: Any, scale: jax.Array, part: Sequence[int], whole: Sequence[int]) -> jax.Array:
    """Each rank's scale where its values are after a collective."""
    name, params = eqn.primitive.name, eqn.params
    if not scale.shape:
        scale = scale.reshape([1] * len(part))
    if name == "all_to_all":
        split, joined = params["split_axis"], params["concat_axis"]
        if scale.shape[split] == 1:
            ranks = jax.lax.axis_size(params["axis_name"])
            scale = jnp.broadcast_to(scale, [ranks if at == split else size for at, size in enumerate(scale.shape)])
    elif name in ("all_gather", "all_gather_invariant") and params["tiled"]:
        joined = params["all_gather_dimension"]
    else:
        return jnp.asarray(equations.bound(eqn, [scale])[0])
    moved = jnp.asarray(equations.bound(eqn, [scale])[0])
    return jnp.repeat(moved, whole[joined] // moved.shape[joined], axis=joined)


def _summed(
    eqn: Any, narrow: jax.Array, widened: Callable[[jax.Array, Callable[[jax.Array], jax.Array]], jax.Array]
) -> jax.Array:
    """Each rank's part of all ranks' values, summed as the program does; of a psum all parts, gathered."""
    params = eqn.params
    over = params["axis_name"] if eqn.primitive.name == "reduce_scatter" else params["axes"]
    over = tuple(over) if isinstance(over, (tuple, list)) else (over,)
    ranks = jax.lax.axis_size(over)
    is_scattered = eqn.primitive.name == "reduce_scatter"
    if params.get("axis_index_groups") is not None or (is_scattered and not params["tiled"]):
        raise NotApplicable("the sum is over groups of its own, or takes a dim away")
    dims = [params["scatter_dimension"]] if is_scattered else range(narrow.ndim)
    at = next((dim for dim in dims if narrow.shape[dim] % ranks == 0), None)
    if at is None:
        raise NotApplicable(f"no dim of {narrow.shape} splits over {ranks} ranks")

    def exchanged(x: jax.Array) -> jax.Array:
        """[ranks, ...]: this rank's part of every rank's."""
        if not x.shape or x.shape[at] == 1:
            return jnp.asarray(jax.lax.all_gather(x.reshape([1] * narrow.ndim) if not x.shape else x, over))
        parts = jnp.moveaxis(x.reshape(*x.shape[:at], ranks, -1, *x.shape[at + 1 :]), at, 0)
        return jnp.asarray(jax.lax.all_to_all(parts, over, 0, 0, tiled=True))

    part = jnp.sum(widened(exchanged(narrow), exchanged), 0, dtype=eqn.outvars[0].aval.dtype)
    return part if is_scattered else jnp.asarray(jax.lax.all_gather(part, over, axis=at, tiled=True))
