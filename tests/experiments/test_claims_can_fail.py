"""A claim that says nothing of a formula's value says so; every other fails where the formula, or what the compiler
made, is another.

Each is asked of the transfers that theory predicts, so that nothing is compiled: once as it stands, once with every
transfer twice as large, twice as frequent, or the FLOPs doubled, and once with each formula of `lab.book` wrong that it
calls. A comparison of measured with measured holds through all of these.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import cache, wraps
from itertools import product
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.experiment import Experiment
from lab.harness.question import Question
from lab.harness.registry import load, names
from lab.meshes.targets import parse_target
from tests import long_tests

Places = list[tuple[ModuleType, str]]
COUNTED_BY_COMPILER = {"ch17_window", "ch17_zigzag", "ch23_redistribution"}
"""Claims of these read FLOPs, which no prediction has, or compile programs of their own."""

SIMULATED = {"ch16_interleaving", "ch16_schedules", "ch16_zero_bubble", "ch31a_dualpipe"}
"""These simulate schedules each time that they are asked, for half a minute or more in all."""


def asks_without_compiling(name: str) -> bool:
    entry = load(name)
    is_question = isinstance(entry, Question) and entry.is_quick and not entry.targets
    return is_question or (isinstance(entry, Experiment) and name not in COUNTED_BY_COMPILER)


def asked(name: str, ledger: Ledger | None) -> tuple[Claim, ...]:
    entry = load(name)
    if ledger is None:
        return entry.claims(entry.parameters)
    return entry.claims(entry.parameters, entry.axes(parse_target(entry.targets[0])), ledger)


@cache
def predicted(name: str) -> Ledger | None:
    entry = load(name)
    if isinstance(entry, Question):
        return None
    return entry.predict(entry.parameters, entry.axes(parse_target(entry.targets[0])))


def scaled(ledger: Ledger, larger: int = 1, more: int = 1) -> Ledger:
    def one(transfer):
        parts = tuple(replace(part, payload_bytes=larger * part.payload_bytes) for part in transfer.parts)
        size, times = larger * transfer.payload_bytes, more * transfer.executions
        return replace(transfer, payload_bytes=size, executions=times, parts=parts)

    return replace(ledger, transfers=tuple(map(one, ledger.transfers)))


def formulas() -> dict[FunctionType, Places]:
    """Public functions of the book, and where else in the lab they are called by name."""
    found: dict[FunctionType, Places] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("lab.") and not name.startswith("lab.book"):
            for key, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value.__module__.startswith("lab.book."):
                    found.setdefault(value, []).append((module, key))
    return found


@contextmanager
def replaced(places: Places, by: Callable) -> Iterator[None]:
    before = [getattr(*place) for place in places]
    for module, key in places:
        setattr(module, key, by)
    try:
        yield
    finally:
        for (module, key), function in zip(places, before, strict=True):
            setattr(module, key, function)


def called(ask: Callable[[], object]) -> list[tuple[FunctionType, Places]]:
    """The formulas that asking calls."""
    seen = set()

    def recorder(function):
        @wraps(function)
        def record(*args, **kwargs):
            seen.add(function)
            return function(*args, **kwargs)

        return record

    every = formulas()
    originals = [(module, key, getattr(module, key)) for places in every.values() for module, key in places]
    try:
        for function, places in every.items():
            for module, key in places:
                setattr(module, key, recorder(function))
        ask()
    finally:
        for module, key, function in originals:
            setattr(module, key, function)
    return [(function, every[function]) for function in seen]


def larger(value: Any) -> Any:
    return changed(value, lambda number: 2 * number + 1)


def smaller(value: Any) -> Any:
    return changed(value, lambda number: number // 3 if isinstance(number, int) else number / 3)


def changed(value: Any, by: Callable) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, Fraction, np.number)) or (
        isinstance(value, np.ndarray) and value.dtype != object
    ):
        return by(value)
    if type(value) in (tuple, list):
        return type(value)(changed(one, by) for one in value)
    return {key: changed(one, by) for key, one in value.items()} if isinstance(value, dict) else value


def verdicts(ask: Callable[[], tuple[Claim, ...]]) -> list[str] | None:
    """None where a wrong formula is refused instead."""
    try:
        return [str(claim.verdict) for claim in ask()]
    except (ArithmeticError, ValueError, LookupError, AssertionError, TypeError):
        return None


def mutants(name: str) -> Iterator[list[str]]:
    ledger = predicted(name)
    if ledger is not None:
        for sizes in ({"larger": 2}, {"more": 2}):
            yield verdicts(lambda sizes=sizes: asked(name, scaled(ledger, **sizes))) or []
    for wrong, (function, places) in product((larger, smaller), called(lambda: asked(name, ledger))):

        def mutant(*args, function=function, wrong=wrong, **kwargs):
            return wrong(function(*args, **kwargs))

        with replaced(places, mutant):
            yield verdicts(lambda: asked(name, ledger)) or []


@cache
def never_changed(name: str) -> list[Claim]:
    """Confirmed claims, and surprises, that no mutant decides otherwise."""
    claims = asked(name, predicted(name))
    survivors = {number for number, claim in enumerate(claims) if claim.verdict != "calculated" and not claim.disputed}
    for found in mutants(name):
        if not survivors:
            break
        if len(found) == len(claims):
            survivors = {number for number in survivors if found[number] == claims[number].verdict}
    return [claims[number] for number in sorted(survivors)]


@pytest.mark.compiles
@pytest.mark.parametrize("name", names())
def test_claims_that_no_wrong_formula_refutes_are_those_that_say_that_they_are_structural(name):
    if not asks_without_compiling(name):
        pytest.skip("its claims are of programs that it compiles, or of trainings")
    if name in SIMULATED and not long_tests.ASKED_FOR:
        pytest.skip(f"takes half a minute or more; {long_tests.NAME}=1 asks it, too")
    structural = [claim for claim in asked(name, predicted(name)) if claim.structural]
    assert [(claim.id, claim.statement) for claim in never_changed(name)] == [(c.id, c.statement) for c in structural]


def test_a_comparison_of_measured_with_measured_is_found_out(monkeypatch):
    """The claim of the book's fifth exercise without the formula, as it once was."""
    module = importlib.import_module("lab.experiments.ch11_primitives")

    def of_measured_alone(n, P, found):
        same = found[module.PAIRWISE].wire_bytes == found[module.ALL_GATHER].wire_bytes
        return module.decided("ch11.ex5", same, "", statement="all_to_all and all_gather send the same")

    monkeypatch.setattr(module, "_transpose", of_measured_alone)
    assert "ch11.ex5" in [claim.id for claim in never_changed.__wrapped__("ch11_primitives")]
