"""What an experiment's parameters are, from their docstrings."""

from dataclasses import dataclass, fields

import pytest

from lab.harness.registry import load, names
from lab.harness.settings import Setting, explained, listed
from lab.programs.models.shape import DecoderShape


@dataclass(frozen=True)
class Base:
    """Sizes.

    Attributes:
      layers: of a stack
        or of two (Vaswani et al. 2017). Not more.
    """

    layers: int = 4


@dataclass(frozen=True)
class Own(Base):
    """Sizes of a step,
    and more.

    Attributes:
      rows, columns: of a matrix.
    Raises:
      ValueError: none.
    """

    rows: int = 2
    columns: float = 0.5
    other: str = "a"


def test_fields_stand_with_their_defaults_and_the_first_sentence_of_what_they_are():
    assert list(listed(Own(rows=3))) == [
        Setting("layers", 4, "of a stack or of two (Vaswani et al. 2017)"),
        Setting("rows", 3, "of a matrix"),
        Setting("columns", 0.5, "of a matrix"),
        Setting("other", "a", ""),
    ]
    assert explained(Own()) == "Sizes of a step, and more."


@pytest.mark.parametrize("name", ["ch24_3d", "ch34_published", "ch14_training"])
def test_every_size_of_a_decoder_is_explained_and_preset_names_all_at_once(name):
    parameters = load(name).parameters
    found = list(listed(parameters))
    named_by = ["preset"] if name != "ch34_published" else []
    assert [each.name for each in found] == [*named_by, *(each.name for each in fields(parameters))]
    assert [each.name for each in found if each.default is None] == named_by
    assert isinstance(parameters, DecoderShape) and all(each.meaning for each in found)


def test_parameters_without_a_line_each_are_explained_together():
    for name in names():
        parameters = load(name).parameters
        assert all(each.meaning for each in listed(parameters)) or explained(parameters), name
