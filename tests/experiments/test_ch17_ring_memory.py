"""Memory of a ring on GPUs that only compile: linear in a rank's tokens, decided by what XLA plans."""

import pytest

from experiments import ch17_ring_memory
from experiments.ch17_ring_memory import Assumed, answer, claims
from meshes.errors import Unusable

LINEAR, TILED = "a rank's memory grows with S/P, not with S nor with a square", "a ring of tiles holds no block's scores"


def verdicts(assumed: Assumed) -> dict[str, str]:
    return {claim.statement: str(claim.verdict) for claim in claims(assumed)}


def test_from_32k_tokens_over_8_gpus_to_1m_over_8_and_64_a_rank_needs_as_much_for_each_of_its_own():
    assert verdicts(Assumed()) == {LINEAR: "confirmed", TILED: "confirmed"}
    assert len(answer(Assumed())) == 8


@pytest.mark.parametrize(
    ("grows", "expected"),
    [
        (lambda assumed, length, ranks: 10**5 * length, {LINEAR: "refuted", TILED: "confirmed"}),
        (lambda assumed, length, ranks: 64 * (length // ranks) ** 2, {LINEAR: "refuted", TILED: "refuted"}),
    ],
    ids=["with S", "with a square"],
)
def test_memory_that_grows_otherwise_refutes(grows, expected, monkeypatch):
    monkeypatch.setattr(ch17_ring_memory, "temporaries", grows)
    assert verdicts(Assumed()) == expected


def test_targets_that_are_no_gpus_are_refused():
    with pytest.raises(Unusable, match="target=cpu:8: expected GPUs, such as gpu:h100:1x8"):
        Assumed(target="cpu:8")
