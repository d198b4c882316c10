"""A text that is cut, or of which lines are missing, is read or refused in one line; it never breaks the reader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.meshes.errors import UsageError
from tests.hlo_corpus.corpus import CORPUS

COMPILED = CORPUS.parent / "cases" / "compiled"
TEXTS = sorted(COMPILED.glob("c[1-4]1/*.hlo"))
pytestmark = pytest.mark.skipif(
    not TEXTS, reason="the compiled texts of the cases, ../shared/cases/compiled, are absent"
)
texts = st.sampled_from(TEXTS).map(lambda path: path.read_text())


def read_or_refused(text: str) -> Ledger | None:
    try:
        return read_text(text)
    except UsageError as refusal:
        message = str(refusal)
    assert "\n" not in message
    return None


@pytest.mark.parametrize("name", ["c27/010.hlo", "c27/012.hlo"])
def test_a_text_cut_after_any_character_is_read_or_refused(name):
    text = (COMPILED / name).read_text()
    for end in range(len(text)):
        read_or_refused(text[:end])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_a_text_without_some_of_its_lines_is_read_or_refused(text, shares):
    lines = text.splitlines()
    missing = {int(share * len(lines)) for share in shares}
    read_or_refused("\n".join(line for number, line in enumerate(lines) if number not in missing))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_text_without_the_head_or_end_of_any_one_computation_is_read_or_refused(path):
    """Two computations then run into one, which may call itself."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line == "}" or line.endswith("{"):
            read_or_refused("\n".join(lines[:number] + lines[number + 1 :]))
