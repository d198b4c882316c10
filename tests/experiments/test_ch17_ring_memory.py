"""Memory of a ring on GPUs that only compile: linear in a rank's tokens, decided by what XLA plans."""

import jax
import pytest

from lab.experiments import ch17_ring_memory
from lab.experiments.ch17_ring_memory import Assumed, answer, claims, temporaries
from lab.meshes.errors import UsageError
from lab.settle.behaviours import INSTALLED

LINEAR, TILED = (
    "a rank's memory grows with S/P, not with S nor with a square",
    "a ring of tiles holds no block's scores",
)


def verdicts(assumed: Assumed) -> dict[str, str]:
    return {claim.statement: str(claim.verdict) for claim in claims(assumed)}


@pytest.mark.compiles
def test_from_32k_to_1m_tokens_over_8_and_64_gpus_memory_a_token_of_a_rank_varies_by_11_percent_or_14_with_jax_0_11():
    assert verdicts(Assumed()) == {LINEAR: "confirmed", TILED: "confirmed"}
    needs = [row.value for row in answer(Assumed())[1::2]]
    assert len(needs) == 6 and 1.1 < max(needs) / min(needs) < (1.11 if INSTALLED < (0, 11) else 1.14)


@pytest.mark.parametrize(
    ("grows", "expected"),
    [
        (lambda assumed, length, ranks: 10**5 * length, {LINEAR: "refuted", TILED: "confirmed"}),
        (lambda assumed, length, ranks: 64 * (length // ranks) ** 2, {LINEAR: "refuted", TILED: "refuted"}),
        (
            lambda assumed, length, ranks: 10**5 * (length // ranks) * (1.13 if (length, ranks) == (2**20, 64) else 1),
            {LINEAR: "refuted", TILED: "confirmed"},
        ),
        (
            lambda assumed, length, ranks: 10**5 * (length // ranks) * (0.7 if length // ranks == 512 else 1),
            {LINEAR: "confirmed", TILED: "confirmed"},
        ),
    ],
    ids=["with S", "with a square", "an eighth more at one length", "less where a chunk is one tile"],
)
def test_memory_that_grows_otherwise_refutes_and_a_chunk_of_one_tile_may_need_less(grows, expected, monkeypatch):
    monkeypatch.setattr(ch17_ring_memory, "temporaries", grows)
    assert verdicts(Assumed()) == expected


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "attached",
            "target=attached: rings are over one host of 8 GPUs and over 8 such hosts; take GPUs to compile for, "
            "such as gpu:h100:1x8",
        ),
        ("cpu:8", "target=cpu:8: expected GPUs, such as gpu:h100:1x8"),
        ("gpu:h200:2x8", "target=gpu:h200:2x8: expected one host of 8 GPUs, gpu:h200:1x8"),
        ("gpu:h100:1x4", "target=gpu:h100:1x4: expected one host of 8 GPUs, gpu:h100:1x8"),
    ],
)
def test_targets_that_are_no_host_of_8_gpus_are_refused(target, message):
    with pytest.raises(UsageError, match=message):
        Assumed(target=target)


def test_heads_beyond_int32_are_refused():
    with pytest.raises(UsageError, match="kv_heads . queries . head_dim=2147483648: expected less than 2.31"):
        Assumed(head_dim=2**27)


@pytest.mark.compiles
def test_what_xla_refuses_is_told_with_the_sizes_in_a_line(monkeypatch):
    def refused(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: no tile\nat a frame")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refused)
    with pytest.raises(UsageError, match="^64 tokens over 8 ranks with Assumed.kv_heads=1, .*: INTERNAL: no tile$"):
        temporaries(Assumed(kv_heads=1, head_dim=2), 64, 8)
