"""What a program asks JAX to move to the host's memory until its backward pass: policies of `jax.checkpoint`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from inspect import getclosurevars, isfunction
from typing import Any

_NAMES = "names_which_can_be_offloaded"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def asked(jaxpr: Any) -> dict[str, str | None]:
    """The names that policies of differentiated functions offload, or the policy's own where it goes by no names; each
    with the line that gives a value that name, where there is one."""
    names = dict.fromkeys(name for equation in _equations(jaxpr) for name in _of_equation(equation))
    named = {e.params["name"]: _line(e) for e in _equations(jaxpr) if e.primitive.name == "name"} if names else {}
    return {name: named.get(name) for name in names}


def _line(equation: Any) -> str | None:
    """The innermost outside of installed packages."""
    traceback = equation.source_info.traceback
    frames = (frame for frame in (traceback.frames if traceback else ()) if "-packages" not in frame.file_name)
    here = f"{os.getcwd()}{os.sep}"
    return next((f"{frame.file_name.removeprefix(here)}:{frame.line_num}" for frame in frames), None)


def _of_equation(equation: Any) -> tuple[str, ...]:
    return _offloaded(equation.params.get("policy")) if equation.params.get("differentiated") else ()


def _offloaded(policy: Any) -> tuple[str, ...]:
    """A policy is a function that another makes; from jax 0.11 on an object of a class of that name."""
    is_function = isfunction(policy)
    made_by = policy.__qualname__.partition(".")[0] if is_function else _WORD.sub("_", type(policy).__name__).lower()
    if "offload" not in made_by:
        return ()
    named = getclosurevars(policy).nonlocals.get(_NAMES) if is_function else getattr(policy, _NAMES, None)
    return tuple(sorted(named if named is not None else (made_by,)))


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)
