"""How values show themselves in a terminal and in a notebook. A ledger does not know its printers: `lab` itself
registers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lab.core.printable import printable


class Printers(Protocol):
    """`lab.report.show`: functions by the type of what they show."""

    def text(self, value: object, /) -> str: ...

    def html(self, value: object, /) -> str: ...


_load: Callable[[], Printers] | None = None


def register(load: Callable[[], Printers]) -> None:
    """From now on `load()` gives the printers, when something is first shown."""
    global _load
    _load = load


def text(value: object) -> str:
    return printable(repr(value) if _load is None else _load().text(value))


def html(value: object) -> str | None:
    """For `_repr_html_`; None, and a notebook falls back on text, where no printers are registered."""
    return None if _load is None else _load().html(value)
