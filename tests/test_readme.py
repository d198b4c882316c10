"""The README's own programs give what the README prints."""

import re

import jax
import pytest

from lab import diagnosis
from lab.compile.inspection import read_program
from lab.compile.sources import builder
from lab.diagnosis.program import Program
from lab.measure.prediction import predicted
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import Target, parse_target
from lab.report.diagnosis import diagnosis_text
from lab.report.restart import restart_text
from lab.report.seconds import prediction_text
from lab.resilience.loss import Loss
from lab.resilience.restart import restarts
from lab.resilience.survey import Survey, surveyed
from lab.resilience.tiers import Failures, Machine, parse_rate
from tests.paths import ROOT

pytestmark = pytest.mark.compiles

README = (ROOT / "README.md").read_text()
PROGRAM = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
COMMAND = "$ lab inspect {}:build --mesh fsdp=16,tensor=8 --target gpu:h100:16x8\n"


def rows(text: str) -> list[list[str]]:
    """The numbers of each row of a table: all up to the element type, which compilers of several versions agree on, not
    their order; and sentences."""
    lines = [re.split(r"  +", line) for line in text.splitlines() if re.search(r"all_|reduce_|^all |by kind", line)]
    return sorted(line[:8] for line in lines)


def verdict(text: str) -> str:
    """The first line, without how many kinds of findings there are."""
    return re.sub(r"\d+ kinds", "kinds", text.partition("\n")[0])


def said(name: str, folder) -> str:
    return diagnosis_text(diagnosis.of(program(name, folder)))


TARGET, AXES = parse_target("gpu:h100:16x8"), Axes.parse("fsdp=16,tensor=8")


def program(name: str, folder, axes: Axes = AXES, target: Target = TARGET) -> Program:
    if not plugins.installed("gpu"):
        pytest.skip("the GPU plugin is not installed")
    path = folder / name
    path.write_text(f"# {name}\n{dict(PROGRAM.findall(README))[name]}")
    mesh = make_mesh(target, axes)
    step, args = builder(f"{path}:build")(mesh)
    return read_program(step, args, mesh, target, source=f"{name}:build")


def printed(name: str) -> str:
    return README.partition(COMMAND.format(name))[2].partition("```")[0]


def test_the_nine_rows_and_two_sentences_in_the_readme_are_what_its_program_gives(tmp_path):
    found = said("step.py", tmp_path)
    assert rows(printed("step.py")) == rows(found)
    assert len(rows(found)) == 9 + 2
    assert verdict(printed("step.py")) == verdict(found)


def test_the_model_of_flax_in_the_readme_sends_what_is_printed_below_it(tmp_path):
    found, shown = said("model.py", tmp_path), printed("model.py")
    assert len(rows(shown)) == 4 + 1
    assert [row for row in rows(shown) if row not in rows(found)] == []
    assert verdict(shown) == verdict(found)


as_compiled = pytest.mark.skipif(
    not jax.__version__.startswith("0.10."), reason="the README shows what the compiler of jax 0.10 gives"
)


@as_compiled
def test_the_seconds_in_the_readme_are_those_of_its_program(tmp_path):
    shown = README.partition("$ lab time step.py:build --mesh fsdp=16,tensor=8 --target gpu:h100:16x8\n")[2]
    found = prediction_text(predicted(program("step.py", tmp_path))).splitlines()
    assert shown.partition("\n```")[0].splitlines() == [line for line in found if not line.startswith("paths are")]


@as_compiled
def test_the_meshes_in_the_readme_that_remain_without_half_of_the_devices_are_those_of_its_program(tmp_path):
    shown = README.partition(f"$ lab restart step.py:build --mesh {AXES} --target {TARGET} --lose 64 --store 25GB/s\n")[
        2
    ]
    machine = Machine(TARGET, Failures.parse("50000h"), parse_rate("25GB/s"), 300.0)

    def compiled(axes: Axes, target: Target) -> Survey:
        return surveyed(program("step.py", tmp_path, axes, target))

    found = restarts("step.py:build", AXES, machine, [Loss.parse("64")], compiled, lambda *_: ())
    assert shown.partition("\n```")[0] == restart_text(found)
