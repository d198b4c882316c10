"""What compiles for GPUs with the tests' stand-in for `ptxas` in its place is what compiles with the real one."""

import os
import subprocess
import sys

import pytest

from lab.meshes import plugins

pytestmark = pytest.mark.compiles

COMPILED = """
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target
target = parse_target("gpu:h100:1x2")
prepare([target])
import jax
mesh = make_mesh(target, Axes.parse("data=2"))
x = jax.ShapeDtypeStruct((1024, 1024), "bfloat16", sharding=jax.NamedSharding(mesh, jax.P("data")))
compiled = jax.jit(lambda x: jax.scipy.special.gammaln(x @ x.T).sum()).lower(x).compile()
print(compiled.as_text(), compiled.memory_analysis().temp_size_in_bytes)
"""


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
def test_texts_and_memory_are_the_same_without_machine_code():
    real = {name: value for name, value in os.environ.items() if name != "CUDA_ROOT"}
    assert "CUDA_ROOT" in os.environ
    runs = [
        subprocess.Popen([sys.executable, "-c", COMPILED], env=each, stdout=subprocess.PIPE, text=True)
        for each in (real, os.environ)
    ]
    assembled, not_assembled = (run.communicate()[0] for run in runs)
    assert "all-reduce" in assembled and assembled == not_assembled
