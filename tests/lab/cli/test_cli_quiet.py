"""XLA is told how much to log before JAX is imported, which else sets another level itself."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            os.write(1, f"level {os.environ.get('TF_CPP_MIN_LOG_LEVEL')}\\n".encode())
sys.meta_path.insert(0, Watch())
sys.argv[0] = "lab"
from lab.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        (["fit", "ch24_hybrid", "--target", "cpu:8"], 3),
        (["run", "ch24_hybrid", "--target", "attached", "--set", "no=1"], 2),
    ],
)
def test_jax_is_imported_after_the_level_is_set(arguments, level):
    found = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=_without())
    assert found.returncode == 2 and found.stdout.splitlines() == [f"level {level}"], found


def _without() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
