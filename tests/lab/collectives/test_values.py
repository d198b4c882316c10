"""Every algorithm gives what NumPy gives, bit for bit, and its compiled program sends what its cost states."""

import subprocess
import sys

import pytest

from lab.meshes.axes import Axes
from tests.lab.collectives.sweep import cases, wrong
from tests.long_tests import long
from tests.paths import ROOT

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, *(pytest.param(ranks, marks=long) for ranks in (4, 5, 7))])
def test_every_algorithm_is_exact_in_values_and_ledger_over_one_axis_of(ranks):
    axes = Axes(("data",), (ranks,))
    assert list(wrong(axes, cases(axes))) == []


@pytest.mark.parametrize("ranks", ["9", pytest.param("16", marks=long)])
def test_every_algorithm_is_exact_in_values_and_ledger_over_more_ranks_than_8(ranks):
    run = subprocess.run(
        [sys.executable, "-m", "tests.lab.collectives.sweep", ranks], cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_flat_algorithms_are_exact_in_values_and_ledger_over_two_axes_as_one():
    axes = Axes(("data", "tensor"), (2, 4))
    assert (
        list(
            wrong(axes, cases(axes, lambda _, algorithm: algorithm in ("lax", "ring", "doubling", "circulant", "tree")))
        )
        == []
    )


@pytest.mark.parametrize("sizes", [(2, 4), (3, 2), (2, 2, 2), (1, 3)])
def test_algorithms_by_axes_are_exact_in_values_and_ledger(sizes):
    axes = Axes(("data", "fsdp", "tensor")[: len(sizes)], sizes)
    chosen = cases(axes, lambda _, algorithm: algorithm in ("hierarchical", "split_hierarchical", "ring_tree", "torus"))
    assert list(wrong(axes, chosen)) == []
