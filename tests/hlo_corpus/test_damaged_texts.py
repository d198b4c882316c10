"""A text that is cut, or of which lines are missing, is read or refused in one line; it never breaks the reader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.core.ledger import Kind, Ledger
from lab.hlo import read_text
from lab.meshes.errors import UsageError
from tests.hlo_corpus.corpus import OURS, one_of_each_form, theirs

TEXTS = {**OURS, **theirs("cases/compiled/c[1-4]1/*.hlo")}
texts = st.sampled_from(sorted(TEXTS)).map(lambda name: TEXTS[name]())


def read_or_refused(text: str) -> Ledger | None:
    try:
        return read_text(text)
    except UsageError as refusal:
        message = str(refusal)
    assert "\n" not in message
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pmap.cpu", "ppermute_x.gpu", "psum_scatter_x.tpu"])
def test_a_text_cut_after_any_character_is_read_or_refused(name):
    text = TEXTS[name]()
    for end in range(len(text)):
        read_or_refused(text[:end])


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_a_text_without_some_of_its_lines_is_read_or_refused(text, shares):
    lines = text.splitlines()
    missing = {int(share * len(lines)) for share in shares}
    read_or_refused("\n".join(line for number, line in enumerate(lines) if number not in missing))


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each_form())
def test_a_text_without_the_head_or_end_of_any_one_computation_is_read_or_refused(name):
    """Two computations then run into one, which may call itself. Of very many, some fifty."""
    lines = TEXTS[name]().splitlines()
    borders = [number for number, line in enumerate(lines) if line == "}" or line.endswith("{")]
    for number in borders[:: 1 + len(borders) // 100]:
        read_or_refused("\n".join(lines[:number] + lines[number + 1 :]))


@pytest.mark.parametrize(
    ("name", "payload"), [("layers_scanned.tpu", 64 * 128 * 2), ("layers_scanned.gpu", 64 * 128 * 4)]
)
def test_a_text_that_ends_before_its_entry_gives_the_gather_of_its_loop_of_unknown_executions(name, payload):
    """Hidden values [64, 128], in bf16 on TPUs."""
    found = read_text(TEXTS[name]().partition("\nENTRY")[0])
    assert (found.totals().payload_bytes, found.totals().lower_bound) == (0, True)
    assert [(t.kind, t.payload_bytes, t.executions) for t in found.transfers] == [(Kind.ALL_GATHER, payload, None)]
    assert any("executions cannot be known" in note for note in found.notes)
