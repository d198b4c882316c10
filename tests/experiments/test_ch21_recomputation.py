"""What layers keep and compute again, as compiled for H100s and CPUs."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from lab.experiments import ch21_recomputation
from lab.experiments.ch21_recomputation import AGAIN, Assumed, claims
from lab.harness.decoder.plans import planned_layers
from lab.programs.models.shape import REMATS, DecoderShape

pytestmark = pytest.mark.compiles

TINY = Assumed(**vars(DecoderShape().shrunk(layers=4)) | {"batch": 1}, target="cpu:1")


@pytest.mark.parametrize(("remat", "units"), [("full", 2), ("dots", 21)])
def test_a_layer_of_llama_3_8b_adds_2_bytes_a_token_and_embed_at_full_recomputation_and_21_with_dots_kept(remat, units):
    assumed = Assumed()
    assert assumed.saved(remat) == units * 2048 * 4096
    assert assumed.kept(remat) == assumed.saved(remat)


@pytest.mark.parametrize("remat", REMATS)
def test_each_policy_runs_the_products_that_theory_lists(remat):
    assert TINY.plan(remat).flops == TINY.flops(remat)


def test_all_but_the_last_product_is_run_again_at_full_recomputation():
    assert set(TINY.products) - set(AGAIN["full"]) == {"down"}


def test_segments_of_two_layers_run_the_whole_forward_pass_again():
    assert 3 * planned_layers(TINY.shape("none"), TINY.target, 2).flops == 4 * TINY.plan("none").flops


def test_twelve_layers_are_cut_by_one_three_and_six():
    assert replace(TINY, layers=12).segments == (1, 3, 6)


def test_layers_are_those_of_one_micro_batch():
    three = replace(TINY, batch=3, accumulation=3)
    assert (three.shape("none"), three.products, three.saved("full")) == (
        TINY.shape("none"),
        TINY.products,
        TINY.saved("full"),
    )


@pytest.mark.parametrize("target", ["cpu:1", "attached"])
def test_cpus_decide_nothing_of_what_is_kept(target):
    assert [str(claim.verdict) for claim in claims(replace(TINY, target=target))] == ["calculated"]


def test_attached_gpus_decide_what_is_kept_as_named_ones_do(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")])
    for decide in ("_kept", "_overhead", "_square", "_repeated"):
        monkeypatch.setattr(ch21_recomputation, decide, lambda *_, decide=decide: (decide,))
    monkeypatch.setattr(ch21_recomputation, "_segments", lambda assumed: "_segments")
    assert claims(replace(TINY, target="attached")) == ("_kept", "_overhead", "_square", "_segments", "_repeated")
