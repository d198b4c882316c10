"""The page of behaviours says what the catalogue says."""

from lab.report.behaviours import page
from lab.settle import CATALOGUE
from tests.paths import ROOT

PAGE = ROOT / "docs" / "compiler_behaviours.md"


def test_the_page_in_docs_is_the_catalogue_written_out():
    assert PAGE.read_text() == page()


def test_each_behaviour_has_one_row():
    rows = [line.split(" | ")[0] for line in page().splitlines() if line.startswith("| ") and line[2].isupper()]
    assert sorted(rows) == sorted(f"| {b.id}" for b in CATALOGUE)
