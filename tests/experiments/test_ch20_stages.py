"""The table of ZeRO's stages: memory and wire bytes as theory has them, on CPUs to the byte."""

from dataclasses import replace

import pytest

from lab.experiments.ch20_stages import EXPERIMENT, STAGES, Assumed, answer, claims
from lab.harness.question import Question
from lab.programs.models.shape import DecoderShape

pytestmark = pytest.mark.compiles

SMALL = Assumed(**vars(DecoderShape().shrunk()), target="cpu:8")


def test_all_stages_hold_and_send_what_theory_says_to_the_byte():
    rows = answer(SMALL)
    assert isinstance(EXPERIMENT, Question) and EXPERIMENT.targets == ("gpu:h100:2x8",)
    assert len(rows) == 2 * len(STAGES)
    assert all(row.value == row.predicted for row in rows)


def test_zero1_and_zero2_send_what_data_parallelism_does_and_not_twice_that():
    memory, alike, twice, peak = claims(SMALL)
    assert [str(claim.verdict) for claim in (memory, alike, twice, peak)] == [
        "confirmed",
        "confirmed",
        "refuted",
        "calculated",
    ]
    assert twice.disputed == "4-5:D-68"


def test_with_four_micro_batches_stages_are_listed_and_nothing_is_claimed_of_twice():
    found = {row.what: row.value for row in answer(replace(SMALL, batch=32, accumulation=4))}
    assert found["ZeRO-2: sent a step"] > 1.4 * found["ZeRO-1: sent a step"]
    assert [claim.id for claim in claims(replace(SMALL, batch=32, accumulation=4))] == [
        "ch20.stage_memory",
        "ch20.comm",
        "ch20.stage_memory",
    ]
