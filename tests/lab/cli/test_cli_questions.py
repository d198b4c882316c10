"""`lab run` and `lab list` of questions without a program."""

import json
from dataclasses import dataclass, replace

import jax
import pytest

from lab.harness import suite
from lab.harness.claim import decided
from lab.harness.question import Question, check
from lab.harness.registry import load, names
from lab.meshes.targets import parse_target
from tests.json_keys import valid


@dataclass(frozen=True)
class Assumed:
    layers: int


def test_a_question_prints_assumptions_numbers_and_claims(lab):
    answer = lab("run", "ch37_scale_up", "--set", "larger_devices=1280")
    assert answer.status == 0
    assert "answered: ch37_scale_up" in answer.out and "larger_devices 1280" in answer.out
    assert any(line.split() == [*"days of the larger run".split(), "35", "days"] for line in answer.out.splitlines())
    assert "calculated ch37.exercises: 70 days" in answer.out


@pytest.mark.parametrize("name", [name for name in names() if isinstance(load(name), Question)])
def test_every_question_may_be_asked_as_it_is(name):
    asked = load(name).parameters
    check(asked, asked)


def test_counts_are_above_zero_but_where_they_are_zero_by_default():
    with pytest.raises(ValueError, match="layers=0: expected a number above 0"):
        check(Assumed(layers=0), Assumed(layers=4))
    with pytest.raises(ValueError, match="layers=-1"):
        check(Assumed(layers=-1), Assumed(layers=0))


def test_a_questions_json_has_the_fields_of_every_result_and_its_rows(lab):
    (result,) = valid("run", lab("run", "ch37_placement", "--json").out)["results"]
    assert set(result) >= {
        "experiment",
        "style",
        "target",
        "mesh",
        "parameters",
        "verdict",
        "terms",
        "unexplained",
        "missing",
        "claims",
        "seconds",
    }
    assert (result["verdict"], result["terms"], result["target"]) == ("answered", [], None)
    assert {"what": "llama3-405b: tensor of 8 spans", "value": 1, "unit": "domain", "predicted": None} in result["rows"]


def test_questions_are_listed_without_targets(lab):
    (row,) = [row for row in json.loads(lab("list", "--json").out) if row["name"] == "ch37_capacity"]
    assert (row["targets"], row["chapter"]) == ([], 37)


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("ch37_")])
def test_no_question_of_the_last_chapter_takes_a_mesh_that_it_does_not_use(lab, name):
    answer = lab("run", name, "--mesh", "unused=8")
    assert answer.status == 2 and answer.err.startswith(f"lab: {name} ") and "leave out" in answer.err


@pytest.mark.parametrize("option", [("--target", "cpu:8"), ("--style", "declared"), ("--mesh", "data=8")])
def test_a_question_takes_no_target_style_or_mesh(lab, option):
    answer = lab("run", "ch37_capacity", *option)
    assert (answer.status, answer.err) == (
        2,
        "lab: ch37_capacity has no program to compile; leave out --target, --style and --mesh\n",
    )


@pytest.mark.parametrize("option", [("--target", "attached"), ("--set", "target=attached")])
def test_a_question_about_attached_devices_has_jax_look_for_accelerators(lab, monkeypatch, option):
    asked = []
    monkeypatch.setattr(suite, "prepare", lambda targets: asked.extend(targets))
    answer = lab("run", "ch17_ring_memory", *option)
    assert set(asked) == {parse_target("attached")}
    assert (answer.status, answer.err.count("\n")) == (
        2,
        1,
    ) and "take GPUs to compile for, such as gpu:h100:1x8" in answer.err


def test_verify_ends_with_a_line_for_each_question(lab, monkeypatch):
    from lab.experiments.ch37_case_studies import EXPERIMENT

    monkeypatch.setattr(suite, "load", lambda: [EXPERIMENT])
    answer = lab("verify")
    assert answer.status == 0
    assert any(
        line.split() == ["answered", "ch37_case_studies", "2", "known", "errata"] for line in answer.out.splitlines()
    )


def test_a_refutation_that_nobody_disputed_ends_with_status_1(lab, monkeypatch):
    from lab.experiments.ch37_batch import EXPERIMENT

    surprise = replace(EXPERIMENT, claims=lambda assumed: (decided("ch37.exercises", False, "120 is not 100"),))
    monkeypatch.setattr(suite, "load", lambda: [surprise])
    answer = lab("verify")
    assert answer.status == 1 and "ch37_batch: refuted ch37.exercises: 120 is not 100" in answer.out


@pytest.fixture
def two(monkeypatch):
    """A question that XLA refuses, and one that is answered."""
    from lab.experiments.ch37_batch import EXPERIMENT

    def refused(_assumed):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room for 64.02GiB\nOut of memory on device 0")

    monkeypatch.setattr(suite, "load", lambda *_: [replace(EXPERIMENT, name="ch19_full", answer=refused), EXPERIMENT])


def test_what_xla_refuses_is_told_in_a_line_and_the_next_question_is_answered(lab, two):
    answer = lab("run", "ch19_full", "ch37_batch")
    assert (answer.status, answer.err) == (1, "")
    assert answer.out.startswith(
        "failed: ch19_full: RESOURCE_EXHAUSTED: no room for 64.02GiB\n\n\nanswered: ch37_batch\n"
    )


def test_what_xla_refuses_is_a_failed_result(lab, two):
    found = [
        (result["verdict"], result["failure"], bool(result["rows"]))
        for result in json.loads(lab("run", "ch19_full", "ch37_batch", "--json").out)["results"]
    ]
    assert found == [("failed", "RESOURCE_EXHAUSTED: no room for 64.02GiB", False), ("answered", None, True)]


def test_verify_names_what_xla_refuses_below_the_verdicts(lab, two):
    answer = lab("verify")
    assert answer.status == 1 and "\n\nfailed: ch19_full: RESOURCE_EXHAUSTED: no room for 64.02GiB\n" in answer.out
    rows = [line.split()[:2] for line in answer.out.splitlines() if "ch37_batch" in line or line.startswith("failed  ")]
    assert rows == [["failed", "ch19_full"], ["answered", "ch37_batch"]]


def test_an_unknown_assumption_lists_the_known(lab):
    answer = lab("run", "ch37_batch", "--set", "size=3")
    assert answer.status == 2 and "no parameter 'size'; known are device_h, devices, times" in answer.err


@pytest.mark.parametrize("endless", ["inf", "nan"])
def test_times_without_end_are_refused_in_one_line(lab, endless):
    answer = lab("run", "ch16_schedules", "--set", f"forward_s={endless}")
    assert (answer.status, answer.err) == (2, f"lab: ch16_schedules: forward_s={endless}: expected a finite number\n")


def test_an_unknown_model_is_answered_with_close_ones(lab):
    answer = lab("run", "ch37_capacity", "--set", "model=gpt3")
    assert answer.status == 2 and "no model 'gpt3'; did you mean gpt3-175b" in answer.err
