"""Arguments that a program's own sharding constraints replicate, as it was traced: from jax 0.11 on a compiled text
names their gathers after the argument alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_CALLS = frozenset({"jit", "pjit", "checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call"})
"""Primitives that give each operand to one parameter of the function that they run."""


def replicated(jaxpr: Any) -> tuple[str, ...]:
    """Names of the arguments, as JAX gives them: `x`, `state['m']`."""
    names = {id(v): name for v, name in zip(jaxpr.invars, jaxpr.debug_info.arg_names or (), strict=False)}
    return tuple(dict.fromkeys(_replicated(jaxpr, names)))


def _replicated(jaxpr: Any, names: Mapping[int, str]) -> Iterator[str]:
    for equation in jaxpr.eqns:
        given = [names.get(id(operand)) for operand in equation.invars]
        if equation.primitive.name == "sharding_constraint" and equation.params["sharding"].is_fully_replicated:
            yield from filter(None, given)
        elif equation.primitive.name in _CALLS and any(given):
            function = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            inner = getattr(function, "jaxpr", function)
            parameters = zip(inner.invars, given, strict=False)
            yield from _replicated(inner, {id(v): name for v, name in parameters if name})
