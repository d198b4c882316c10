"""Changes to the lab's code change it, are seen by what names the place, and the few that change nothing still exist."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_tests import long_but
from tests.mutants.__main__ import drawn
from tests.mutants.judge import GROUPS, Outcome, equivalents, group_of, judge, judges_of, key
from tests.mutants.mutation import mutated, mutations
from tests.paths import ROOT
from tests.rooms import modules

SOURCE = '''
"""A module."""
LIMIT: int = 4


def f(a: int, b=(1, 2)) -> int:
    """Says what it does.

    And more.
    """
    if a < 0:
        raise ValueError(f"{a + 1} is {1}")
    return a * b[0] if a > LIMIT and not b else min(a, 3)
'''


@pytest.fixture
def module(tmp_path) -> Path:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    return path


def test_operators_comparisons_numbers_and_refusals_are_changed_and_texts_and_types_are_not(module):
    found = mutations("module", module)
    assert [(m.before, m.after) for m in found] == [
        ("4", "8"),
        ("1", "2"),
        ("2", "4"),
        ("if a < 0:", "pass"),
        ("a < 0", "a <= 0"),
        ("0", "1"),
        ("a * b[0] if a > LIMIT and (not b) else min(a, 3)", "min(a, 3) if a > LIMIT and (not b) else a * b[0]"),
        ("a > LIMIT and (not b)", "a > LIMIT or not b"),
        ("a > LIMIT", "a >= LIMIT"),
        ("not b", "b"),
        ("a * b[0]", "a + b[0]"),
        ("0", "1"),
        ("min(a, 3)", "max(a, 3)"),
        ("3", "6"),
    ]
    assert {m.function for m in found} == {"", "f"} and found[-1].statement == "Says what it does."


def test_each_change_gives_another_program(module):
    unchanged = ast.unparse(ast.parse(SOURCE))
    texts = [ast.unparse(mutated(module, m.number)) for m in mutations("module", module)]
    assert unchanged not in texts and len(set(texts)) == len(texts)


def test_a_change_is_made_in_memory_where_the_module_is_imported():
    (ring,) = [
        m
        for m in mutations("lab.book.collectives", modules()["lab.book.collectives"])
        if (m.function, m.before) == ("all_gather_wire_bytes", "payload_bytes - ratio(payload_bytes, ranks)")
    ]
    program = "import tests.mutants.plugin\nfrom lab.book.collectives import *\nprint(all_gather_wire_bytes(800, 8))"
    answers = [
        subprocess.run(
            [sys.executable, "-c", lines],
            cwd=ROOT,
            env=os.environ | {"MUTANT": f"{ring.module}:{ring.number}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for lines in (program, program.partition("\n")[2])
    ]
    assert answers == ["900\n", "700\n"]


@pytest.mark.slow
def test_every_part_of_a_verdict_is_drawn_from_alike_and_a_seed_draws_the_same():
    some = ("rules", "FLOPs and time")
    found = drawn(3, 10, some)
    assert {name: sum(group_of(m.module) == name for m in found) for name in some} == dict.fromkeys(some, 5)
    assert found == drawn(3, 10, some) != drawn(4, 10, some)


@pytest.mark.slow
def test_every_module_that_is_changed_has_tests_that_name_it_or_stand_where_it_does():
    assert [m for m in modules() if group_of(m) and not any(judges_of(m)[:2]) and mutations(m, modules()[m])] == []


def test_a_change_that_is_said_to_change_nothing_exists():
    known = {key(m) for module in {k[0] for k in equivalents()} for m in mutations(module, modules()[module])}
    assert set(equivalents()) - known == set()


@pytest.mark.slow
def test_a_failure_counts_where_the_unchanged_program_passes(monkeypatch, tmp_path):
    failing = tmp_path / "test_failing.py"
    failing.write_text("def test_it():\n    assert 1 > 2\n")
    monkeypatch.setattr("tests.mutants.judge.judges_of", lambda module: [[failing]])
    anything = mutations("lab.book.collectives", modules()["lab.book.collectives"])[0]
    assert judge(anything).outcome is Outcome.UNDECIDED
    failing.write_text(
        "from hypothesis import given, strategies\n@given(strategies.integers())\ndef test_it(n):\n    pass\n"
    )
    assert judge(anything).outcome is Outcome.SURVIVED


SAMPLE = {
    "formulas of the book": ("lab.book.offloading", "compressed_s", "payload_bytes / codec_bytes_per_s"),
    "predictions": ("lab.collectives.cost", "AlphaBeta.seconds", "float(message_bytes) / self.bytes_per_s"),
    "programs": (
        "lab.collectives.double_tree",
        "_down_trees",
        "max(firsts.values(), default=-1) + 2 * (slices - 1)",
    ),
    "rules": ("lab.settle.hints", "_changes", "getattr(term.provenance, name) == getattr(UNSTATED, name)"),
    "reader": ("lab.hlo.integrity", "_check_calls", "i.opcode == 'conditional'"),
    "FLOPs and time": ("lab.measure.rates.curves", "Curve.seconds", "count >= sizes[-1]"),
}
"""One change of each group that a quick test sees."""


@pytest.mark.compiles
@pytest.mark.parametrize("group", long_but(["rules"], GROUPS))
def test_a_change_to_each_part_of_a_verdict_is_seen(group):
    module, *place = SAMPLE[group]
    (change,) = [m for m in mutations(module, modules()[module]) if [m.function, m.before] == place]
    judged = judge(change)
    assert (group_of(module), judged.outcome) == (group, Outcome.SEEN), judged.by
    assert judged.by.startswith("FAILED tests/")
