"""Tables and sentences on terminals of any width: nothing is cut, and no word is broken."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.report.fitted import Column, sentences, table, terminal_width

WORDS = ("all_gather", "fsdp", "1,024", "layers/mlp/up", "model.py:88", "the", "result's", "parts", "0 B")
CELLS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


@st.composite
def columns(draw):
    rows = draw(st.integers(0, 4))
    cells = st.lists(CELLS, min_size=rows, max_size=rows).map(tuple)
    column = st.builds(Column, st.sampled_from(("kind", "payload each", "compile\nseconds")), cells)
    return draw(st.lists(column, min_size=1, max_size=12))


@settings(max_examples=40, deadline=None)
@given(columns(), st.integers(30, 200))
def test_on_a_terminal_every_word_is_whole_and_no_line_is_too_long(some, width):
    shown = table(some, width)
    assert max(map(len, shown.splitlines())) <= width
    told = [word for column in some for text in column.cells for word in text.split()]
    words = shown.replace(",\n", "\n").replace(", ", " ").split()
    assert all(words.count(word) >= told.count(word) for word in told)


@settings(max_examples=20, deadline=None)
@given(columns())
def test_in_a_pipe_a_row_is_a_line(some):
    shown = table(some, None).split("\n")
    deepest = max(column.heading.count("\n") + 1 for column in some)
    assert len(shown) == deepest + 1 + len(some[0].cells)


def test_columns_that_find_no_room_stand_below_their_row_with_their_headings():
    some = [
        Column("kind", ("all_gather", "all_reduce")),
        Column("wire a step", ("688.1 kB", "1.376 MB"), is_number=True),
        Column("read\nphase", ("forward", "")),
        Column("origin", ("model.py:88", "model.py:90")),
    ]
    assert table(some, 30) == (
        "kind        wire a step\n"
        "───────────────────────\n"
        "all_gather     688.1 kB\n"
        "    read phase forward, origin\n"
        "    model.py:88\n"
        "all_reduce     1.376 MB\n"
        "    origin model.py:90"
    )


def test_a_terminal_that_says_it_has_one_column_is_written_to_all_the_same(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "1")
    some = [Column("kind", ("all_gather",)), Column("origin", ("model.py:88",)), Column("phase", ("forward",))]
    assert "all_gather" in table(some, terminal_width())


def test_a_pipe_for_which_columns_is_set_gets_lines_of_that_length(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None
    monkeypatch.setenv("COLUMNS", "100")
    assert terminal_width() == 100


def test_a_path_that_is_longer_than_a_line_is_broken_after_a_slash():
    assert sentences(
        "at /home/someone/a_long_folder/model.py:88", 24
    ) == "at /home/someone/\na_long_folder/model.py:88".replace(
        "a_long_folder/model.py:88", "a_long_folder/\nmodel.py:88"
    )


def test_a_number_and_its_unit_stay_together_and_a_list_hangs_below_its_number():
    text = "1. kept_whole: 524,288 B a device\n   of which 0 B are in place"
    assert sentences(text, 24) == "1. kept_whole: 524,288 B\n   a device\n   of which 0 B are in\n   place"
    assert sentences(text, None) == text
