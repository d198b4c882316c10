"""Commands that are modules, under the names that documents of before know them by."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("lab.tour.ahead --help", "Usage: python -m lab.tour.ahead [OPTIONS] RECORD"),
        ("lab.redistribution.table --help", "Usage: python -m lab.redistribution.table [OPTIONS] PATH"),
        ("lab.report.behaviours", "# What compilers do to a ledger, and what to do about it"),
        ("lab targets", "tpu:v5p:2x2x4"),
    ],
)
def test_modules_run_under_the_names_that_they_had(arguments, said):
    answer = subprocess.run([sys.executable, "-m", *arguments.split()], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert said in answer.stdout
