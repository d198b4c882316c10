"""`lab` as a process of its own: what it imports, what a terminal shows, and how it is interrupted."""

import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from fcntl import ioctl

import pytest

from tests.lab.cli.test_cli import TEXT

pytestmark = pytest.mark.compiles
LAB = [sys.executable, "-m", "lab"]
STUCK = """
import hashlib

def build(mesh):
    hashlib.pbkdf2_hmac("sha512", b"", b"", 200_000_000)  # Minutes in C, like a compilation.
"""
PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    return jnp.sum, (jax.ShapeDtypeStruct((64,), jnp.float32, sharding=NamedSharding(mesh, P("data"))),)
"""


TRAIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
w, x = (jax.device_put(np.ones((256, 256), np.float32), NamedSharding(mesh, P())) for _ in range(2))

@jax.jit
def step(w, x):
    return w - jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

for _ in range(2):
    w = step(w, x)
"""


@pytest.fixture(autouse=True)
def sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.hlo").write_text(TEXT)
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "model.py").write_text(PROGRAM)
    (tmp_path / "train.py").write_text(TRAIN)


class Terminal:
    """A process on a terminal of its own, of so many columns."""

    def __init__(self, command, columns=100, term="xterm-256color"):
        self.ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment | {"TERM": term}
        )
        os.close(theirs)
        self.read = b""

    @property
    def shown(self):
        # Whole: a read may end inside a character.
        return self.read.decode(errors="replace")

    def read_until(self, text=None):
        """Until this is shown, or the process has ended."""
        while text is None or text not in self.shown:
            try:
                self.read += os.read(self.ours, 65536)
            except OSError:  # The process has ended.
                break
        return self.shown


@contextmanager
def on_terminal(command, **options):
    terminal = Terminal(command, **options)
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.ours)


@pytest.mark.parametrize(
    "arguments", ["--version", "--help", "inspect step.hlo", "explain", "targets", "book ch12.ring"]
)
def test_no_jax_is_imported_for(arguments):
    script = f"""
import sys
from lab.cli.main import main
sys.argv = ["lab", *{arguments.split()}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
assert not {{"jax", "jaxlib"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("module", ["lab", "lab.cli"])
def test_versions_are_those_of_the_packages(module):
    from importlib.metadata import version

    printed = subprocess.check_output([sys.executable, "-m", module, "--version"], text=True)
    named = {"lab": "sharding-lab", "jax": "jax", "jaxlib": "jaxlib"}
    assert printed == ", ".join(f"{label} {version(name)}" for label, name in named.items()) + "\n"


def ended_by_interrupt(terminal, text):
    """What is shown in the end of a command that is interrupted two seconds after it shows a text."""
    terminal.read_until(text)
    time.sleep(2)
    start = time.monotonic()
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 130
    assert time.monotonic() - start < 20
    return terminal.read_until()


def test_an_interrupt_ends_the_process_while_the_main_thread_is_in_c():
    in_c = "import stuck; from lab.cli.interrupt import ends_at_once\nwith ends_at_once(): print('now'); stuck.build(0)"
    with on_terminal([sys.executable, "-c", in_c]) as terminal:
        assert ended_by_interrupt(terminal, "now").endswith("\x1b[?25h\r\x1b[Kinterrupted\r\n")


def test_an_interrupt_ends_the_process_of_a_program_that_is_in_c():
    with on_terminal([*LAB, "inspect", "stuck.py:build", "--mesh", "data=2"]) as terminal:
        shown = ended_by_interrupt(terminal, "building stuck.py:build")
        assert "\x1b[?25h" in shown and "Traceback" not in shown


def test_a_terminal_shows_each_stage_and_keeps_none():
    with on_terminal([*LAB, "inspect", "model.py:build", "--mesh", "data=8"]) as terminal:
        shown = terminal.read_until()
        stages = [
            "starting a process to compile in",
            "building model.py:build",
            "lowering model.py:build",
            "compiling model.py:build for cpu:8",
        ]
        assert [stage for stage in [*stages, "diagnosing model.py:build"] if stage not in shown] == []
        assert "\x1b[1A\x1b[2K" in shown and terminal.process.wait() == 0


def test_a_terminal_that_cannot_move_its_cursor_gets_a_line_a_stage():
    with on_terminal([*LAB, "inspect", "model.py:build", "--mesh", "data=8"], term="dumb") as terminal:
        shown = terminal.read_until()
        assert "\r\ncompiling model.py:build for cpu:8\r\n" in shown and "\x1b" not in shown


def test_a_script_shows_what_is_compiled_while_it_is_followed_and_which_change_is_tried():
    with on_terminal([*LAB, "inspect", "train.py", "--target", "cpu:2"], term="dumb") as terminal:
        shown = terminal.read_until().replace("\r\n", "\n")
    stages = [
        "following train.py",
        "compiling step (train.py:13), to know where its results lie",
        "diagnosing train.py:step",
        "trying 1 argument donated in train.py:step",
        "train.py:step: ",
    ]
    assert [stage for stage in stages if f"\n{stage}" not in shown] == []
    assert sorted(stages, key=lambda stage: shown.index(f"\n{stage}")) == stages


@pytest.mark.parametrize("arguments", [["inspect", "step.hlo", "--mesh", "data=2,tensor=4"], ["targets"], ["explain"]])
def test_a_terminal_of_80_columns_shows_no_longer_line(arguments):
    piped = subprocess.check_output([*LAB, *arguments], text=True)
    with on_terminal([*LAB, *arguments], columns=80, term="dumb") as terminal:
        shown = terminal.read_until()
    assert "\x1b" not in shown and max(map(len, shown.split("\r\n"))) <= 80 <= max(map(len, piped.splitlines()))
    words = {word.rstrip(",") for word in piped.split() if word[0] != "─"}
    assert words - {word.rstrip(",") for word in shown.split()} == set()


def test_a_pipe_shows_no_stage():
    answer = subprocess.run([*LAB, "inspect", "model.py:build", "--mesh", "data=8"], capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "") and "compiling" not in answer.stdout
