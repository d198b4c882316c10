"""What must happen before JAX starts, each in a process of its own."""

import os
import subprocess
import sys

import pytest

from lab.meshes import plugins
from lab.meshes.backends import skip_code_optimization
from tests.paths import ROOT

pytestmark = pytest.mark.compiles

IMPORTS = (
    "from lab.meshes.axes import Axes; from lab.meshes.backends import make_mesh, prepare; from lab.meshes.targets "
    "import parse_target; "
)


def run(code: str) -> subprocess.CompletedProcess:
    ours = ("JAX", "TPU", "XLA", "TF_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-c", IMPORTS + code], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_as_many_fake_cpu_devices_as_the_largest_target_asks_for():
    done = run("prepare([parse_target('cpu:4'), parse_target('cpu:16')]); import jax; print(len(jax.devices()))")
    assert (done.stdout, done.stderr) == ("16\n", "")


def test_fake_devices_asked_for_after_jax_has_started_are_refused():
    done = run("import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices(); prepare([parse_target('cpu:8')])")
    expected = (
        "lab.meshes.errors.UsageError: target cpu:8 needs 8 fake CPU devices and JAX has started with 1; call "
        "lab.meshes.backends.prepare"
    )
    assert done.stderr.splitlines()[-1].startswith(expected)


def test_preparing_twice_for_the_same_target_is_fine():
    assert (
        run("prepare([parse_target('cpu:8')]); import jax; jax.devices(); prepare([parse_target('cpu:8')])").returncode
        == 0
    )


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
def test_sixteen_thousand_gpus_stand_ready_without_a_word():
    code = (
        "t = parse_target('gpu:h100:2048x8'); prepare([t]); print(make_mesh(t, Axes.parse('fsdp=2048,tensor=8')).size)"
    )
    done = run(code)
    assert (done.stdout, done.stderr) == ("16384\n", "")


@pytest.mark.skipif(not plugins.installed("tpu"), reason="libtpu is not installed")
def test_a_tpu_pod_stands_ready_without_a_word():
    done = run("t = parse_target('tpu:v5p:4x4x4'); prepare([t]); print(make_mesh(t, Axes.parse('data=64')).size)")
    assert (done.stdout, done.stderr) == ("64\n", "")


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only GPU plugin is not installed")
def test_attached_devices_and_a_gpu_cluster_share_a_process():
    code = "a, g = map(parse_target, ('attached', 'gpu:h100:1x8')); prepare([a, g]); import jax; "
    code += (
        "print(make_mesh(a, Axes.of({'data': len(jax.devices())})).size == len(jax.devices()), make_mesh(g, "
        "Axes.parse('data=8')).size)"
    )
    assert run(code).stdout == "True 8\n"


def test_the_rooms_that_run_without_jax_can_import_targets():
    assert run("import sys; sys.exit('jax' in sys.modules)").returncode == 0


def test_without_optimized_code_a_users_own_flags_have_the_last_word(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    skip_code_optimization()
    assert os.environ["XLA_FLAGS"].split()[0] == "--xla_backend_optimization_level=0"
    assert os.environ["XLA_FLAGS"].split()[-1] == "--xla_backend_optimization_level=3"
