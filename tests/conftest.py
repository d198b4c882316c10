"""Eight fake CPU devices for every test, asked for before JAX starts, and compilers that hurry.

Nothing here times a CPU: machine code of any quality does, and XLA's passes, which decide what is sent, stay as they
are. Compiling is most of the suite: a decoder's step takes a seventh of the time (0.63 s for 4.9 s with jax 0.10.2).
For GPUs no machine code is made at all.
"""

import gc
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import jax
import pytest

from lab.meshes.backends import prepare, skip_code_optimization
from lab.meshes.targets import parse_target
from tests import assembler

# Modules and the tests themselves stay to the end: no cycle among them is looked for, neither while they are made nor
# later (a fifth of the time that collecting them takes, and 3 % of the tests').
gc.disable()
os.environ.pop("COLUMNS", None)  # Lines are as long as they are.
skip_code_optimization()
_folder = TemporaryDirectory()
assembler.stand_in(Path(_folder.name))
prepare([parse_target("cpu:8")])
# A machine under load is no fault of a test.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

LEFT_OUT = re.compile(r"^pytestmark = \[?pytest\.mark\.(compiles|slow)\b", re.MULTILINE)
WITHOUT_COMPILING = "not compiles and not slow"
"""The choice of `make test-fast`."""
_lowered: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _seconds, **_: _lowered.append(event) if event.endswith("jaxpr_to_mlir_module_duration") else None
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which every test is left out is not even imported."""
    is_python = collection_path.suffix == ".py" and config.option.markexpr == WITHOUT_COMPILING
    return True if is_python and LEFT_OUT.search(collection_path.read_text()) else None


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A test that compiles says so, so that `make test-fast` can leave it out."""
    before = len(_lowered)
    result = yield
    if len(_lowered) > before and item.get_closest_marker("compiles") is None:
        pytest.fail("this test compiles a program: mark it with @pytest.mark.compiles", pytrace=False)
    return result
