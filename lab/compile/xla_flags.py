"""Flags of XLA and their defaults in the installed release: what JAX hands its compilers, by the names that XLA's own
description of `DebugOptions` in jaxlib gives them. What libtpu knows beside them (`xla_tpu_...`) it does not tell."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from lab.core.known import known
from lab.hlo.protobuf import fields, numbers, packed, parts
from lab.meshes.platforms import Platform

_FILE = b"\n\rxla/xla.proto"
"""How the description of the file begins: its name."""
_MOST_BYTES = 1 << 20
# Field numbers of descriptor.proto, of CompileOptionsProto and of ExecutableBuildOptionsProto.
_MESSAGE, _NAME, _FIELD, _ENUM, _VALUE = 4, 1, 2, 4, 2
_NUMBER, _LABEL, _TYPE, _TYPE_NAME = 3, 4, 5, 6
_BUILD_OPTIONS, _DEBUG_OPTIONS = 3, 3
_REPEATED, _DOUBLE, _FLOAT, _BOOL, _STRING, _MESSAGE_TYPE, _ENUM_TYPE = 3, 1, 2, 8, 9, 11, 14
_WITHIN: Mapping[str, Platform] = {"xla_cpu_": Platform.CPU, "xla_gpu_": Platform.GPU, "xla_tpu_": Platform.TPU}
_DUMPS = "xla_dump_"


@dataclass(frozen=True)
class Flag:
    """Its default, and what stands for none, each as XLA takes it: several values joined by commas."""

    default: str
    none: str


def set_back(old: Mapping[str, Flag], new: Mapping[str, Flag], platform: str | None) -> dict[str, str]:
    """The old defaults of flags whose default has changed; of new ones those that are on, as off: what they switch did
    not exist. Without those of other platforms, and those of dumps."""
    changed = {name: old[name].default for name in new if name in old and old[name].default != new[name].default}
    added = {
        name: flag.none for name, flag in new.items() if name not in old and flag.default != flag.none in ("False", "")
    }
    return {name: value for name, value in sorted((changed | added).items()) if _concerns(name, platform)}


def _concerns(name: str, platform: str | None) -> bool:
    own = next((of for prefix, of in _WITHIN.items() if name.startswith(prefix)), None)
    return own in (None, platform) and not name.startswith(_DUMPS)


def flags() -> dict[str, Flag]:
    """All but those whose values are messages, by name."""
    import jaxlib
    from jaxlib import _jax  # No public name is left for it.

    options = memoryview(_jax.CompileOptions().SerializeAsString())
    values: dict[int, list[int | memoryview]] = defaultdict(list)
    for number, value in fields(next(parts(next(parts(options, _BUILD_OPTIONS)), _DEBUG_OPTIONS))):
        values[number].append(value)
    library = next(Path(path) / "libjax_common.so" for path in jaxlib.__path__)
    return dict(_flags(_description(library), values))


def _description(library: Path) -> memoryview:
    """Of `DebugOptions`, as a DescriptorProto."""
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        at = content.find(_FILE)
        described = memoryview(content[at : at + _MOST_BYTES])
    return next(message for message in parts(described, _MESSAGE) if _text(message, _NAME) == "DebugOptions")


def _flags(described: memoryview, values: Mapping[int, Sequence[int | memoryview]]) -> Iterator[tuple[str, Flag]]:
    enums = {_text(enum, _NAME): _names(enum) for enum in parts(described, _ENUM)}
    for field in parts(described, _FIELD):
        told = numbers(field)
        kind, found = told[_TYPE], values.get(told[_NUMBER], ())
        if kind == _MESSAGE_TYPE:
            continue
        names = enums.get(_text(field, _TYPE_NAME).rpartition(".")[2], {})
        none = _value(kind, names, None)
        if told[_LABEL] == _REPEATED:
            flag = Flag(",".join(_value(kind, names, value) for value in _each(kind, found)), "")
        else:
            flag = Flag(_value(kind, names, found[-1]) if found else none, none)
        yield _text(field, _NAME), flag


def _each(kind: int, found: Sequence[int | memoryview]) -> Iterator[int | memoryview]:
    """Numbers are packed."""
    for value in found:
        if kind == _STRING or isinstance(value, int):
            yield value
        else:
            yield from packed(value)


def _value(kind: int, names: Mapping[int, str], found: int | memoryview | None) -> str:
    """As an option of the compiler is written."""
    if kind == _STRING:
        return "" if found is None else bytes(_message(found)).decode(errors="replace")
    if kind in (_DOUBLE, _FLOAT):
        form = "<d" if kind == _DOUBLE else "<f"
        return "0" if found is None else f"{struct.unpack(form, _message(found))[0]:.7g}"
    number = 0 if found is None else known(found if isinstance(found, int) else None)
    if kind == _BOOL:
        return "True" if number else "False"
    if kind == _ENUM_TYPE:
        return names.get(number, str(number))
    return str(number - (1 << 64) if number >> 63 else number)


def _message(found: int | memoryview) -> memoryview:
    return known(found if isinstance(found, memoryview) else None)


def _names(enum: memoryview) -> dict[int, str]:
    return {numbers(value).get(2, 0): _text(value, _NAME) for value in parts(enum, _VALUE)}


def _text(message: memoryview, number: int) -> str:
    return b"".join(map(bytes, parts(message, number))).decode()
