"""A fault of the lab, injected into each command: status 3, and a line that says so and names the file of the
traceback."""

import re
import tempfile
from pathlib import Path

import pytest

from lab.cli.group import cli
from lab.compile.other_process import other_process
from lab.core.faults import Fault
from tests.lab.cli.test_cli import TEXT

INJECTED = {
    "inspect": ("inspect step.hlo", "lab.diagnosis.diagnosis.findings"),
    "time": ("time --accuracy", "lab.cli.time.records"),
    "explain": ("explain", "lab.cli.explain.print_text"),
    "diff": ("diff step.hlo step.hlo", "lab.cli.diff.changes_text"),
    "targets": ("targets", "lab.cli.targets.availability"),
    "list": ("list", "lab.harness.suite.takes"),
    "run": ("run ch19_memory", "lab.harness.suite.answers"),
    "fit": ("fit ch20_zero3", "lab.harness.fit.fitting.fit"),
    "verify": ("verify", "lab.harness.suite.everyday"),
    "bench": ("bench --target cpu:8", "lab.measure.bench.run.bench"),
    "tour": ("tour", "lab.measure.tour.tour.tour"),
    "book": ("book ch12.ring", "lab.report.book.page"),
    "plot": ("plot roofline --save roofline.svg", "lab.report.plots.write_whole"),
    "restart": (
        "restart step.py:build --mesh data=2 --target gpu:h100:1x2 --store 25GB/s",
        "lab.cli.restart.restarts",
    ),
    "law": ("law law.json", "lab.cli.law.read_json"),
    "upgrade": ("upgrade ch14_buckets --flags --xla_cpu_enable_fast_math=true", "lab.cli.upgrade.stages"),
    "frontier": ("frontier step.py:build --target gpu:h100:1x2", "lab.cli.frontier.stages"),
    "launch": ("launch -n 1 -- true", "lab.resilience.launch.launch"),
    "schema": ("schema ledger", "lab.cli.schema.schema_text"),
}


def broken(*_, **__):
    return {}["a key that is not there"]


@pytest.mark.parametrize("command", cli.commands)
def test_a_fault_in_any_command_ends_with_3_and_a_file_that_says_where(lab, monkeypatch, tmp_path, command):
    arguments, place = INJECTED[command]
    (tmp_path / "step.hlo").write_text(TEXT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(place, broken)
    answer = lab(*arguments.split())
    (line,) = answer.err.splitlines()
    said = r"lab: this is a bug of sharding-lab: KeyError in (lab\.[\w.]+), line \d+: 'a key that is not there'; its traceback is in (\S+); "
    module, file = re.match(said, line).groups()
    assert answer.status == 3 and answer.out == ""
    text = Path(file).read_text()
    assert text.startswith(f"lab {arguments}\nlab ") and "Traceback (most recent call last)" in text
    assert "test_faults.py" in text and f"{module.split('.')[-1]}.py" in text
    assert {path.name for path in tmp_path.iterdir()} == {"step.hlo", Path(file).name}


@pytest.mark.compiles
def test_a_fault_in_the_process_of_a_program_is_that_of_the_lab_with_its_traceback():
    with other_process() as call, pytest.raises(Fault, match=r"^TypeError in lab\.compile\.sources, line ") as met:
        call(at_fault, 3)
    assert "Traceback (most recent call last)" in met.value.stack and "is_program" in met.value.stack


def at_fault(_, source):
    from lab.compile import sources

    sources.is_program(source)
