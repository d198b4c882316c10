"""Programs that end their process, or write past Python, end no command: they are built in a process of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.compiles

PROGRAMS = """
import os, time
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def build(mesh):
    os.write(1, b"written past Python")
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return lambda x: x.sum(0), (x,)

def aborts(mesh):
    mesh = Mesh(mesh.devices.reshape(2, 4), ("a", "b"))
    def kernel(x):
        return jax.lax.psum(x, "a")
    x = jax.ShapeDtypeStruct((64, 8), jnp.bfloat16, sharding=NamedSharding(mesh, P("a")))
    return jax.shard_map(kernel, mesh=mesh, in_specs=P("a"), out_specs=P(), axis_names={"a"}), (x,)

def exits(mesh):
    os._exit(0)

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def raises(mesh):
    raise Unspeakable

def interrupts(mesh):
    raise KeyboardInterrupt

def closes(mesh):
    os.closerange(3, 100)
    return build(mesh)

def sleeps(mesh):
    open("sleeping", "w").write(str(os.getpid()))
    time.sleep(60)
"""
SHADOWS = ("lab.py", "meshes.py", "experiments.py")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "step.py").write_text(PROGRAMS)
    for name in SHADOWS:
        (tmp_path / name).write_text("raise ImportError('not the package')")
    return tmp_path


# Not from the folder itself, where Python would find its lab.py.
COMMAND = [
    sys.executable,
    "-P",
    "-c",
    "import os, sys; os.chdir(sys.argv.pop(1)); from lab.cli.main import main; main()",
]


def lab(folder, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([*COMMAND, str(folder), *arguments], capture_output=True, text=True, timeout=200)


def test_what_ends_a_program_is_one_line_each_and_the_others_are_inspected(folder):
    sources = [f"step.py:{name}" for name in ("aborts", "exits", "build", "raises", "interrupts", "closes")]
    done = lab(folder, "inspect", *sources, "--mesh", "data=8", "--json")
    (found,) = json.loads(done.stdout)
    assert (found["source"], found["totals"]["all"]["sites"]) == ("step.py:build", 1)
    lines = [line for line in done.stderr.splitlines() if line.startswith("lab: ")]
    assert done.returncode == 2 and len(lines) == 5
    assert lines[0].startswith("lab: step.py:aborts: its process was ended by signal 6 (Aborted) while compiling")
    assert lines[1].startswith("lab: step.py:exits: its process exited with status 0 while building")
    assert lines[2] == "lab: step.py:raises raised Unspeakable: Unspeakable"
    assert lines[3] == "lab: step.py:interrupts raised KeyboardInterrupt: KeyboardInterrupt"
    assert lines[4].startswith("lab: step.py:closes: its process ")
    assert "Invalid binary instruction opcode copy" in done.stderr, "XLA's own reason"
    assert "xla::HloInstruction" not in done.stderr and "stack trace" not in done.stderr


def test_lab_diff_names_the_program_that_ended_its_process(folder):
    done = lab(folder, "diff", "step.py:build", "step.py:exits", "--mesh", "data=8")
    assert (done.returncode, done.stdout) == (2, "")
    assert "lab: step.py:exits: its process exited with status 0 while building" in done.stderr


def test_an_interrupt_ends_the_process_of_a_program_too(folder):
    arguments = [str(folder), "inspect", "step.py:sleeps", "--mesh", "data=8"]
    running = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while not ((folder / "sleeping").exists() and (folder / "sleeping").read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    theirs = int((folder / "sleeping").read_text())
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130 and b"Traceback" not in err
    while is_alive(theirs) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(theirs)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
