"""Parameters of an experiment, set from text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lab.meshes.errors import UsageError, no_such


def with_settings(parameters: Any, settings: Mapping[str, str]) -> Any:
    """The parameters with some fields read from text; `preset`, or what their class is `NAMED_BY`, stands for all
    fields of a named one.

    Raises:
      UsageError: an unknown name, or a text that does not fit the field's type.
    """
    settings = dict(settings)
    named_by = _named_by(parameters)
    if named_by in settings and hasattr(parameters, "preset"):
        parameters = parameters.preset(settings.pop(named_by))
    known = {field.name: type(getattr(parameters, field.name)) for field in fields(parameters)}
    for name in settings:
        if name not in known:
            refusal, every = no_such("parameter", name, known), f"known are {', '.join(known)}"
            raise UsageError(f"{refusal}" if every in str(refusal) else f"{refusal} {every}")
    return replace(parameters, **{name: read_value(name, text, known[name]) for name, text in settings.items()})


@dataclass(frozen=True)
class Setting:
    """What `--set` takes by this name: its default, null of what names all others at once; and what it is, empty where
    the parameters are explained together."""

    name: str
    default: bool | int | float | str | None
    meaning: str


def listed(parameters: Any) -> Iterator[Setting]:
    """In the order of the fields."""
    of, told = type(parameters), _attributes(type(parameters))
    names = [each.name for each in fields(parameters)]
    if hasattr(of, "preset") and _named_by(parameters) not in names:
        yield Setting(_named_by(parameters), None, _first_sentence(inspect.getdoc(of.preset) or ""))
    for each in fields(parameters):
        meaning = _first_sentence(told.get(each.name, ""))
        yield Setting(each.name, getattr(parameters, each.name), meaning)


def explained(parameters: Any) -> str:
    """What the docstring of their class says of them together."""
    return " ".join(re.split(r"\n\n|^Attributes:", inspect.getdoc(type(parameters)) or "", flags=re.M)[0].split())


def _named_by(parameters: Any) -> str:
    return str(getattr(parameters, "NAMED_BY", "preset"))


_SECTION = re.compile(r"^Attributes:\n((?: +.*\n?|\n)*)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^  (\w+(?:, \w+)*): (.*(?:\n    .*)*)", re.MULTILINE)


def _attributes(of: type) -> dict[str, str]:
    """What docstrings say of a class's fields, and of those that it inherits."""
    sections = [_SECTION.search(inspect.cleandoc(vars(base).get("__doc__") or "")) for base in reversed(of.__mro__)]
    return {
        name: " ".join(meaning.split())
        for section in sections
        if section
        for names, meaning in _ATTRIBUTE.findall(section[1])
        for name in names.split(", ")
    }


def _first_sentence(text: str) -> str:
    """Without its period."""
    return re.split(r"\.(?: (?=[A-Z`])|$)", " ".join(text.split()), maxsplit=1)[0]


KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def read_value(name: str, text: str, kind: type) -> Any:
    """Raises UsageError: the text is no value of this type."""
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UsageError(f"{name}={text}: expected {KINDS.get(kind, kind.__name__)}") from None
