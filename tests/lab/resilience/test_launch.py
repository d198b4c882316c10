"""Processes of one program on this machine: how they start, and how they end together."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from lab.meshes.errors import UsageError
from lab.resilience.launch import GRACE_S, devices_each, environments, visible_gpus
from tests.long_tests import long

LAUNCH = [sys.executable, "-m", "lab.cli", "launch"]
BOTH_STARTED = "import os, time; i = os.environ['JAX_PROCESS_ID']; open(i, 'w').write(str(os.getpid()))\n"
BOTH_STARTED += "while not os.path.exists('0') or not os.path.exists('1'): time.sleep(0.01)\n"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


def is_running(pid):
    """What nobody has waited for is a zombie, and runs no more."""
    return subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout[:1] not in "Z"


def pids(folder):
    return [int((folder / name).read_text()) for name in "01"]


def test_process_that_fails_ends_one_that_ignores_sigterm(tmp_path):
    program = DEAF + BOTH_STARTED + "if i == '1': print('out of memory', flush=True); os._exit(9)\ntime.sleep(60)"
    start = time.monotonic()
    command = [*LAUNCH, "-n", "2", "--logs", "logs", "--", sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=40)
    assert ended.returncode == 9
    assert "1 | out of memory\nlab: process 1 of 2 exited with status 9, which ended all" in ended.stderr
    assert (tmp_path / "logs" / "process-1.log").read_text() == "out of memory\n"
    assert time.monotonic() - start < GRACE_S + 15
    assert not any(map(is_running, pids(tmp_path)))


def test_json_says_how_each_process_ended_and_where_it_printed(tmp_path):
    program = BOTH_STARTED + "print('here', flush=True)\nif i == '1': os._exit(9)\ntime.sleep(60)"
    command = [*LAUNCH, "-n", "2", "--logs", "logs", "--json", "--", sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=40)
    found = json.loads(ended.stdout)
    first, second = found["processes"]
    assert (found["schema"], found["status"], found["failed"], found["devices"]) == ("sharding-lab/launch/1", 9, 1, 1)
    assert (first["status"], first["log"]) == (128 + signal.SIGTERM, None) and "here" in ended.stderr
    assert (second["status"], second["log"]) == (ended.returncode, "logs/process-1.log") == (9, "logs/process-1.log")
    assert (tmp_path / second["log"]).read_text() == "here\n"
    assert 0 < second["seconds"] <= found["seconds"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_launcher(tmp_path, number):
    deaf = DEAF if number == signal.SIGKILL else ""
    command = [*LAUNCH, "-n", "2", "--", sys.executable, "-c", deaf + BOTH_STARTED + "time.sleep(60)"]
    launcher = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while not all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in "01"):
        assert time.monotonic() < until
        time.sleep(0.02)
    launcher.send_signal(number)
    assert launcher.wait(20) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    until = time.monotonic() + 5
    while any(map(is_running, pids(tmp_path))):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_gpus_are_divided_among_processes():
    gpus = visible_gpus({"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    found = environments(2, devices_each(2, None, gpus), gpus, 1234, {})
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["4,5", "6,7"]
    assert all("JAX_PLATFORMS" not in each for each in found)
    with pytest.raises(UsageError, match="found 4 GPUs, expected 6"):
        devices_each(2, 3, gpus)


STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    x_BD = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    w_DF = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "tensor")))

    def step(w_DF, x_BD):
        loss, gradient_DF = jax.value_and_grad(lambda w_DF: jnp.sum(jnp.tanh(x_BD @ w_DF)))(w_DF)
        return loss, w_DF - gradient_DF

    return jax.jit(step, out_shardings=(None, w_DF.sharding)), (w_DF, x_BD)
"""


@pytest.mark.compiles
def test_ledger_of_two_processes_is_that_of_one(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.py").write_text(STEP)
    inspect = ["inspect", "step.py:build", "--mesh", "data=2,tensor=2", "--json", "--target"]
    launched = [*LAUNCH, "-n", "2", "--devices", "2", "--logs", "logs", "--", sys.executable, "-m", "lab.cli", *inspect]
    environ = os.environ | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([*launched, "attached"], capture_output=True, text=True, timeout=120, env=environ)
    assert ended.returncode == 0, ended.stderr
    several = json.loads(ended.stdout)["transfers"]
    one = json.loads(lab(*inspect, "cpu:4").out)["transfers"]
    links = {axis: transfer.pop("link") for transfer in several for axis in transfer["axes"]}
    for transfer in one:
        transfer.pop("link")
    assert links == {"data": "network", "tensor": "host"}
    assert sorted(map(str, several)) == sorted(map(str, one)) and one
    assert "{" not in (tmp_path / "logs" / "process-1.log").read_text()


PROGRAM = """
import sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import lab
from lab.diagnosis import proof

if "alone" not in sys.argv:
    jax.distributed.initialize()
if jax.process_index():
    proof.LEAST_S = 0.0  # As if this process were slower.
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
shapes = (32, 128), (128, 64), (256, 32)
w, v, x = jax.jit(lambda: tuple(jnp.ones(shape) / 99 for shape in shapes), out_shardings=rows)()

def loss(w, v, x):
    w, v = (jax.lax.with_sharding_constraint(each, whole) for each in (w, v))
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ v) ** 2)

step = jax.jit(jax.grad(loss, argnums=(0, 1)))
findings = lab.diagnose(step, w, v, x)
sent = sorted((t.kind, t.payload_bytes, t.executions) for t in lab.inspect(step, w, v, x).transfers)
tried = [(finding.kind, finding.proof.remedy, finding.proof.after) for finding in findings if finding.kind != "on_slow_link"]
seconds = lab.time(step, w, v, x, target="gpu:h100:1x4").time.total
print("found", (sent, tried, seconds > 0, float(jnp.sum(step(w, v, x)[0]))))
"""


def found(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("found ")]


@long
def test_a_program_of_two_processes_diagnoses_itself_in_both_as_in_one(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    program = [sys.executable, "program.py"]
    command = [*LAUNCH, "-n", "2", "--devices", "2", "--logs", "logs", "--", *program]
    several = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert several.returncode == 0, several.stderr
    one = subprocess.run(
        [*program, "alone"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"},
    )
    of_both = [found(several.stdout), found((tmp_path / "logs" / "process-1.log").read_text())]
    # What changes save inside the host of one process is saved between hosts here.
    (of_one,) = (line.replace("'host'", "'network'") for line in found(one.stdout))
    assert of_both == [[of_one], [of_one]] and "out_shardings P('data', None) of result 0" in of_one


@long
@pytest.mark.parametrize(
    "command",
    [
        ["bench", "all_reduce", "--algorithm", "lax", "--sizes", "1KiB..4KiB"],
        ["run", "ch24_fsdp_tensor_parallel", "--target", "attached"],
    ],
    ids=lambda command: command[0],
)
def test_commands_on_attached_devices_print_once_for_two_processes(tmp_path, command):
    launched = [*LAUNCH, "-n", "2", "--devices", "2", "--logs", "logs", "--", sys.executable, "-m", "lab.cli", *command]
    environ = os.environ | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [*launched, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=environ
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout[ended.stdout.index("{") :])
    assert "{" not in (tmp_path / "logs" / "process-1.log").read_text()
