"""Calls in another process: XLA aborts at some programs, and a user's code may end its process, or write past Python.

One process answers all calls, since it takes seconds to import JAX; after it was ended the next call starts another.
Where each call is to find JAX as it was imported, forks of that process answer. What is printed there goes to stderr.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from lab.core.faults import fault_of
from lab.core.known import known
from lab.meshes import processes
from lab.meshes.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
Stage = Callable[[str], AbstractContextManager[None]]
"""What goes on around a stage of the work, by its name."""
SERVE = "{prelude}; from lab.compile.other_process import serve; serve({answers}, {alive}, {forks})"
_SAME_PATH = "import sys; sys.path[:] = {path!r}"
_LAB_ALONE = (
    "import sys; from importlib.util import module_from_spec, spec_from_file_location; "
    "spec = spec_from_file_location('lab', {init!r}, submodule_search_locations={folders!r}); "
    "sys.modules['lab'] = lab = module_from_spec(spec); spec.loader.exec_module(lab)"
)
"""Of this process' path another Python gets the lab and nothing else."""
ENDING_S = 5.0
"""How long a process that closed its connection has to end."""
_ANSWERED = 86
"""The status of a fork that has answered."""


class ProcessEnded(Exception):
    """The process was ended before it answered: `was ended by signal 6 (Aborted) while compiling`."""


@dataclass(frozen=True)
class Python:
    """What runs another process.

    Attributes:
      prelude: what lets it import the lab.
    """

    executable: str
    prelude: str

    @classmethod
    def this(cls) -> Python:
        return cls(sys.executable, _SAME_PATH.format(path=sys.path))

    @classmethod
    def of_environment(cls, executable: Path) -> Python:
        """With packages of its own, and the lab of this process."""
        lab, *parts = (known(find_spec(name)) for name in ("lab", "lab.meshes", "lab.experiments"))
        folders = [*_folders(lab), *(str(Path(folder).parent) for part in parts for folder in _folders(part))]
        prelude = _LAB_ALONE.format(init=lab.origin, folders=list(dict.fromkeys(folders)))
        return cls(str(executable), prelude)


def _folders(package: ModuleSpec) -> list[str]:
    return list(package.submodule_search_locations or ())


class Call(Protocol):
    """Calls a function of a module there, with a `Stage` before the other arguments, and gives what it returns.

    Raises:
      UsageError, Fault: the function raised.
      ProcessEnded: the process was ended.
    """

    def __call__(self, function: Callable[Concatenate[Stage, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@contextmanager
def other_process(
    stage: Stage = lambda _: nullcontext(), python: Python | None = None, before_forks: Callable[[], None] | None = None
) -> Iterator[Call]:
    """A process to call; it is ended at the end, with whatever it has started. In a program of several processes calls
    are made in this one, which JAX knows.

    Args:
      stage: what goes on here around a stage there.
      python: what runs the process; by default this Python.
      before_forks: what the process does first; a fork of it then answers each call, and ends with whatever it has
        begun. JAX may be imported in it, and not started.
    """
    if python is None and processes.found():
        yield partial(called_here, stage)
        return
    running: list[_Running] = []

    def call(function: Callable[Concatenate[Stage, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not running:
            running.append(_started(python or Python.this(), before_forks))
        try:
            found: T = _answer(running[0], pickle.dumps((function, args, kwargs)), stage)
            return found
        except ProcessEnded:
            running.clear()
            raise

    try:
        yield call
    finally:
        for each in running:
            _end(each)


def called_here(stage: Stage, function: Callable[Concatenate[Stage, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A `Call` that is no other process."""
    with redirect_stdout(sys.stderr):
        return function(stage, *args, **kwargs)


@dataclass(frozen=True)
class _Running:
    """One process that answers.

    Attributes:
      alive: a pipe that nobody reads or writes; it is closed when this process ends, however it does.
      folder: of temporary files of forks, which may be ended before they remove them.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    alive: int
    folder: tempfile.TemporaryDirectory[str]


def _started(python: Python, before_forks: Callable[[], None] | None) -> _Running:
    ours, theirs = Pipe()
    watched, alive = os.pipe()
    folder = tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)
    with theirs:
        forks = before_forks is not None
        serve_them = SERVE.format(prelude=python.prelude, answers=theirs.fileno(), alive=watched, forks=forks)
        process = subprocess.Popen(
            [python.executable, "-P", "-c", serve_them],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=(theirs.fileno(), watched),
            process_group=0,
            env=os.environ | ({"TMPDIR": folder.name} if forks else {}),
        )
    os.close(watched)
    if before_forks is not None:
        ours.send_bytes(pickle.dumps(before_forks))
    return _Running(process, ours, alive, folder)


def _answer(running: _Running, request: bytes, stage: Stage) -> Any:
    under_way = "starting"
    stages: list[ExitStack] = []  # Those that go on, the innermost last.

    def begin(name: str) -> None:
        stages.append(ExitStack())
        stages[-1].enter_context(stage(name))

    try:
        begin(f"{under_way} a process to compile in")
        running.connection.send_bytes(request)
        what, value = running.connection.recv()
        stages.pop().close()
        while what in ("begun", "done"):
            if what == "begun":
                under_way = value.partition(" ")[0]
                begin(value)
            else:
                stages.pop().close()
            what, value = running.connection.recv()
    except (EOFError, ConnectionError):
        raise ProcessEnded(f"{_ending(running)} while {under_way}") from None
    finally:
        while stages:
            stages.pop().close()
    if what == "raised":
        error, stack = value
        raise error from _Stack(stack)
    return value


def _ending(running: _Running) -> str:
    """How a process ended that has hung up."""
    with suppress(subprocess.TimeoutExpired):
        running.process.wait(ENDING_S)
    _end(running)
    status = running.process.returncode
    return (
        f"exited with status {status}"
        if status >= 0
        else f"was ended by signal {-status} ({signal.strsignal(-status)})"
    )


def _end(running: _Running) -> None:
    running.connection.close()
    os.close(running.alive)
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    running.folder.cleanup()


class _Stack(Exception):
    """A traceback of the other process, as the cause of an error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def serve(answers: int, alive: int, forks: bool) -> NoReturn:
    """Answers calls, in the process that is called."""
    Thread(target=_end_with, args=(alive,), daemon=True).start()
    connection = Connection(answers)
    if forks:
        pickle.loads(connection.recv_bytes())()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            os._exit(0)
        if forks:
            _answer_in_fork(connection, request)
        else:
            _answer_here(connection, request)


def _answer_here(connection: Connection, request: bytes) -> None:
    @contextmanager
    def stage(name: str) -> Iterator[None]:
        connection.send(("begun", name))
        try:
            yield
        finally:
            connection.send(("done", None))

    try:
        function, args, kwargs = pickle.loads(request)
        answer = pickle.dumps(("returned", function(stage, *args, **kwargs)))
    except BaseException as error:
        stack = "".join(traceback.format_exception(error))
        answer = pickle.dumps(("raised", (error if isinstance(error, UsageError) else fault_of(error), stack)))
    connection.send_bytes(answer)


def _answer_in_fork(connection: Connection, request: bytes) -> None:
    """Ends this process as the fork was ended, if it did not answer. What it leaves in the folder of temporary files
    goes with it: it ends in the middle of what XLA does."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if not child:
            os.environ["TMPDIR"] = tempfile.tempdir = folder
            _answer_here(connection, request)
            os._exit(_ANSWERED)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if status != _ANSWERED:
        os._exit(status)


def _end_with(alive: int) -> None:
    """Ends this process, and all that it has started, as soon as the one that calls it has ended."""
    os.read(alive, 1)
    os.killpg(0, signal.SIGKILL)
