"""`lab time` of compiled texts: no compiler is needed."""

import json
from pathlib import Path

import pytest

from lab.measure.accuracy import records
from tests.data import kept
from tests.lab.cli.test_cli import assert_refused


@pytest.fixture
def step(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("step.hlo").write_text(kept.text("fsdp.gpu"))
    return "step.hlo"


ON_H100 = ("--mesh", "fsdp=8", "--target", "gpu:h100:1x8")


def test_a_text_has_a_time_on_the_chip_of_its_target(lab, step):
    answer = lab("time", step, *ON_H100)
    assert answer.status == 0, answer.err
    assert answer.out.startswith("step.hlo on gpu:h100:1x8 (NVIDIA H100 SXM 80 GB): ")
    for part in (
        "MFU",
        "the time rests",
        "passes over memory",
        "all_gather by host",
        "step without it",
        "at full rates",
    ):
        assert part in answer.out


def test_page_and_trace_are_written_whole(lab, step):
    assert lab("time", step, *ON_H100, "--html", "page.html", "--trace", "trace.json").status == 0
    page = Path("page.html").read_text()
    assert "a step, predicted" in page and "<svg" in page and "Transfers, those that are waited for longest" in page
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_json_is_of_its_schema(lab, step):
    found = json.loads(lab("time", step, *ON_H100, "--json").out)
    assert found["schema"] == "sharding-lab/time/1"
    assert found["seconds"]["total"] == pytest.approx(sum(part["seconds"] for part in found["parts"]))


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("step.hlo", "--mesh", "fsdp=8"), "found no target, expected one with a chip, such as --target gpu:h100:2x8"),
        (("step.hlo", "--mesh", "fsdp=8", "--target", "cpu:8"), "found the target cpu:8, expected one with a chip"),
        (
            ("step.hlo", "--mesh", "fsdp=8", "--target", "attached"),
            "found the target attached, expected one with a chip",
        ),
        ((), "expected a SOURCE, as lab inspect takes it, or --accuracy alone"),
        (("step.hlo", "--accuracy"), "expected a SOURCE, as lab inspect takes it, or --accuracy alone"),
    ],
)
def test_without_a_chip_there_are_no_seconds(lab, step, arguments, words):
    assert_refused(lab("time", *arguments), words)


def test_a_script_does_not_run_where_its_time_could_not_be_told(lab, step):
    Path("train.py").write_text("open('ran', 'w')")
    assert_refused(lab("time", "train.py", "--target", "cpu:16"), "found the target cpu:16, expected one with a chip")
    assert not Path("ran").exists()


def test_a_loop_of_unknown_length_is_refused(lab, step):
    name = next(name for name in kept.index() if name.endswith("gpu") and unknown(name))
    Path("loop.hlo").write_text(kept.text(name))
    entry = kept.index()[name]
    answer = lab("time", "loop.hlo", "--mesh", entry["mesh"], "--target", entry["target"])
    assert_refused(answer, "the time of the step is unknown")


def unknown(name: str) -> bool:
    return any(t.executions is None for t in kept.ledger(name).transfers)


def test_records_of_steps_are_timed_again(lab, monkeypatch):
    rows = [record for record in records() if record.name in ("maxtext-8b-v6e-8", "maxtext-8b-v6e-32")]
    monkeypatch.setattr("lab.cli.time.records", lambda: rows)
    answer = lab("time", "--accuracy")
    assert answer.status == 0, answer.err
    assert "in the median" in answer.out and "maxtext-8b-v6e-8" in answer.out
    found = json.loads(lab("time", "--accuracy", "--json").out)
    assert {row["name"] for row in found["rows"]} >= {"maxtext-8b-v6e-8", "maxtext-8b-v6e-32"}
