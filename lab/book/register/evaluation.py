"""A formula's value, for arguments by their own names or by the book's letters."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from lab.book.register.entries import Formula


def evaluate(formula: Formula, settings: Mapping[str, Any]) -> Any:
    """The value.

    Raises:
      ValueError: as `named`, or an argument that is not given, or a value that the function refuses.
    """
    arguments = named(formula, settings)
    if absent := [
        name
        for name, default in formula.arguments.items()
        if default is inspect.Parameter.empty and name not in arguments
    ]:
        raise ValueError(f"{formula.id}: {', '.join(absent)} not given; it takes {', '.join(argument_names(formula))}")
    try:
        return formula.call(**arguments)
    except (ArithmeticError, TypeError) as error:
        words = ", ".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, str))
        raise ValueError(f"{formula.id}: {f'{words}: expected a number' if words else error}") from error


def named(formula: Formula, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by the names of arguments.

    Raises:
      ValueError: no function, a name that is neither an argument nor a letter of the book, an argument set twice.
    """
    if not formula.function:
        raise ValueError(f"{formula.id} is a statement without a function; there is nothing to set")
    names = [formula.symbols.get(given, given) for given in settings]
    if unknown := [name for name in names if name not in formula.arguments]:
        close = get_close_matches(unknown[0], [*formula.arguments, *formula.symbols], 3)
        raise ValueError(
            f"{formula.id}: no argument {unknown[0]!r}; expected {', '.join(close or argument_names(formula))}"
        )
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{formula.id}: {doubled[0]} set twice")
    return dict(zip(names, settings.values(), strict=True))


def argument_names(formula: Formula) -> list[str]:
    """`ranks (p)`: each argument with the book's letters for it."""
    letters = {
        name: [letter for letter, argument in formula.symbols.items() if argument == name] for name in formula.arguments
    }
    return [f"{name} ({', '.join(of)})" if of else name for name, of in letters.items()]
