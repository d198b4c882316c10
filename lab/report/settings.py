"""What `--set NAME=VALUE` says for a formula: a number, a number with a unit, a model or a chip by name, a list, or a
word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
from textwrap import shorten
from typing import Any, TypeVar

from lab.meshes.errors import LONGEST, UsageError
from lab.meshes.hardware import chip
from lab.zoo import model

T = TypeVar("T")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18, "Z": 10**21}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_COUNTS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SECONDS: Mapping[str, Fraction | int] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
}


def _prefixed(unit: str, *prefixes: dict[str, int]) -> dict[str, Fraction | int]:
    return {prefix + unit: scale for table in prefixes for prefix, scale in table.items()}


_BYTES, _FLOPS = _prefixed("B", _DECIMAL, _BINARY), _prefixed("FLOP", _DECIMAL)
_HOURS: dict[str, Fraction | int] = {unit: Fraction(scale) / 3600 for unit, scale in _SECONDS.items()}
_A_SECOND = {f"/{unit}": 1 / Fraction(scale) for unit, scale in _SECONDS.items()}
_AN_HOUR = {f"/{unit}": 1 / Fraction(scale) for unit, scale in _HOURS.items()}
# By the end of an argument's name, the longest first: its unit, and what may be written for it.
_QUANTITIES: dict[str, tuple[str, Mapping[str, Fraction | int]]] = {
    **dict.fromkeys(("bytes_per_s", "bytes_per_s_a_rank"), ("B/s", _prefixed("B/s", _DECIMAL, _BINARY))),
    "flops_per_s": ("FLOP/s", _prefixed("FLOP/s", _DECIMAL)),
    "tokens_per_s": ("tokens/s", {"tokens/s": 1, **_A_SECOND}),
    "batches_per_s": ("batches/s", {"batches/s": 1, **_A_SECOND}),
    "errors_per_1e9_megabit_h": ("", {}),
    **dict.fromkeys(("usd_per_h", "usd_an_h"), ("USD/h", {"USD/h": 1})),
    "per_h": ("1/h", _AN_HOUR),
    "s_per_byte": ("s/B", {}),
    "joules_per_bit": ("J/bit", {}),
    **dict.fromkeys(("bytes_per_element", "bytes_per_element_saved"), ("B/element", _BYTES)),
    "bytes_per_parameter": ("B/parameter", _BYTES),
    "bytes_per_token": ("B/token", _BYTES),
    "tokens_per_parameter": ("tokens/parameter", {}),
    "flops_per_parameter": ("FLOP/parameter", _FLOPS),
    **dict.fromkeys(("bytes", "bytes_read", "bytes_used"), ("B", _BYTES)),
    "flops": ("FLOP", _FLOPS),
    "bits": ("bit", _prefixed("bit", _DECIMAL)),
    "usd": ("USD", {"USD": 1}),
    # As people write them: a 70B model, 15T tokens.
    "parameters": ("", _COUNTS),
    "tokens": ("", _COUNTS),
    **dict.fromkeys(("seconds", "s"), ("s", _SECONDS)),
    **dict.fromkeys(("hours", "h"), ("h", _HOURS)),
}


# What a name stands for, by the end of an argument's name: its parameters, its rate for products in 16 bits.
_NAMED: Mapping[str, Callable[[str], Any]] = {
    "parameters": lambda name: model(name).parameters,
    "flops_per_s": lambda name: chip(name).flops_per_s["bf16"].value,
}


def unit_of(argument: str) -> str:
    """`B/s` for `bytes_per_s`; "" for a pure number."""
    return _quantity(argument)[0]


def parse(argument: str, text: str) -> Any:
    """The value of an argument: `10e9`, `10GB`, `2us`, `[8, 8]`, `bf16`, `llama3-70b` for parameters, `h100` for
    FLOP/s.

    Whole numbers are integers, so that bytes stay exact.

    Raises:
      UsageError: a unit that is not the argument's, such as bits for bytes; no such model or chip.
    """
    found = re.fullmatch(r"([-+]?[\d_]*\.?\d+(?:[eE][-+]?\d{1,3})?)\s*([A-Za-z/]*)", text.strip())
    if not found:
        return _ending(argument, _NAMED, _other)(text)
    number, unit = found.groups()
    scales = _quantity(argument)[1]
    if unit and unit not in scales:
        expected = (
            f"a number or one with a unit of {', '.join(filter(None, scales))}" if scales else "a number without a unit"
        )
        raise UsageError(f"--set {argument}={text}: found the unit {unit!r}, expected {expected}")
    try:
        return _plain(Fraction(number.replace("_", "")) * (scales[unit] if unit else 1))
    except (OverflowError, ValueError):  # Beyond a float, or of more digits than Python reads.
        raise UsageError(f"--set {argument}={shorten(text, LONGEST)}: expected a number below 1e308") from None


def swept(settings: Mapping[str, str]) -> list[dict[str, str]]:
    """`p=2,4` with `n=1kB,1MB` are four settings, the last name varying fastest; a list in brackets is one value."""
    values = [[text] if text.lstrip().startswith("[") else text.split(",") for text in settings.values()]
    return [dict(zip(settings, point, strict=True)) for point in product(*values)]


def _quantity(argument: str) -> tuple[str, Mapping[str, Fraction | int]]:
    return _ending(argument, _QUANTITIES, ("", {}))


def _ending(argument: str, table: Mapping[str, T], otherwise: T) -> T:
    return next((entry for end, entry in table.items() if f"_{argument}".endswith(f"_{end}")), otherwise)


def _plain(value: Fraction) -> int | float:
    """NumPy takes integers of up to 64 bits."""
    return int(value) if value.denominator == 1 and abs(value) < 2**63 else float(value)


def _other(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
