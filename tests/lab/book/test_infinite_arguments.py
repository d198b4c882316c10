"""A formula of an argument without end gives its limit, or refuses in a line: never a number that is none."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import astuple, is_dataclass
from functools import cache
from itertools import product
from math import inf, isclose, isnan
from pkgutil import iter_modules
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import lab.book
from lab.book.advisor import first_guess
from lab.book.collectives import rounds_down, rounds_up
from lab.book.data_parallel import compute_to_sync
from lab.book.fleet import amdahl_speedup
from lab.book.loss import additive_loss
from lab.book.register import load

OF_OTHER_KINDS = {
    "batch_size:critical_batch_from": {"efficiency": 0.5, "batch_before": 8, "batch": 64},
    "batch_size:curved_noise_scale": {"hessian": np.eye(2), "covariance": np.eye(2), "gradient": np.ones(2)},
    "configuration:layouts": {"devices": 8, "menus": [[1, 2, 4], [2, 4]]},
    "context:causal_blocks": {"rank": 1, "ranks": 4},
    "device_mesh:groups": {"sizes": [2, 4], "axes": [1]},
    "investigation:interval_variation": {"times_s": [1.0, 2.0, 4.0]},
}
"""Arguments of functions that take more than a few numbers alike, and that no entry of the register works out."""


def formulas(module: str) -> dict[str, FunctionType]:
    """Public functions of a module of the book."""
    there = __import__(f"lab.book.{module}", fromlist=["book"])
    return {
        f"{module}:{name}": value
        for name, value in vars(there).items()
        if isinstance(value, FunctionType) and value.__module__ == there.__name__ and not name.startswith("_")
    }


MODULES = [one.name for one in iter_modules(lab.book.__path__) if one.name not in ("checks", "codec", "register")]


@cache
def worked() -> dict[str, dict[str, Any]]:
    """Arguments of the first worked number of each function of the register."""
    found: dict[str, dict[str, Any]] = {}
    for formula in (formula for part in load() for formula in part.formulas):
        for number in formula.worked:
            by_default = {name: value for name, value in formula.arguments.items() if value is not inspect._empty}
            found.setdefault(formula.function.removeprefix("lab.book."), {**by_default, **number.arguments})
    return found


def ordinary(name: str, function: Callable) -> dict[str, Any]:
    """Arguments that it takes."""
    if name in OF_OTHER_KINDS or name in worked():
        return OF_OTHER_KINDS.get(name) or worked()[name]
    asked = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    for number, listed in product((8, 2, 0.5, 4.0, 16, 100.0, 1), (False, True)):
        given = {
            p.name: [number] * 2
            if listed and ("Sequence" in str(p.annotation) or "ArrayLike" in str(p.annotation))
            else int(number)
            if str(p.annotation) == "int" and number >= 1
            else number
            for p in asked
        }
        try:
            function(**given)
        except (ValueError, TypeError, ArithmeticError, IndexError):
            continue
        return given
    raise AssertionError(f"{name}: no arguments found; add some to OF_OTHER_KINDS")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def with_first(value: Any, first: float) -> Any:
    """The number, or the first one of a list, replaced; None where it is neither."""
    if is_number(value):
        return first
    numbers = isinstance(value, (list, tuple, np.ndarray)) and np.asarray(value, dtype=object).ndim == 1
    return [first, *value[1:]] if numbers and len(value) and is_number(value[0]) else None


def numbers(value: Any) -> list[float]:
    """All that a result is made of."""
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if is_dataclass(value):
        return numbers(astuple(value))
    if isinstance(value, (tuple, list)):
        return [number for one in value for number in numbers(one)]
    return [] if isinstance(value, str) or value is None else [float(one) for one in np.ravel(value)]


def problem(name: str, function: Callable, given: dict[str, Any]) -> str | None:
    """Why what it does is neither an answer nor a refusal that names an argument."""
    try:
        found = function(**given)
    except ValueError as refused:
        return None if "=" in str(refused) else f"{name}({given}): {refused}"
    except (TypeError, ArithmeticError, IndexError) as error:
        return f"{name}({given}): {error!r}"
    return f"{name}({given}) is nan" if any(map(isnan, numbers(found))) else None


def replaced(given: dict[str, Any], value: float) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in given.items():
        if (other := with_first(one, value)) is not None:
            yield name, given | {name: other}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinite_argument_or_none_at_all_is_answered_by_a_number_or_refused_by_name(module):
    problems = []
    for name, function in formulas(module).items():
        given = ordinary(name, function)
        tried = [one for value in (0, inf) for _, one in replaced(given, value)]
        tried += [both for one in tried[len(tried) // 2 :] for value in (0, 1) for _, both in replaced(one, value)]
        problems += [found for one in tried if (found := problem(name, function, one))]
    assert problems == []


LARGE = {"loss": (1e100, 1e200)}
"""Where a power of a tenth or less takes longer to get near its limit than from 10^12 to 10^15."""


def limit_problem(large: tuple[float, float], function: Callable, given: dict[str, Any], name: str) -> str | None:
    """Where its value at infinity is not the one to which large arguments lead."""

    def at(value: float) -> list[float]:
        return numbers(function(**(given | {name: with_first(given[name], value)})))

    try:
        ends = at(inf)
    except ValueError:
        return None
    before, after = map(at, large)
    for end, one, other in zip(ends, before, after, strict=True):
        if not (abs(one) < abs(other) if abs(end) == inf else isclose(other, end, rel_tol=1e-9, abs_tol=abs(one) / 9)):
            return f"{name}: {one} at {large[0]}, {other} at {large[1]}, {end} at infinity"
    return None


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_answered_for_infinity_is_the_limit_of_large_arguments(module):
    problems = [
        f"{formula}, {found}"
        for formula, function in formulas(module).items()
        for given in [ordinary(formula, function)]
        for name, _ in replaced(given, inf)
        if (found := limit_problem(LARGE.get(module, (10**12, 10**15)), function, given, name))
    ]
    assert problems == []


def test_limits_that_formulas_state_are_given():
    assert compute_to_sync(8, inf, 2, 1e12, 1e9) == 3 * 8 * 1e9 / (2 * 1e12)
    assert (amdahl_speedup(inf, 0.1), amdahl_speedup(inf, 0)) == (10, inf)
    assert additive_loss(inf, inf) == 1.69


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
