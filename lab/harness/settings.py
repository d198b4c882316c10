"""Parameters of an experiment, set from text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lab.meshes.errors import UsageError, no_such


def with_settings(parameters: Any, settings: Mapping[str, str]) -> Any:
    """The parameters with some fields read from text; `preset`, or what their class is `NAMED_BY`, stands for all
    fields of a named one.

    Raises:
      UsageError: an unknown name, or a text that does not fit the field's type.
    """
    settings = dict(settings)
    named_by = getattr(parameters, "NAMED_BY", "preset")
    if named_by in settings and hasattr(parameters, "preset"):
        parameters = parameters.preset(settings.pop(named_by))
    known = {field.name: type(getattr(parameters, field.name)) for field in fields(parameters)}
    for name in settings:
        if name not in known:
            refusal, every = no_such("parameter", name, known), f"known are {', '.join(known)}"
            raise UsageError(f"{refusal}" if every in str(refusal) else f"{refusal} {every}")
    return replace(parameters, **{name: _read(name, text, known[name]) for name, text in settings.items()})


KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def _read(name: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UsageError(f"{name}={text}: expected {KINDS.get(kind, kind.__name__)}") from None
