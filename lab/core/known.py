"""Values that may be unknown in general, and are known where they are used."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """The value. None is a mistake of the caller, who knows that there is one: executions of a predicted transfer, the
    memory of a program that XLA compiled here.

    Raises:
      AssertionError: there is none.
    """
    if value is None:
        raise AssertionError("expected a value that is known here, found None")
    return value
