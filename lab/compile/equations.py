"""The equations of a traced program: found by the names that compiled text has for them, and evaluated with changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lab.compile import explicit_types

Edit = Callable[[Any, Sequence[Any]], Sequence[Any] | JaxprEqn]
"""What stands in place of an equation: from it and its operands to its results, or to the equation that gives them."""
CONSTRAINTS = frozenset({"sharding_constraint", "reshard"})
"""The second on mesh axes of type Explicit."""
# What stands in names of instructions for the calls around them, beside jit(..) and shard_map.
_AROUND = re.compile(r"(?:while/(?:body|cond)|cond/branch_\d+_fun|closed_call|checkpoint|remat\d*|core_call)/")
_LEVELS = re.compile(r"[()/]+")
_PASSES = frozenset(
    """convert_element_type transpose reshape broadcast_in_dim squeeze expand_dims copy mul add sub div neg cos sin tanh
    exp log max min integer_pow pvary""".split()
)

_LEAVE_ALIKE = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), "axes"),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), "axis_name"),
}
_CALLS = frozenset(
    """jit pjit closed_call core_call checkpoint remat2 custom_jvp_call custom_vjp_call scan while cond""".split()
)
_DIFFER = frozenset({"axis_index", "ppermute", "pbroadcast", "all_to_all", "ragged_all_to_all", "reduce_scatter"})


@dataclass(frozen=True)
class Equation:
    """Attributes: name: as in compiled text, without the calls around it; inside: the program that it stands in."""

    name: str
    equation: Any
    inside: Any

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)


def equations(jaxpr: Any, above: str = "") -> Iterator[Equation]:
    """All of a program, those of inner programs after the one that holds them."""
    for eqn in jaxpr.eqns:
        stack = "".join(f"{part}/" for part in (above.rstrip("/"), str(eqn.source_info.name_stack)) if part)
        yield Equation(_AROUND.sub("", f"{stack}{eqn.primitive.name}"), eqn, jaxpr)
        name = eqn.primitive.name
        level = f"jit({eqn.params['name']})/" if name in ("jit", "pjit") else f"{name}/" if name == "shard_map" else ""
        for _, inner in _inner(eqn):
            yield from equations(_open(inner), stack + level)


def scans(jaxpr: Any, depth: int) -> Iterator[Equation]:
    """Those that stand inside so many others."""
    for eqn in jaxpr.eqns:
        is_scan = eqn.primitive.name == "scan"
        if is_scan and depth == 0:
            yield Equation("", eqn, jaxpr)
        else:
            for _, inner in _inner(eqn):
                yield from scans(_open(inner), depth - is_scan)


def named(jaxpr: Any, op_name: str) -> list[Equation]:
    """The equations that compiled text calls `jit(step)/...`: several where a Python loop has traced them. Where none
    has that name, as inside of a jax.vmap, the only one that does the same."""
    name, every = _flat(_AROUND.sub("", op_name.partition("/")[2])), list(equations(jaxpr))
    alike = [each for each in every if each.primitive == name.rsplit("/", 1)[-1]]
    return [each for each in every if _flat(each.name) == name] or (alike if len(alike) == 1 else [])


def _flat(name: str) -> str:
    """Without brackets: compiled text has `jvp(jit(_take))/gather` for `gather` of `jit(_take)` in `jvp()`."""
    return _LEVELS.sub("/", name)


def constraint_at(found: Equation) -> Equation | None:
    """A sharding constraint: the equation itself, the nearest that its result meets, or one that makes its operand."""
    if found.primitive in CONSTRAINTS:
        return found
    if nearest := constraint_on(found.inside, found.equation.outvars):
        return nearest
    made = set(map(id, found.equation.invars))
    makers = (eqn for eqn in found.inside.eqns if any(id(v) in made for v in eqn.outvars))
    return next((Equation("", eqn, found.inside) for eqn in makers if eqn.primitive.name in CONSTRAINTS), None)


def constraint_on(jaxpr: Any, values: Sequence[Any]) -> Equation | None:
    """The first sharding constraint that values meet on their way through what works element by element."""
    met = set(map(id, values))
    for eqn in jaxpr.eqns:
        if any(id(v) in met for v in eqn.invars):
            if eqn.primitive.name in CONSTRAINTS:
                return Equation("", eqn, jaxpr)
            met |= set(map(id, eqn.outvars)) if eqn.primitive.name in _PASSES else set()
    return None


def operands_alike(jaxpr: Any, found: Equation, axes: Sequence[str]) -> bool:
    """Whether all operands of an equation of `jax.shard_map`'s are the same on all devices along these axes, as far as
    its placements and the equations before it tell."""
    alike = {id(v) for v in _arguments_alike(jaxpr, found.inside, axes)}
    for eqn in found.inside.eqns:
        operands_are = all(isinstance(v, Literal) or id(v) in alike for v in eqn.invars)
        if eqn is found.equation:
            return operands_are
        if _leaves_alike(eqn, axes) or (operands_are and not _differs(eqn)):
            alike |= set(map(id, eqn.outvars))
    return False


def _arguments_alike(jaxpr: Any, inside: Any, axes: Sequence[str]) -> Iterator[Any]:
    for each in equations(jaxpr):
        given = each.equation.params
        if each.primitive == "shard_map" and _open(given["jaxpr"]) is inside:
            for v, spec in zip(inside.invars, given["in_specs"], strict=True):
                names = {name for names in spec for name in (names if isinstance(names, tuple) else (names,))}
                if names.isdisjoint(axes):
                    yield v


def _leaves_alike(eqn: Any, axes: Sequence[str]) -> bool:
    over = eqn.params.get(_LEAVE_ALIKE.get(eqn.primitive.name, ""), ())
    return set(axes) <= {over, *over} and eqn.params.get("axis_index_groups") is None


def _differs(eqn: Any) -> bool:
    """Equal operands may give other results on other devices."""
    within = {each.primitive for _, inner in _inner(eqn) for each in equations(_open(inner))}
    return bool(eqn.effects) or not _DIFFER.isdisjoint({eqn.primitive.name, *within})


def evaluated(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    edits: Mapping[int, Edit],
    is_as_traced: bool = True,
    was_checked: bool = False,
) -> list[Any]:
    """The results of a program, with edits in place of the equations of these ids.

    Args:
      is_as_traced: under the configuration that its equations were traced with, else under the present one.
      was_checked: inside a `jax.shard_map` that is made anew, whose types no longer name the axes along which values
        vary: what it calls is traced anew.
    """
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        operands = [v.val if isinstance(v, Literal) else values[v] for v in eqn.invars]
        stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with (
            source_info_util.user_context(eqn.source_info.traceback, name_stack=stack),
            eqn.ctx.manager if is_as_traced else nullcontext(),
        ):
            results = _results(eqn, operands, edits, is_as_traced, was_checked)
        values.update(zip(eqn.outvars, results, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _results(
    eqn: Any, operands: list[Any], edits: Mapping[int, Edit], is_as_traced: bool, was_checked: bool
) -> Sequence[Any]:
    if id(eqn) in edits:
        instead = edits[id(eqn)](eqn, operands)
        if not isinstance(instead, JaxprEqn):
            return instead
        eqn = instead
    types = None
    if is_retyped := explicit_types.is_retyped(eqn, operands):
        types = explicit_types.inner_types(eqn, operands)
        if types is None and any(_inner(eqn)):
            operands, is_retyped = explicit_types.as_traced(eqn, operands), False
    is_anew = is_retyped or not is_as_traced or (was_checked and eqn.primitive.name in _CALLS)
    touched = [(name, inner) for name, inner in _inner(eqn) if is_anew or _has(inner, edits)]
    if not touched:
        return bound(eqn, operands)

    def anew(inner: Any, was_checked: bool = was_checked) -> Callable[..., list[Any]]:
        def results(*args: Any) -> list[Any]:
            found = evaluated(_open(inner), getattr(inner, "consts", ()), args, edits, is_as_traced, was_checked)
            return explicit_types.results_for(eqn, operands, found)

        return results

    if eqn.primitive.name == "shard_map":
        given = eqn.params
        mapped = jax.shard_map(
            anew(given["jaxpr"], was_checked=given["check_vma"]),
            mesh=given["mesh"],
            in_specs=tuple(given["in_specs"]),
            out_specs=list(given["out_specs"]),
            axis_names=set(given["newly_manual_axes" if "newly_manual_axes" in given else "manual_axes"]),
            check_vma=False,  # An edit may give the same value by what JAX does not know to be the same.
        )
        return list(mapped(*operands))
    params = dict(eqn.params)
    for name, inner in touched:
        traced = jax.make_jaxpr(anew(inner))(*(types or [_type(v, was_checked) for v in _open(inner).invars]))
        params[name] = _put(params[name], inner, traced if isinstance(inner, ClosedJaxpr) else _open(traced))
    return bound(eqn.replace(params=params), operands)


def _type(v: Any, was_checked: bool) -> Any:
    """Without the axes along which it varies."""
    aval = v.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) if was_checked else aval


def bound(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation as it is. Where JAX is not told to check which values are the same on all devices,
    sums that are known to be are other sums, and what only says that a value varies is left out. Where operands have
    other shardings in their types than it was traced with, in the first way that JAX's types allow."""
    if eqn.primitive.name == "psum_invariant":
        return list(jax.lax.psum(tuple(operands), eqn.params["axes"]))
    if eqn.primitive.name in ("pvary", "pcast"):
        return list(operands)
    if not explicit_types.is_retyped(eqn, operands):
        return _bound(eqn, operands)
    *ways, last = explicit_types.ways(eqn, operands)
    for way in ways:
        try:
            return _bound(*way)
        # JAX's error of sharding types has no public name; what is no such error, the last way raises.
        except Exception:
            continue
    return _bound(*last)


def _bound(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    found = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(found) if eqn.primitive.multiple_results else [found]


def replaced(jaxpr: Any, change: Callable[[Any], Any]) -> Any:
    """A program with its equations' parameters changed, those of inner programs as well."""

    def anew(value: Any) -> Any:
        if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            return type(value)(map(anew, value))
        return replaced(value, change) if isinstance(value, Jaxpr | ClosedJaxpr) else change(value)

    inner = _open(jaxpr)
    eqns = [e.replace(params={name: anew(value) for name, value in e.params.items()}) for e in inner.eqns]
    changed = inner.replace(eqns=eqns)
    return ClosedJaxpr(changed, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else changed


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _inner(eqn: Any) -> Iterator[tuple[str, Any]]:
    """The programs that an equation calls, by the parameters that hold them."""
    for name, value in eqn.params.items():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, Jaxpr | ClosedJaxpr):
                yield name, each


def _has(inner: Any, edits: Mapping[int, Edit]) -> bool:
    return any(id(each.equation) in edits for each in equations(_open(inner)))


def _put(value: Any, inner: Any, traced: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_put(each, inner, traced) for each in value)
    return traced if value is inner else value
