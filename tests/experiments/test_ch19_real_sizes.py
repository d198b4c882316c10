"""Llama 3 at its real size: the terms of theory, held against what was compiled once (`results`), and what a plan that
is off comes to."""

import json
from types import SimpleNamespace

import jax
import pytest

from lab.core.ledger import Ledger, Memory
from lab.experiments import ch19_real_sizes
from lab.experiments.ch19_real_sizes import PROGRAMS, Assumed, claims
from tests.paths import ROOT

RECORDS = sorted((ROOT / "results").glob("peaks_*.json"))


def record(path):
    (found,) = json.loads(path.read_text())["results"]
    return Assumed(**found["parameters"]), {row["what"]: row["value"] for row in found["rows"]}


def test_llama_3_8b_on_16_gpus_and_70b_on_512_are_recorded():
    assert [(record(path)[0].layers, record(path)[0].target) for path in RECORDS] == [
        (80, "gpu:h100:64x8"),
        (32, "gpu:h100:2x8"),
    ]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
@pytest.mark.parametrize("of", PROGRAMS, ids=str)
def test_a_recorded_peak_is_the_sum_of_terms_within_5_percent_and_its_arguments_to_the_byte(path, of):
    assumed, found = record(path)
    terms = assumed.terms(of)
    assert terms["arguments"] == found[f"{of}: arguments"]
    assert sum(terms.values()) == pytest.approx(found[f"{of}: peak"], rel=0.05)


@pytest.mark.parametrize(("off", "verdict"), [(1.04, "confirmed"), (1.06, "refuted"), (0.94, "refuted")])
def test_a_sum_of_terms_5_percent_off_the_plan_is_refuted(off, verdict, monkeypatch):
    assumed = Assumed()
    sums = iter([sum(assumed.terms(of).values()) for of in PROGRAMS])
    monkeypatch.setattr(
        ch19_real_sizes, "planned_step", lambda *_: Ledger((), memory=Memory(0, 0, 0, 0, round(next(sums) / off)))
    )
    assert {str(claim.verdict) for claim in claims(assumed)} == {verdict}


def test_attached_gpus_decide_as_named_ones_of_their_chip_do(monkeypatch):
    named, attached = Assumed(target="gpu:h200:1x4"), Assumed(target="attached")
    for count in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, count, lambda: 4)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")])
    assert [attached.terms(of) for of in PROGRAMS] == [named.terms(of) for of in PROGRAMS]
    monkeypatch.setattr(ch19_real_sizes, "planned_step", lambda *_: Ledger((), memory=Memory(0, 0, 0, 0, 1)))
    assert {str(claim.verdict) for claim in claims(attached)} == {"refuted"}
