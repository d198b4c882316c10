"""JSON of dataclasses, and back. The types are the contract: `schema` writes them down, objects only gain keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

import msgspec

from lab.core.units import number
from lab.meshes.errors import UsageError

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@runtime_checkable
class HasJsonObject(Protocol):
    """What has other keys in JSON than it has fields, such as totals: a dataclass of their own describes them."""

    def json_object(self) -> Any: ...


def to_json(value: object) -> Any:
    """Dicts, lists, strings and numbers: the fields of a dataclass, or of what its `json_object` gives.

    Whole fractions are integers, others floats; a field that is `msgspec.UNSET` is left out.
    """
    return json.loads(json.dumps(_plain(value)))


def to_text(value: object) -> str:
    """The same as indented JSON; numbers that are not finite are null."""
    found = _plain(value)
    try:
        text = json.dumps(found, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(found))
    return msgspec.json.format(text, indent=2)


def from_json(of: type[T], found: object) -> T:
    """An object of this type; keys that it does not know are passed over.

    Raises:
      UsageError: it is no such object; the line names the key.
    """
    try:
        return msgspec.convert(found, of, dec_hook=_decoded)
    except msgspec.ValidationError as refusal:
        what, _, where = str(refusal).replace("`", "").partition(" - at $")
        place = where.removeprefix(".") or "the whole"
        raise UsageError(f"{place}: {what[:1].lower()}{what[1:]}") from None


def schema(of: Any) -> dict[str, Any]:
    """JSON Schema of a type; what its docstring says is the description."""
    found = msgspec.json.schema(of, schema_hook=_described)
    for one in found.get("$defs", {}).values():
        if "description" in one:
            one["description"] = " ".join(one["description"].split())
    return {"$schema": DIALECT, **found}


def _plain(value: object) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    described = value.json_object() if isinstance(value, HasJsonObject) else value
    return msgspec.to_builtins(described, str_keys=True, enc_hook=_encoded)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _encoded(value: Any) -> Any:
    if isinstance(value, Fraction):
        return number(value)
    for plain in (str, float, int):
        if isinstance(value, plain):  # A subclass, such as NumPy's float.
            return plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError  # How a hook of msgspec declines: msgspec then names the type.


def _decoded(of: Any, found: Any) -> Any:
    if of is Fraction and not (type(found) is int or (type(found) is float and isfinite(found))):
        raise ValueError("expected a finite number")
    return of(found)


def _described(of: Any) -> dict[str, Any]:
    if of is Fraction:
        return {"type": "number"}
    raise NotImplementedError  # How a hook of msgspec declines: msgspec then names the type.
