"""`python -O` drops assert statements; what the lab judges stays judged."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

WRONG = """
from dataclasses import replace
import jax
from lab.harness import suite
from lab.meshes.targets import parse_target
from lab.harness.run import run

target = parse_target("cpu:8")
(experiment,) = suite.load(["ch15_split_products"], [target])
right = experiment.reference

def wrong(kind):
    def reference(parameters):
        of = right(parameters)
        change = {"twice": lambda x: 2 * x, "not finite": lambda x: x * float("nan")}[kind]
        return lambda *args: jax.tree.map(change, of(*args))
    return reference

assert False, "assertions are on"
for kind in ("twice", "not finite"):
    found = run(replace(experiment, reference=wrong(kind)), target=target, style="explicit")
    print(kind, found.verdict, found.failure)
"""


@pytest.mark.compiles
def test_a_program_with_wrong_numbers_is_refused_without_assertions_too():
    done = subprocess.run(
        [sys.executable, "-O", "-c", WRONG], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    twice, not_finite = done.stdout.splitlines()
    assert twice.startswith("twice failed results differ")
    assert not_finite.startswith("not finite failed the results of one device are not finite")
