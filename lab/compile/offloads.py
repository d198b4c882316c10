"""What a program asks JAX to move to the host's memory until its backward pass: policies of `jax.checkpoint`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import getclosurevars, isfunction
from typing import Any

_NAMES = "names_which_can_be_offloaded"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def asked(jaxpr: Any) -> tuple[str, ...]:
    """The names that policies of differentiated functions offload, or the policy's own where it goes by no names."""
    return tuple(dict.fromkeys(name for policy in _policies(jaxpr) for name in _offloaded(policy)))


def _offloaded(policy: Any) -> tuple[str, ...]:
    """A policy is a function that another makes; from jax 0.11 on an object of a class of that name."""
    is_function = isfunction(policy)
    made_by = policy.__qualname__.partition(".")[0] if is_function else _WORD.sub("_", type(policy).__name__).lower()
    if "offload" not in made_by:
        return ()
    named = getclosurevars(policy).nonlocals.get(_NAMES) if is_function else getattr(policy, _NAMES, None)
    return tuple(sorted(named if named is not None else (made_by,)))


def _policies(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.params.get("differentiated"):
            yield equation.params.get("policy")
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    yield from _policies(inner)
