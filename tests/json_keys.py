"""The keys of a JSON value, as paths: `transfers[].parts[].dtype`; `*` is any key where a schema says that keys are
names, such as axes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from tests.paths import ROOT

Schema = Mapping[str, Any]
SCHEMAS = ROOT / "docs" / "schemas"


def schema_of(name: str) -> Schema:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def valid(name: str, text: str) -> Any:
    """A JSON text, once the schema of that name agrees."""
    value = json.loads(text)
    errors = [f"{e.json_path}: {e.message[:200]}" for e in Draft202012Validator(schema_of(name)).iter_errors(value)]
    if errors:
        raise AssertionError("; ".join(errors[:5]))
    return value


def described(schema: Schema) -> set[str]:
    """All that a schema tells of."""
    return set(_described(schema, schema, ""))


def _described(of: Schema, root: Schema, path: str) -> Iterator[str]:
    for form in _forms(of, root):
        for key, value in form.get("properties", {}).items():
            yield f"{path}.{key}"
            yield from _described(value, root, f"{path}.{key}")
        if form.get("type") == "object" and "properties" not in form:
            yield f"{path}.*"
            yield from _described(form.get("additionalProperties", {}), root, f"{path}.*")
        for items in (form.get("items"), *form.get("prefixItems", ())):
            if isinstance(items, dict):
                yield from _described(items, root, f"{path}[]")


def _forms(of: Schema, root: Schema) -> Iterator[Schema]:
    """The alternatives of a schema, references followed."""
    if "$ref" in of:
        yield from _forms(root["$defs"][of["$ref"].rpartition("/")[2]], root)
    for one in of.get("anyOf", ()):
        yield from _forms(one, root)
    yield of


def printed(value: Any, known: set[str], path: str = "") -> Iterator[str]:
    """Those of a value. A key that a schema does not tell of is `*` where it tells of any key, else itself."""
    if isinstance(value, dict):
        for key, one in value.items():
            names = f"{path}.{key}" not in known and f"{path}.*" in known
            at = f"{path}.*" if names else f"{path}.{key}"
            yield at
            yield from printed(one, known, at)
    elif isinstance(value, list):
        for one in value:
            yield from printed(one, known, f"{path}[]")
