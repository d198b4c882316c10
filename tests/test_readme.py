"""The README's own program gives what the README prints."""

import re

import pytest

from lab.compile.inspection import inspect_program
from lab.compile.sources import builder
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.report.axis_lines import axis_lines
from lab.report.tables import columns_text, total_columns, transfer_columns
from tests.paths import ROOT

pytestmark = pytest.mark.compiles

README = (ROOT / "README.md").read_text()
COMMAND = "$ lab inspect step.py:build --mesh fsdp=16,tensor=8 --target gpu:h100:16x8\n"


def rows(text: str) -> list[list[str]]:
    """The numbers of each row of a table: all up to the element type, which compilers of several versions agree on, not
    their order; and sentences."""
    lines = [re.split(r"  +", line) for line in text.splitlines() if re.search(r"all_|reduce_|^all ", line)]
    return [line[:8] for line in lines]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    if not plugins.installed("gpu"):
        pytest.skip("the GPU plugin is not installed")
    path = tmp_path_factory.mktemp("readme") / "step.py"
    path.write_text(re.search(r"```python\n(# step.py\n.*?)```", README, re.DOTALL)[1])
    target = parse_target("gpu:h100:16x8")
    mesh = make_mesh(target, Axes.parse("fsdp=16,tensor=8"))
    step, args = builder(f"{path}:build")(mesh)
    return inspect_program(step, args, mesh, target, source="step.py:build")


def test_the_nine_rows_and_two_sentences_in_the_readme_are_what_its_program_gives(ledger):
    printed = README.partition(COMMAND)[2].partition("```")[0]
    tables = map(columns_text, (transfer_columns(ledger), total_columns(ledger)))
    found = "\n".join([*tables, *axis_lines(ledger)])
    assert sorted(rows(printed)) == sorted(rows(found))
    assert len(rows(printed)) == 9 + 2
