"""Larger cases of what smaller ones see each time: LAB_LONG_TESTS=1 runs them, too."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

NAME = "LAB_LONG_TESTS"
ASKED_FOR = bool(os.environ.get(NAME))
long = pytest.mark.skipif(not ASKED_FOR, reason=f"takes long, and a smaller case is run; {NAME}=1 runs it, too")


def one_in(n: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of `pytest.mark.parametrize`: every n-th each day, the others long."""
    return [case if at % n == 0 else _long(case) for at, case in enumerate(cases)]


def long_but(everyday: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases of `pytest.mark.parametrize`: these each day, the others long."""
    kept = list(everyday)
    return [case if case in kept else _long(case) for case in cases]


def _long(case: Any) -> Any:
    return pytest.param(*case, marks=long) if type(case) is tuple else pytest.param(case, marks=long)
