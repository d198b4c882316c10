"""What `lab verify --full` runs beside the experiments' own sizes, and what no training begins with."""

import json

import pytest

from lab.harness import suite
from lab.harness.decoder import training
from lab.harness.experiment import Run
from lab.meshes import plugins
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from tests.paths import ROOT


def _real() -> list[Run]:
    return suite.at_real_size(suite.parted(suite.load())[0])


def test_layouts_are_run_at_their_real_size_in_every_style():
    runs = _real()
    sizes = {run.experiment.name: run.experiment.parameters for run in runs}
    assert {(shape.embed, shape.mlp, shape.vocab, shape.length, shape.batch) for shape in sizes.values()} == {
        (4096, 14336, 128256, 8192, 16)
    }
    assert [sizes[name].layers for name in ("ch14_data_parallel", "ch15_tensor_parallel", "ch20_zero3")] == [16, 32, 32]
    assert [run.style for run in runs if run.experiment.name == "ch20_zero3"] == ["declared", "typed", "explicit"]


def test_kept_results_are_of_runs_at_real_size_with_nothing_unexplained_or_missing():
    files = (ROOT / "results").glob("llama3_8b_tpu_v5p_2x2x4*.json")
    results = [result for file in files for result in json.loads(file.read_text())["results"]]
    kept, runs = (
        {(r["experiment"], r["style"], r["target"]) for r in results},
        {(r.experiment.name, r.style, str(r.target)) for r in _real()},
    )
    assert ("ch20_zero3", "typed", "tpu:v5p:2x2x4") in kept and kept <= runs
    assert {(r["parameters"]["layers"], len(r["unexplained"]), len(r["missing"]), r["failure"]) for r in results} == {
        (32, 0, 0, None),
        (16, 0, 0, None),
    }
    assert {t["status"] for r in results for t in r["terms"]} == {"exact", "explained", "attributed"}


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
def test_llama3_8b_under_tensor_parallelism_sums_activations_five_times_a_layer_and_twice_beside():
    (run,) = [run for run in _real() if (run.experiment.name, run.style) == ("ch15_tensor_parallel", "explicit")]
    (result,) = suite.results([run])
    assert (str(result.verdict), result.is_fine, result.settlement.unexplained, result.settlement.missing) == (
        "explained",
        True,
        (),
        (),
    )
    activations = 4 * 8192 * 4096 * 2
    assert sum(t.executions for t in result.measured.split().transfers if t.payload_bytes == activations) == 5 * 32 + 2


def test_a_layout_is_trained_in_those_of_the_styles_that_it_has(monkeypatch):
    monkeypatch.setattr(training, "train", lambda _, __, some, ___: [(run.experiment.name, run.style) for run in some])
    (ran,) = suite.trained(suite.load(["ch17_training"]), [parse_target("cpu:8")], ["declared"], {}, iter)
    assert ran == [("Ulysses", "declared")]


def test_a_style_that_no_layout_has_is_refused_by_the_name_of_the_training():
    with pytest.raises(UsageError, match="ch17_training: no style 'manual'; known are explicit, declared, typed"):
        suite.trained(suite.load(["ch17_training"]), [parse_target("cpu:8")], ["declared", "manual"], {}, iter)


@pytest.mark.parametrize(
    ("name", "settings", "styles", "message"),
    [
        ("ch17_training", {"causal": "false"}, (), "zigzag order with causal=False"),
        ("ch18_dropless_training", {"dispatch": "ragged"}, (), "dispatch=ragged on CPUs"),
        ("ch18_training", {"dispatch": "padded"}, ("explicit",), "dispatch=padded over two levels of links"),
    ],
)
def test_what_one_layout_cannot_train_is_refused_before_any_has_begun(name, settings, styles, message, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(UsageError, match=message):
        suite.trained(suite.load([name]), [parse_target("cpu:8")], styles, settings, iter)
