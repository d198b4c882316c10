"""What errors come to in a line."""

import pytest

from lab.meshes.errors import no_such, one_line


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_whose_text_raises_is_its_type():
    assert one_line(Unspeakable()) == "Unspeakable"


STACK = """INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):
  File "model.py", line 3, in step
    fails()
KeyError: 'w'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "model.py", line 5, in step
    raise ValueError("no weights")
ValueError: no weights

--------------------
For simplicity, JAX has removed its internal frames from the traceback."""


@pytest.mark.parametrize(
    "text, line",
    [
        (STACK, "ValueError: no weights"),
        ("--------------------\n\nShapes differ.\nmore", "Shapes differ."),
        ("Mismatch details (1 found):\n  another tree\nmore", "Mismatch details (1 found): another tree"),
        ("RESOURCE_EXHAUSTED: no room\n\nstack", "RESOURCE_EXHAUSTED: no room"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("", "ValueError"),
    ],
)
def test_an_error_is_its_own_line_and_not_its_stack(text, line):
    assert one_line(ValueError(text)) == line


def test_a_long_error_is_cut_between_words_with_a_mark():
    said = one_line(ValueError("word " * 100))
    assert said.endswith("word ...") and len(said) <= 240


@pytest.mark.parametrize(
    "name, known, said",
    [
        ("h10", ["a100", "h100"], "no chip 'h10'; did you mean h100? known are a100, h100"),
        ("H100", ["a100", "h100"], "no chip 'H100'; did you mean h100 or a100? known are a100, h100"),
        ("zero", ["ch20_zero1", "ch14"], "no chip 'zero'; did you mean ch20_zero1? known are ch20_zero1, ch14"),
        ("nothing", ["a100", "h100"], "no chip 'nothing'; known are a100, h100"),
        ("nothing", [], "no chip 'nothing'; known are none"),
        (None, ["lax"], "no chip None; known are lax"),
    ],
)
def test_close_names_come_first(name, known, said):
    assert str(no_such("chip", name, known)) == said


def test_many_names_are_left_to_the_command_that_lists_them():
    known = [f"ch{number}_zero" for number in range(40)]
    assert str(no_such("experiment", "ch7_zer", known, shown_by="lab list")).endswith("? (lab list shows all)")
    assert str(no_such("experiment", "x", known, shown_by="lab list")) == "no experiment 'x'; lab list shows all"
