"""A formula of an endless number of ranks gives its limit, or refuses in a line: never a number that is none."""

import inspect
from collections.abc import Callable
from math import inf, isnan
from pkgutil import iter_modules
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import lab.book
from lab.book.advisor import first_guess
from lab.book.collectives import rounds_down, rounds_up
from lab.book.data_parallel import compute_to_sync

COUNTS = ("ranks", "stages", "pipe", "replicas", "nodes", "micro_batches", "ulysses", "chunks", "experts", "devices")


def functions() -> dict[str, FunctionType]:
    modules = (__import__(f"lab.book.{module.name}", fromlist=["book"]) for module in iter_modules(lab.book.__path__))
    return {
        f"{module.__name__}:{name}": value
        for module in modules
        for name, value in list(vars(module).items())
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }


OF_COUNTS = {
    name: function
    for name, function in functions().items()
    if set(COUNTS) & set(inspect.signature(function).parameters) and "checks:" not in name
}


def arguments(function: Callable) -> dict[str, Any] | None:
    """Arguments that it takes; None where these tries give none."""
    asked = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    for number in (8, 2, 0.5, 4.0, 16, 100.0, 1):
        given = {p.name: int(number) if str(p.annotation) == "int" and number >= 1 else number for p in asked}
        try:
            function(**given)
        except (ValueError, TypeError, ArithmeticError, IndexError):
            continue
        return given
    return None


def given_or_refused(function: Callable, given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except ValueError as refused:
        return str(refused)


def is_no_number(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(is_no_number, value))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return bool(np.isnan(value).any())
    return isinstance(value, float) and isnan(value)


@pytest.mark.parametrize("name", OF_COUNTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinite_count_gives_a_limit_or_is_refused_by_its_name(name):
    function = OF_COUNTS[name]
    given = arguments(function)
    if given is None:
        pytest.skip("takes arguments of another kind")
    for count in set(COUNTS) & set(inspect.signature(function).parameters):
        found = given_or_refused(function, given | {count: inf})
        assert "=" in found if isinstance(found, str) else not is_no_number(found), count


def test_rounds_are_exact_beyond_what_a_float_holds():
    assert (rounds_down(2**100 - 1), rounds_down(2**100), rounds_up(2**100), rounds_up(2**100 + 1)) == (
        99,
        100,
        100,
        101,
    )


def test_one_rank_has_no_sync_to_compare_with():
    with pytest.raises(ValueError, match="ranks=1: expected 2 or above"):
        compute_to_sync(8, 1, 2, 1e12, 1e9)


def test_a_first_guess_for_one_device_is_one_device():
    guess = first_guess(7 * 10**9, 32, 4096, 32, 1, 2048, 8, 80e9)
    assert (guess.data, guess.pipe, guess.tensor) == (1, 1, 1)
