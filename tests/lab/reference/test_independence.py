"""What judges a step shares nothing with it."""

import ast
from dataclasses import fields

import pytest

from lab.programs.models.shape import DecoderShape
from tests.paths import ROOT
from tests.rooms import imported

MODULES = sorted((ROOT / "lab/reference").glob("*.py"))
SIZES = {field.name for field in fields(DecoderShape)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_reference_knows_nothing_of_the_programs_but_their_sizes(path):
    own = {name for name in imported(path) if name.startswith("lab.") and not name.startswith("lab.reference.")}
    assert own <= {"lab.programs.models.shape.DecoderShape"}
    assert not {name for name in imported(path) if name.split(".")[0] in ("jax", "flax", "optax")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_reference_takes_sizes_as_they_were_set_and_nothing_that_a_shape_derives(path):
    taken = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "shape"
    }
    assert taken <= SIZES
