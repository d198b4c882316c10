"""The memory equation on CPUs, whose XLA reports no peak: state to the byte, the rest calculated."""

from experiments.ch19_memory import Assumed, answer, claims
from lab.models.shape import DecoderShape

SMALL = Assumed(**vars(DecoderShape().shrunk()), target="cpu:8")


def test_state_is_decided_and_totals_are_calculated():
    assert [str(claim.verdict) for claim in claims(SMALL)] == ["confirmed", "calculated", "calculated", "calculated"]


def test_the_rows_are_the_terms_of_both_extremes():
    rows = {row.what: row.value for row in answer(SMALL)}
    assert rows["all recomputed: arguments"] == rows["nothing recomputed: arguments"] == 12 * SMALL.parameters + 4 + 2 * 4 * 64
    assert rows["nothing recomputed: activations kept"] > 20 * rows["all recomputed: activations kept"]
