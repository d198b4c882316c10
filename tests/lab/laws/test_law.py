"""`lab law` of programs that are compiled."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from lab.core.ledger import Kind
from lab.laws import formula
from lab.laws.evaluate import evaluate, wire_bytes
from lab.laws.family import _changed as changed
from lab.laws.family import _sizes_in as sizes_in
from lab.laws.family import _taken as taken
from lab.laws.family import sized
from lab.laws.measurement import Refusal
from lab.laws.question import Question, _answered
from lab.meshes import plugins
from lab.meshes.axes import TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from tests.lab.cli.test_cli import assert_refused
from tests.long_tests import long
from tests.paths import ROOT

SOURCE = "tests.lab.laws.programs:keeping"
ASKED = ("law", SOURCE, "--mesh", "fsdp=2", "--target", "cpu:2", "--vary", "fsdp,layers,batch,embed")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))


@pytest.mark.compiles
def test_a_program_has_a_law_that_is_equal_where_it_was_never_compiled(lab, tmp_path):
    answer = lab(
        *ASKED, "--json", "--at", "fsdp=16,layers=80,batch=64,embed=8192", "--html", str(tmp_path / "page.html")
    )
    assert answer.status == 0, answer.err
    law = json.loads(answer.out)
    (gather,) = [term for term in law["terms"] if term["kind"] == "all_gather"]
    # Layers times the whole matrix, in float32.
    assert gather["payload_of_step"] == [
        {"numerator": 4, "denominator": 1, "exponents": {"embed": 2, "layers": 1}},
    ]
    assert not [each for each in law["refused"] if each["kind"]]
    assert [check["differences"] for check in law["checks"]] == [[], [], [], []]
    assert law["checks"][0]["sizes"]["fsdp"] == 3
    assert law["values"][0]["flops"] == 80 * 2 * 4 * 8192**2
    found = evaluate(law, {"fsdp": 16, "layers": 80, "batch": 64, "embed": 8192})
    assert found["by_axes"]["fsdp"] == 80 * 4 * 8192**2 * 15 // 16 + law_of_the_mean(16)
    assert "never compiled before" in (tmp_path / "page.html").read_text()
    kept = list((tmp_path / "cache" / "laws").iterdir())
    assert len(kept) == len(law["compiled"]) + len(law["checks"])


@long
@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the GPU plugin is not installed")
@pytest.mark.skipif(
    not jax.__version__.startswith("0.10."), reason="the page shows what the compiler of jax 0.10 gives"
)
def test_the_law_on_its_page_is_that_of_the_program_on_its_page(lab, tmp_path, monkeypatch):
    page = (ROOT / "docs" / "laws.md").read_text()
    name, program = re.search(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL).groups()
    # Lines of the program are origins of its transfers.
    (tmp_path / name).write_text(f"# {name}\n{program}")
    monkeypatch.chdir(tmp_path)
    command, *shown = page.partition("```\n$ ")[2].partition("\n```")[0].splitlines()
    answer = lab(*shlex.split(command)[1:])
    assert answer.status == 0, answer.err
    # How long it took is another each time, and so may be the line of a version.
    assert [line for line in shown if " derived from " not in line] == [
        line for line in answer.out.splitlines() if " derived from " not in line
    ]


def law_of_the_mean(devices):
    """One float is summed over all."""
    return 2 * (devices - 1) * 4 / devices


def test_what_cannot_be_varied_is_refused(lab):
    assert_refused(lab(*ASKED[:-1], "heads"), "no axis or size 'heads'", "layers, batch, embed")
    assert_refused(lab(*ASKED, "--set", "fsdp=x"), "fsdp=x: expected a whole number")
    assert_refused(lab(*ASKED[:-2]), "--vary is missing", "fsdp, layers, batch, embed")
    assert_refused(lab("law", SOURCE, "--vary", "layers"), "a program needs a mesh")
    assert_refused(lab(*ASKED, "--style", "declared"), "--style declared", "is a program")
    file = str(Path(__file__).parent / "programs.py")
    assert_refused(lab("law", file, *ASKED[2:]), f"{file} is a file", "build, keeping")
    assert_refused(lab(*ASKED[:-4], "--target", "attached", "--vary", "layers"), "expected a cpu:, gpu: or tpu:")


def test_what_no_law_will_tell_is_refused_before_it_is_derived(lab):
    assert_refused(lab(*ASKED, "--at", "fsdp=4,heads=2"), "heads: the law is to be in fsdp, layers, batch, embed")
    assert_refused(lab(*ASKED, "--scale", "heads"), "heads: the law is to be in fsdp, layers, batch, embed")
    assert_refused(lab(*ASKED, "--scale", "devices", "--chip", "h1000"), "h1000")
    assert_refused(lab(*ASKED, "--chip", "h100"), "add --scale NAME")
    answer = lab("law", "nothere.json")
    assert answer.status == 2 and answer.err.count("nothere.json") == answer.err.count("expected") == 1, answer.err


def test_sizes_of_a_dataclass_within_another_have_names_with_a_point():
    @dataclass(frozen=True)
    class Model:
        layers: int = 2
        embed: int = 64

    @dataclass(frozen=True)
    class Training:
        model: Model = field(default_factory=Model)
        batch: int = 16

    assert sizes_in(Training()) == {"model.layers": 2, "model.embed": 64, "batch": 16}
    assert changed(Training(), {"model.embed": 96, "batch": 8}) == Training(Model(2, 96), 8)


def test_a_builder_without_sizes_has_a_law_in_degrees():
    def no_default(mesh, rows):
        """Of a user."""

    def no_sizes(mesh, dtype="bfloat16"):
        """Of a user."""

    assert taken("step.py:build", no_sizes) == {}
    with pytest.raises(UsageError, match="step.py:build: rows has no default; expected build"):
        taken("step.py:build", no_default)


@pytest.mark.parametrize(
    "sizes", ["fsdp=0", "fsdp=1.5", "fsdp=-4", "fsdp", "=4", "fsdp=2,fsdp=4", "fsdp=" + "9" * 5000]
)
def test_what_is_no_size_to_evaluate_at_is_refused(lab, sizes):
    answer = lab("law", SOURCE, "--at", sizes)
    assert answer.status == 2 and "expected NAME=SIZE,... such as fsdp=4096" in answer.err


@pytest.mark.parametrize("option", [("--vary", "fsdp"), ("--mesh", "fsdp=4"), ("--set", "layers=2")])
def test_a_law_that_is_derived_takes_no_sizes_to_derive_it_from(lab, option):
    assert_refused(lab("law", "law.json", *option), "law.json is derived already; expected --at")


def test_a_size_of_nothing_cannot_be_varied():
    question = Question(SOURCE, ("layers",), TypedAxes.parse("fsdp=2"), settings=(("layers", "0"),))
    processes = SimpleNamespace(sizes=lambda family: {"layers": 0}, compiler=str)
    with pytest.raises(UsageError, match="layers=0 cannot be varied; set a size from 1 on"):
        _answered(question, processes)


def test_targets_have_as_many_devices_as_a_mesh():
    for target, devices, expected in (
        ("gpu:h100:2x8", 4, "gpu:h100:1x4"),
        ("gpu:h100:2x8", 64, "gpu:h100:8x8"),
        ("gpu:h100:2x8", 12, "gpu:h100:3x4"),
        ("tpu:v5e:2x4", 16, "tpu:v5e:4x4"),
        ("cpu:8", 9, "cpu:9"),
    ):
        assert str(sized(parse_target(target), devices)) == expected


def test_shares_of_payloads_on_wires_are_those_that_the_evaluator_takes():
    for kind in Kind:
        for network_kind in (None, Kind.ALL_GATHER, Kind.ALL_REDUCE):
            words = formula.share(kind, network_kind)
            share = eval(words.replace(" (", " * (").strip(), {"P": 6})
            assert share == float(wire_bytes(kind, network_kind, 1, 6)), words


def test_a_law_along_stages_begins_with_layers_for_many_of_them():
    for vary, layers in ((("data", "pipe", "layers"), 24), (("data", "layers"), 4)):
        asked = []

        def refused(sizes, asked=asked):
            asked.extend(sizes)
            return [Refusal("no") for _ in sizes]

        given = {"layers": 8, "accumulation": 8}
        processes = SimpleNamespace(sizes=lambda _: given, compiler=str, measure=lambda _: refused)
        with pytest.raises(UsageError, match="refused at the first sizes"):
            _answered(Question("ch16_pipeline", vary), processes)
        assert asked[0]["layers"] == layers
