"""`lab list`, `lab run` and `lab verify`, on programs small enough for a test."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest

from lab.cli import main as cli
from lab.cli import running
from lab.core.ledger import Kind, Ledger, Transfer
from lab.harness.experiment import Experiment, Run
from lab.harness.registry import load, names
from lab.meshes import plugins
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.report import verdicts
from tests.json_keys import valid

SMALL = (
    "--set",
    "layers=2",
    "--set",
    "batch=16",
    "--set",
    "length=16",
    "--set",
    "embed=64",
    "--set",
    "mlp=96",
    "--set",
    "vocab=48",
)
ONE = ("run", "ch14_data_parallel", "--target", "cpu:8", "--style", "explicit", *SMALL)


@pytest.fixture
def asked(monkeypatch):
    """What would have been run: (runs, mesh) of each command; trainings are not run and questions not
    answered."""
    asked = []
    monkeypatch.setattr(
        running,
        "results",
        lambda runs, mesh=None, may_refuse=False: asked.append((runs, mesh)) or [],
    )
    monkeypatch.setattr(running, "trained", lambda *_: ([], ()))
    monkeypatch.setattr(running, "answered", lambda *_: [])
    monkeypatch.setattr(verdicts, "results_text", lambda results: "")
    monkeypatch.setattr(verdicts, "summary_text", lambda results: "")
    return asked


def results(answer) -> list[dict]:
    assert answer.err == ""
    printed = valid("run", answer.out)
    assert printed["schema"] == "sharding-lab/run/1"
    return printed["results"]


def test_every_experiment_is_listed_with_its_question(lab):
    listed = json.loads(lab("list", "--json").out)
    assert {"ch14_data_parallel", "ch15_tensor_parallel", "ch20_zero3"} <= {row["name"] for row in listed}
    assert all(row["question"].endswith("?") for row in listed)


def test_the_list_says_how_long_each_takes_by_what_it_compiles(lab):
    takes = {row["name"]: row["takes"] for row in json.loads(lab("list", "--json").out)}
    assert takes["ch37_batch"] == takes["ch11_primitives"] == "seconds"
    assert (takes["ch14_data_parallel"], takes["ch14_training"], takes["ch19_memory"]) == (
        "a minute",
        "minutes",
        "minutes",
    )
    assert {line.split()[3] for line in lab("list").out.splitlines()[2:]} == {"seconds", "a", "minutes"}


def test_the_list_of_one_experiment_is_that_of_what_set_takes(lab):
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lab("list", "ch24_3d").out.splitlines()[6:]}
    assert rows["accumulation"][0] == "8"
    assert rows["causal"] == ["true", "a token attends to none after it"]
    (entry,) = json.loads(lab("list", "ch24_3d", "--json").out)
    assert {"name": "dtype", "default": "bf16"}.items() <= entry["parameters"][[*rows].index("dtype")].items()


def test_the_list_tells_experiments_trainings_and_questions_apart(lab):
    kinds = {row["name"]: row["kind"] for row in json.loads(lab("list", "--json").out)}
    assert (kinds["ch20_zero3"], kinds["ch14_training"], kinds["ch37_batch"]) == ("experiment", "training", "question")


@pytest.mark.compiles
def test_a_mesh_whose_axes_the_program_uses_is_run(lab):
    answer = lab(*ONE, "--mesh", "data=8", "--json")
    assert answer.status == 0 and results(answer)[0]["mesh"] == {"data": 8}


@pytest.mark.compiles
def test_a_run_gives_the_fields_of_the_contract_and_two_layers_of_64_by_96_in_bf16(lab):
    answer = lab(*ONE, "--json")
    (result,) = results(answer)
    assert answer.status == 0
    assert {key: result[key] for key in ("experiment", "style", "target", "mesh")} == {
        "experiment": "ch14_data_parallel",
        "style": "explicit",
        "target": "cpu:8",
        "mesh": {"data": 8},
    }
    assert result["parameters"]["embed"] == 64
    assert set(result) >= {"verdict", "terms", "unexplained", "missing", "claims", "numerics", "memory", "seconds"}
    assert result["numerics"]["worst_relative_error"] <= result["numerics"]["tolerance"]
    (up,) = [term for term in result["terms"] if term["term"] == "layers/mlp/up"]
    assert up["predicted"]["payload_bytes"] == 2 * 64 * 96 * 2
    assert up["measured"]["executions"] == up["predicted"]["executions"] == 2


def test_three_styles_and_two_targets_are_six_runs_on_the_users_own_mesh(lab, asked):
    lab("run", "ch14_data_parallel", "--target", "cpu:8", "--target", "cpu:4", "--mesh", "data=8", *SMALL)
    ((runs, mesh),) = asked
    assert [(str(target), style) for _, target, style, _ in runs] == [
        (t, s) for t in ("cpu:8", "cpu:4") for s in ("declared", "typed", "explicit")
    ]
    assert mesh.shape == {"data": 8}
    sizes = {"layers": 2, "batch": 16, "length": 16, "embed": 64, "mlp": 96, "vocab": 48}
    assert all(asdict(run.experiment.parameters).items() >= sizes.items() for run in runs)


def test_verify_runs_all_styles_of_every_experiment_on_its_own_targets(lab, asked, monkeypatch):
    monkeypatch.setattr(plugins, "installed", lambda platform: True)
    lab("verify", "--all")
    ((runs, mesh),) = asked
    assert {(e.name, str(target), style) for e, target, style, _ in runs} >= {
        ("ch20_zero3", target, style)
        for target in ("cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x4")
        for style in ("declared", "typed", "explicit")
    }
    assert mesh is None


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
def test_verify_begins_with_a_run_for_each_property_on_each_compiler_and_names_what_more_there_is(
    lab, asked, monkeypatch
):
    monkeypatch.setattr(plugins, "installed", lambda platform: True)
    answer = lab("verify")
    runs = [(run.experiment, str(run.target), run.style) for run in asked[0][0]]
    assert all(target in e.targets and style in e.styles for e, target, style in runs)
    assert {run.target.platform for run in asked[0][0]} == {"cpu", "gpu", "tpu"}
    assert {e.chapter for e, _, _ in runs} >= {11, 12, 14, 15, 16, 17, 18, 20, 24}
    assert ("ch24_llama3_405b", "gpu:h100:2048x8") in {(e.name, target) for e, target, _ in runs}
    assert "--all makes all" in answer.out.splitlines()[-1] and "--full makes" in answer.out.splitlines()[-1]
    lab("verify", "--all")
    assert set(asked[0][0]) < set(asked[1][0])


@pytest.mark.compiles
def test_a_prediction_that_does_not_hold_ends_with_1(lab, monkeypatch):
    from lab.experiments import ch14_data_parallel as chapter

    wrong = Ledger((Transfer(Kind.ALL_REDUCE, ("data",), 8, 2, "bf16", 7, scope="layers/mlp/up"),))
    monkeypatch.setattr(chapter, "EXPERIMENT", replace(chapter.EXPERIMENT, predict=lambda *_: wrong))
    answer = lab(*ONE, "--json")
    assert (answer.status, results(answer)[0]["verdict"]) == (1, "refuted")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "ch99_nothing"), ("ch99_nothing", "lab list shows all")),
        (("run", "ch20_zer3"), ("ch20_zer3", "did you mean ch20_zero3")),
        ((*ONE, "--set", "depth=2"), ("'depth'", "layers")),
        ((*ONE, "--set", "layers=two"), ("layers=two", "a whole number")),
        ((*ONE, "--set", "layers"), ("--set layers", "NAME=VALUE")),
        ((*ONE, "--style", "imperative"), ("'imperative'", "declared, typed, explicit")),
        ((*ONE, "--mesh", "pipe=8"), ("needs the axis data", "pipe=8")),
        ((*ONE, "--mesh", "data=4"), ("4 devices", "cpu:8")),
        ((*ONE, "--mesh", "data=2,tensor=4"), ("does not use tensor=4 of the mesh data=2,tensor=4",)),
        ((*ONE, "--set", "batch=12"), ("12", "8")),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(lab, arguments, words):
    answer = lab(*arguments)
    (line,) = answer.err.splitlines()
    assert (answer.status, answer.out) == (2, "")
    assert line.startswith("lab: ") and all(word in line for word in words), line


def test_help_tells_every_style_that_an_experiment_has(lab):
    styles = {style for name in names() if isinstance(load(name), Experiment) for style in load(name).styles}
    help_text = lab("run", "--help").out
    assert styles and all(f"{style} (" in help_text for style in styles)


def test_a_note_of_ours_is_told_and_one_of_jax_is_not(capsys):
    refused = UsageError("length=6: expected 8")
    for note in ("--------------------\nFor simplicity, JAX has removed its internal frames", "in model.py:3"):
        refused.add_note(note)
    assert (cli.refuse(refused), capsys.readouterr().err) == (2, "in model.py:3\nlab: length=6: expected 8\n")


def test_of_drawn_runs_a_refused_one_is_a_line_and_the_others_go_on(monkeypatch, capsys):
    def call(_, name, *rest):
        if name == "ch18_dropless":
            raise UsageError("ragged=True on CPUs")
        return name

    monkeypatch.setattr(running, "other_process", lambda: nullcontext(call))
    cpu = parse_target("cpu:8")
    runs = [Run(load(name), cpu, "explicit") for name in ("ch18_dropless", "ch15_layernorm")]
    assert running.results(runs, may_refuse=True) == ["ch15_layernorm"]
    assert capsys.readouterr().err == "lab: ch18_dropless explicit cpu:8 is refused: ragged=True on CPUs\n"
    with pytest.raises(UsageError, match="ragged"):
        running.results(runs)


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
def test_verify_in_full_takes_every_chip_with_clusters_of_the_same_shape(lab, asked, monkeypatch):
    monkeypatch.setattr(plugins, "installed", lambda platform: True)
    lab("verify", "--full")
    (own, *_), (drawn, *_) = asked
    assert len(drawn) == 230 and not set(drawn) & set(own)
    every = [
        (run.experiment.name, str(run.target), run.experiment.parameters)
        for run in asked[0][0]
        if run.style == "explicit"
    ]
    assert len(every) == len(set(every))
    at_real_size = {
        name for name, target, size in every if target == "tpu:v5p:2x2x4" and getattr(size, "vocab", 0) == 128256
    }
    layouts = {name for name in names() if getattr(load(name), "real_size", None) is not None}
    assert "ch20_zero3" in at_real_size == layouts
    runs = [(name, target) for name, target, _ in every]
    assert set(runs) >= {
        ("ch14_data_parallel", target) for target in ("cpu:8", "gpu:h100:2x8", "gpu:b200:2x8", "tpu:v6e:2x4")
    }
    assert ("ch24_llama3_405b", "gpu:b200:2048x8") in runs


def test_verify_leaves_out_what_has_no_plugin_and_says_so_in_a_line(lab, asked, monkeypatch):
    monkeypatch.setattr(plugins, "installed", lambda platform: platform == "cpu")
    answer = lab("verify")
    assert {target.platform for _, target, *_ in asked[0][0]} == {"cpu"}
    assert [line.partition(",")[0] for line in answer.err.splitlines()] == [
        "lab: no gpu targets",
        "lab: no tpu targets",
    ]


def test_a_preset_says_which_parameters_of_its_model_it_has_not():
    assert running.left_out({"preset": "gpt2"}) == (
        "preset=gpt2 has 123,551,232 parameters; 888,576 biases and learned positions are left out"
    )
    assert running.left_out({"preset": "llama3-8b"}) == running.left_out({"layers": "2"}) == ""
