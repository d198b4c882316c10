import subprocess
import sys

import pytest

from lab.meshes import plugins
from lab.meshes.availability import availability
from lab.meshes.targets import parse_target
from tests.paths import ROOT


def test_every_example_is_a_target_of_its_chip():
    rows = availability()
    assert {"cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x4", "attached"} <= {row.target for row in rows}
    for row in rows:
        target = parse_target(row.target)
        assert (target.platform, target.chip) == (row.platform, row.chip)


def test_a_missing_plugin_is_shown_with_its_install_command(monkeypatch):
    monkeypatch.setattr(plugins, "find_spec", lambda package: None)
    rows = {row.target: row for row in availability()}
    assert not rows["gpu:h100:2x8"].can_compile
    assert rows["gpu:h100:2x8"].install == "pip install 'sharding-lab[gpu]'"
    assert rows["tpu:v5p:2x2x4"].install == "pip install 'sharding-lab[tpu]'"
    assert rows["cpu:8"].can_compile and rows["cpu:8"].install is None


def test_texts_that_were_not_dumped_on_hardware_are_called_approximate():
    approximate = {row.chip: row.approximate for row in availability()}
    assert [approximate[chip] for chip in ("a100", "b200", "h100", "h200")] == [True, True, False, False]


@pytest.mark.compiles
def test_telling_what_is_available_does_not_import_jax():
    code = (
        "import sys; from lab.meshes.availability import availability; availability(); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_without_an_assembler_no_gpu_target_compiles(monkeypatch):
    monkeypatch.setattr(plugins, "ptxas", lambda: None)
    assert not plugins.installed("gpu") and plugins.installed("cpu")
