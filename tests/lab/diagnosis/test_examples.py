"""The programs that `lab explain` shows have the findings that they are shown for."""

import importlib

import pytest

from lab import diagnosis
from lab.compile import inspection
from lab.diagnosis import KINDS
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from tests.lab.diagnosis.diagnosing import kinds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_the_smallest_program_of_a_kind_has_that_finding_and_no_other(kind):
    axes = Axes.parse(kind.mesh)
    target = parse_target(kind.target or f"cpu:{axes.size}")
    if not plugins.installed(target.platform):
        pytest.skip(f"the {target.platform} plugin is not installed")
    mesh = make_mesh(target, axes)
    function, args = importlib.import_module(f"lab.diagnosis.examples.{kind.name}").build(mesh)
    found = diagnosis.of(inspection.read_program(function, args, mesh, target, source=kind.name))
    assert kinds(found) == [kind.name]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_says_what_it_costs_and_what_to_do(kind):
    assert all(text.endswith(".") and len(text) > 10 for text in (kind.costs, kind.cure))
