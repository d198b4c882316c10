"""Values that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):
    """`functools.cached_property` without the lock that it takes before Python 3.12: a text has tens of thousands."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = self._compute(instance)
        object.__setattr__(instance, self._name, value)  # Frozen ones, too; `__dict__` would be made for this alone.
        return value


def share_keys(example: object) -> None:
    """Has Python keep the values of `example`'s class, lazy ones as well, in one table of names; an object to which a
    name is new that few have, gets a table of its own, for 200 bytes."""
    for name, value in vars(type(example)).items():
        if isinstance(value, lazy):
            object.__setattr__(example, name, None)
