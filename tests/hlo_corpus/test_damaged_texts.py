"""A text that is cut, or of which lines are missing, is read or refused in one line; it never breaks the reader, and is
never silently another program. `make damage` reads others for ten minutes."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.core.ledger import Kind, Ledger
from lab.hlo import read_text
from lab.meshes.errors import UsageError
from tests.damage.__main__ import LARGE, whole
from tests.damage.__main__ import TEXTS as DAMAGED
from tests.damage.judge import WRONG, Outcome, judged
from tests.damage.mutations import DAMAGE, damaged
from tests.damage.xla_parser_process import XlaParser
from tests.hlo_corpus.corpus import OURS, one_of_each_form, theirs
from tests.long_tests import ASKED_FOR

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


@pytest.fixture(scope="module")
def xla():
    parser = XlaParser()
    yield parser
    parser.end()


@st.composite
def damage(draw):
    """A text, the kinds of damage, whether its mesh is given, and what draws the places."""
    name = draw(st.sampled_from(sorted(name for name in DAMAGED if len(DAMAGED[name]()) < LARGE)))
    kinds = draw(st.lists(st.sampled_from(sorted(DAMAGE)), min_size=1, max_size=3))
    return name, kinds, draw(st.booleans()), Random(draw(st.integers(0, 2**32)))


@pytest.mark.slow
@settings(max_examples=800 if ASKED_FOR else 300, deadline=None, derandomize=True)
@given(damage())
def test_damaged_texts_are_refused_noted_or_the_same_program_and_none_is_silently_another(xla, drawn):
    """Or another one that XLA's parser takes too, and prints with the same totals."""
    name, kinds, has_mesh, random = drawn
    axes, before = whole(name, has_mesh)
    text = damaged(DAMAGED[name](), kinds, random)
    outcome, shown = judged(before, text, axes, xla.printed)
    assert outcome not in WRONG, f"{outcome}: {name}, {kinds}, mesh {axes}\n{shown}\n{text[:2_000]}"


def test_a_number_changed_in_a_valid_text_is_another_program_that_xla_reads_the_same(xla):
    """So that the judge of the test above does not take all for the same."""
    axes, before = whole("all_gather_x.cpu", False)
    text = DAMAGED["all_gather_x.cpu"]()
    assert judged(before, text, axes, xla.printed)[0] is Outcome.SAME
    wider = text.replace("num_partitions=8", "num_partitions=8, replica_count=2")
    assert judged(before, wider, axes, xla.printed)[0] in (Outcome.OTHER, Outcome.INCOMPLETE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nest", "nest_calls", "other_number", "repeat_line"])
def test_a_damaged_text_takes_at_most_ten_times_its_size_in_memory(kind):
    text = damaged(DAMAGED["layers_scanned.gpu"](), [kind] * 3, Random(0))
    read_or_refused(text)
    tracemalloc.start()
    read_or_refused(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * max(len(text), 100_000)
