"""Shardings that are part of arrays' types, on mesh axes of type Explicit, where a traced program is evaluated anew and
a change gives some of its values other shardings than they were traced with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "checkpoint", "custom_jvp_call", "custom_vjp_call"})
_OUT = "out_sharding"


def pinned(x: Any, placed: NamedSharding) -> Any:
    """An array laid out so: by its type along axes of type Explicit, by a constraint along the others."""
    mesh = placed.mesh.abstract_mesh
    typed = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if typed:
        was = (*_spec(jax.typeof(x)), *(None for _ in placed.spec))
        spec = [old if entry is P.UNCONSTRAINED else entry for entry, old in zip(placed.spec, was, strict=False)]
        x = jax.sharding.reshard(x, NamedSharding(mesh, _along(P(*spec), typed)))
    others = set(mesh.axis_names) - typed
    if not others:
        return x
    rest = NamedSharding(placed.mesh, _along(placed.spec, others)) if typed else placed
    return jax.lax.with_sharding_constraint(x, rest)


def is_retyped(eqn: Any, operands: Sequence[Any]) -> bool:
    """Whether operands have other shardings in their types than the equation was traced with."""
    return any(_spec(jax.typeof(x)) != _spec(v.aval) for x, v in zip(operands, eqn.invars, strict=True))


def as_traced(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Operands resharded to the types that the equation was traced with."""
    return [like(x, v.aval) for x, v in zip(operands, eqn.invars, strict=True)]


def like(x: Any, aval: Any) -> Any:
    """A value with the sharding of a type."""
    return x if _spec(jax.typeof(x)) == _spec(aval) else jax.sharding.reshard(x, aval.sharding)


def ways(eqn: Any, operands: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
    """An equation and operands whose types may agree, those that move least first: as they are; with the sharding that
    the result was traced with; all laid out like the one that has changed; as they were traced."""
    yield _out_followed(eqn, operands), operands
    if _OUT in eqn.params and eqn.params[_OUT] is None:
        yield eqn.replace(params={**eqn.params, _OUT: eqn.outvars[0].aval.sharding}), operands
    types = [jax.typeof(x) for x in operands]
    if len({each.shape for each in types}) == 1:
        changed = next((t for t, v in zip(types, eqn.invars, strict=True) if _spec(t) != _spec(v.aval)), types[0])
        yield eqn, [like(x, changed) for x in operands]
    yield eqn, as_traced(eqn, operands)


def _out_followed(eqn: Any, operands: Sequence[Any]) -> Any:
    """A product of the backward pass, whose result JAX lays out as what it is the gradient of: with the dims that an
    operand has otherwise now."""
    if eqn.primitive.name != "dot_general" or "transpose(" not in str(eqn.source_info.name_stack):
        return eqn
    contracted, batch = eqn.params["dimension_numbers"]
    sources = [(0, dim) for dim in batch[0]]
    for side, v in enumerate(eqn.invars):
        sources += [(side, dim) for dim in range(v.aval.ndim) if dim not in (*contracted[side], *batch[side])]
    before = [_spec(v.aval) for v in eqn.invars]
    now = [_spec(jax.typeof(x)) for x in operands]
    result = eqn.outvars[0].aval.sharding
    spec = [
        now[side][dim] if now[side][dim] != before[side][dim] else entry
        for entry, (side, dim) in zip(result.spec, sources, strict=True)
    ]
    return eqn.replace(params={**eqn.params, _OUT: result.update(spec=P(*spec))})


def inner_types(eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """What the program that an equation calls takes, of these operands; None where its types cannot follow them."""
    types = [jax.typeof(x) for x in operands]
    if eqn.primitive.name in _CALLS:
        return types
    if eqn.primitive.name != "scan":
        return None
    inner = eqn.params["jaxpr"].in_avals
    is_slice = [t.ndim > each.ndim for t, each in zip(types, inner, strict=True)]
    if any(_spec(t)[:1] not in ((), (None,)) for t, cut in zip(types, is_slice, strict=True) if cut):
        return None
    return [_slice(t) if cut else t for t, cut in zip(types, is_slice, strict=True)]


def _slice(of: Any) -> Any:
    """The type of one step of what a scan runs over."""
    return of.update(shape=of.shape[1:], sharding=of.sharding.update(spec=P(*of.sharding.spec[1:])))


def results_for(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """What an inner program returns: a scan carries on what it was given."""
    if eqn.primitive.name != "scan":
        return list(results)
    # Releases of JAX keep the numbers of what is carried in different ways; all else gets or has one dim more.
    inner = eqn.params["jaxpr"]
    carries = sum(v.aval.ndim == each.ndim for v, each in zip(eqn.outvars, inner.out_avals, strict=True))
    whole = sum(v.aval.ndim == each.ndim for v, each in zip(eqn.invars, inner.in_avals, strict=True))
    carried = map(jax.typeof, operands[whole - carries : whole])
    return [*map(like, results, carried), *results[carries:]]


def _spec(aval: Any) -> tuple[Any, ...]:
    return tuple(aval.sharding.spec) if getattr(aval, "sharding", None) is not None else ()


def _along(spec: P, axes: set[str]) -> P:
    """A spec with these axes alone."""

    def kept(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(name for name in entry if name in axes) or None
        return entry if entry in axes or entry is P.UNCONSTRAINED else None

    return P(*map(kept, spec))
