"""Where XLA aborts, one run has failed, and the others are settled all the same."""

import json
import subprocess
import sys

import pytest

from tests.extensions.copies import copied

pytestmark = pytest.mark.compiles

ABORTS = """
import os
from dataclasses import replace
from lab.experiments.{like} import EXPERIMENT as LIKE

def ends(*_):
    os.write(1, b"written past Python\\n")
    os.abort()

EXPERIMENT = replace(LIKE, name="{name}", {what})
"""
ADDED = {
    "ch15_aborts": ("ch15_split_products", "build=ends"),
    "ch16_aborts": ("ch16_pipeline_memory", "answer=ends"),
    "ch14_aborts": ("ch14_training", "layouts=tuple(replace(each, build=ends) for each in LIKE.layouts)"),
}


def test_an_abort_ends_one_run_one_answer_or_one_training_and_no_other(tmp_path):
    copy = copied(tmp_path)
    for name, (like, what) in ADDED.items():
        (copy / "experiments" / f"{name}.py").write_text(ABORTS.format(name=name, like=like, what=what))
    command = [
        sys.executable,
        "-c",
        "from lab.cli.main import main; main()",
        "run",
        *ADDED,
        "ch15_split_products",
        "--target",
        "cpu:8",
        "--json",
    ]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=300)
    verdicts = {
        result["experiment"]: (result["verdict"], result["failure"]) for result in json.loads(done.stdout)["results"]
    }
    assert done.returncode == 1
    assert verdicts == {
        "ch15_aborts": ("failed", "its process was ended by signal 6 (Aborted) while running"),
        "ch15_split_products": ("exact", None),
        "ch16_aborts": ("failed", "its process was ended by signal 6 (Aborted) while answering"),
    }
    *_, line = done.stderr.splitlines()
    assert line.startswith("lab: ch14_aborts failed: its process was ended by signal 6 (Aborted)")
