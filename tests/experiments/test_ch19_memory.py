"""The memory equation on CPUs, whose XLA reports no peak: state to the byte, the rest calculated."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from lab.core.ledger import Memory
from lab.experiments.ch19_memory import Assumed, answer, claims
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape

pytestmark = pytest.mark.compiles

SMALL = Assumed(**vars(DecoderShape().shrunk()), target="cpu:8")


def test_state_is_decided_and_totals_are_calculated():
    assert [str(claim.verdict) for claim in claims(SMALL)] == ["confirmed", "calculated", "calculated", "calculated"]


def test_attached_gpus_decide_totals_as_named_ones_do_and_have_their_chips_memory(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")])
    attached = replace(SMALL, target="attached")
    assert attached.place.memory_bytes == parse_target("gpu:h200:1x8").memory_bytes
    monkeypatch.setattr(
        Assumed, "measured", lambda assumed, remat: Memory(0, 0, 0, 0, sum(assumed.terms(remat).values()))
    )
    assert [str(claim.verdict) for claim in claims(attached) if claim.id == "ch19.total"] == ["confirmed"] * 2


def test_the_rows_are_the_terms_of_both_extremes():
    rows = {row.what: row.value for row in answer(SMALL)}
    assert (
        rows["all recomputed: arguments"]
        == rows["nothing recomputed: arguments"]
        == 12 * SMALL.parameters + 4 + 2 * 4 * 64
    )
    assert rows["nothing recomputed: activations kept"] > 20 * rows["all recomputed: activations kept"]
