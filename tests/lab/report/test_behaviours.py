"""The page of behaviours says what the catalogue says."""

from lab.report.behaviours import page
from lab.settle import CATALOGUE, NOTES
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "compiler_behaviours.md").read_text()


def test_every_line_of_the_page_in_docs_is_what_the_catalogue_says_now():
    assert "\n| X7 | " in PAGE and set(PAGE.splitlines()) <= set(page().splitlines())


def test_each_behaviour_has_one_row():
    rows = [line.split(" | ")[0] for line in page().splitlines() if line.startswith("| ") and line[2].isupper()]
    assert sorted(rows) == sorted(f"| {entry.id}" for entry in (*CATALOGUE, *NOTES))
