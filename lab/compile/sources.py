"""Where inspected programs come from: compiled texts in files and in the folders of XLA dumps, and functions that build
a program."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from lab.compile.text_files import read_text_file
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.hlo.buffers import Buffers, read_buffers
from lab.meshes.axes import Axes
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError, no_such, one_line, text_of
from lab.meshes.targets import Target, check_size, parse_target

_MEMORY_KIND = "memory_kind"
_DUMPED = "*after_optimizations.txt"


class ValueNeeded(BaseException):
    """Python asks for a value of an array that has none. No `except Exception` of a program is meant to catch it."""


def is_program(source: str) -> bool:
    """`file.py:build` or `package.module:build`, and not the name of a file or folder that exists."""
    return ":" in source and not Path(source).exists()


def texts(path: Path) -> list[tuple[str, str]]:
    """Names and texts of what lies there: one file, or every partitioned module of an XLA dump's folder.

    Raises:
      UsageError: nothing there, nothing in it, or no text.
    """
    if path.is_dir():
        return _dumped(path)
    return [(str(path), read_text_file(path))]


def buffers_beside(text: Path) -> Buffers | None:
    """XLA's buffer assignment of a dumped text; None where it was not dumped, or cannot be read."""
    dumped = text.with_suffix(".hlo.pb")
    if not text.match(_DUMPED) or not dumped.is_file():
        return None
    try:
        return read_buffers(dumped.read_bytes())
    except (ValueError, LookupError, OSError):  # A module without an assignment, or damaged.
        return None


def saved_ledger(source: str) -> Ledger:
    """The one ledger that `lab inspect --json` printed into a file.

    Raises:
      UsageError: no such file, or another content.
    """
    expected = "expected the output of lab inspect --json for one program"
    found = read_json(Path(source), expected)
    try:
        ledger = Ledger.from_json(found)
        axes = None if ledger.mesh is None else Axes.of(ledger.mesh)
        names = None if axes is None else axes.names
        if axes and ledger.target:
            check_size(parse_target(ledger.target), axes)
        for number, transfer in enumerate(ledger.transfers):
            for name in transfer.axes or ():
                if names is not None and name not in names:
                    raise UsageError(f"transfers[{number}].axes: {no_such('axis', name, names, ' in the mesh')}")
        return ledger
    except UsageError as error:
        raise UsageError(f"{source}: not a ledger ({error}); {expected}") from None


def _dumped(folder: Path) -> list[tuple[str, str]]:
    modules = [(str(path), read_text_file(path)) for path in sorted(folder.glob(_DUMPED))]
    if not modules:
        raise UsageError(
            f"{folder}: contains no {_DUMPED}; dump with XLA_FLAGS='--xla_dump_to={folder} --xla_dump_hlo_as_text'"
        )
    # A session's dump is full of small modules of one device; they communicate nothing, unless all do.
    return [module for module in modules if _is_partitioned(module[1])] or modules


def _is_partitioned(text: str) -> bool:
    head = text.partition("\n")[0]
    return "num_partitions=" in head or "replica_count=" in head


def builder(source: str) -> Callable[[Any], Any]:
    """The function that `file.py:build` or `package.module:build` names.

    Raises:
      UsageError: no such file, module or function, or the module raises.
    """
    place, _, name = source.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(f"{place}: no such file; expected file.py:build or package.module:build")
    if not place.endswith(".py") and not _is_there(place):
        files = get_close_matches(f"{place}.py", [path.name for path in Path().glob("*.py")], 1, 0.7)
        rest = f"did you mean {files[0]}:{name}?" if files else "expected file.py:build or package.module:build"
        raise UsageError(f"{place}: no such module; {rest}")
    with users_code(place):
        module = _load(Path(place)) if place.endswith(".py") else _import(place)
    found: Callable[[Any], Any] | None = getattr(module, name, None)
    if found is not None and not callable(found):
        article = "an" if type(found).__name__[0] in "aeiou" else "a"
        raise UsageError(f"{source}: {name} is {article} {type(found).__name__}, expected a function")
    if not callable(found):
        functions = [
            key for key, value in vars(module).items() if callable(value) and value.__module__ == module.__name__
        ]
        raise UsageError(f"{place}: {no_such('function', name, functions)}")
    return found


def names_memory_kinds(build: Callable[[Any], Any]) -> bool:
    """Whether the file of a builder places anything on the host by its sharding, as far as its text shows: a sharding
    forgets a kind that its devices do not know."""
    module = inspect.getmodule(build)
    try:
        return module is not None and _MEMORY_KIND in inspect.getsource(module)
    except OSError:  # It was not made from a file.
        return False


def program(source: str, build: Callable[[Any], Any], mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function and arguments that a builder gives for a mesh; what is lowered or compiled already has none.

    Raises:
      UsageError: the builder raises, or returns something else.
    """
    if not _takes_one(build):
        raise UsageError(f"{source} cannot be called with a mesh alone; expected build(mesh)")
    with users_code(source):
        built = build(mesh)
    if is_staged(built):
        return built, ()
    is_pair = isinstance(built, tuple) and len(built) == 2 and isinstance(built[1], tuple | list)
    if not (is_pair and (callable(built[0]) or is_staged(built[0]))):
        raise UsageError(
            f"{source} returned {_kind(built)}, expected (function, args) with args a tuple, or what step.lower(*args) "
            "gives"
        )
    return built[0], tuple(built[1])


def is_staged(value: Any) -> bool:
    """Whether it is lowered or compiled, by JAX or by a library around it."""
    return hasattr(value, "as_text") and not isinstance(value, type)


def _is_there(module: str) -> bool:
    """Where a package above it raises, importing it will say so."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
    finally:
        del sys.path[0]


def _takes_one(build: Callable[[Any], Any]) -> bool:
    try:
        inspect.signature(build).bind(None)
    except TypeError:
        return False
    except ValueError:  # It has no signature that Python knows.
        return True
    return True


def _load(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent.resolve()))
    spec = known(importlib.util.spec_from_file_location(str(path), path))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name; the path is one that no other module has.
    sys.modules[spec.name] = module
    known(spec.loader).exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


@contextmanager
def users_code(source: str) -> Iterator[None]:
    """Lets a user's code run: what it prints goes to stderr, what it raises becomes one line, with the last frames in
    the user's files as a note."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UsageError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt, ValueNeeded) as error:
        if needed := _value_needed(error):
            line = _last_line(needed.__traceback__) or _last_line(error.__traceback__) or source
            raise UsageError(
                f"{line} asks for the value of an array, {needed}; arrays have shapes here and no values"
            ) from needed
        frames = _users_frames(error.__traceback__)
        said = (
            f"{type(error).__name__}: {one_line(error)}{_hidden_lab(error)}{_compile_only(error)}{_other_mesh(error)}"
        )
        # An error of syntax says where it is.
        tail = "" if isinstance(error, SyntaxError) else "; --traceback shows where"
        failure = UsageError(f"{source} raised {said}" if frames else f"{source}: {said}{tail}")
        if frames:
            failure.add_note(frames)
        raise failure from error


def _value_needed(error: BaseException | None) -> ValueNeeded | None:
    """Also where NumPy, or another library, raises an error of its own because of it."""
    while error is not None and not isinstance(error, ValueNeeded):
        error = error.__cause__ or error.__context__
    return error


def _hidden_lab(error: BaseException) -> str:
    """Where a user's code asked for a module `lab` of its own, that it got this package instead."""
    if not (isinstance(error, ImportError | AttributeError) and re.search(r"'lab['.]", text_of(error))):
        return ""
    own = next((path for path in (Path(sys.path[0], "lab.py"), Path(sys.path[0], "lab")) if path.exists()), None)
    is_ours = own is None or own.resolve() == Path(__file__).parent.parent
    return "" if is_ours else f"; `lab` is sharding-lab's package here, not {own}: rename yours"


def _compile_only(error: BaseException) -> str:
    """Where JAX was to put an array on a device that is not there, or to run something on it, that this is why."""
    if not re.search(r"compile-only client|Executable' object has no attribute 'local_devices'", text_of(error)):
        return ""
    return (
        "; this target's devices only compile, no array can be put on them: outside the step use shapes "
        "(jax.eval_shape, jax.ShapeDtypeStruct), or make arrays outside jax.set_mesh"
    )


def _other_mesh(error: BaseException) -> str:
    """Where a function places arrays on a mesh of its own, and its arguments lie on another."""
    if "incompatible devices for jitted computation" not in text_of(error):
        return ""
    return (
        "; the function names a mesh of its own: make it of the target's devices (in Python, lab.mesh(target, ...)), "
        "or name PartitionSpecs alone, under jax.set_mesh"
    )


@contextmanager
def compiler(source: str, target: Target | None) -> Iterator[None]:
    """Lets XLA compile a program: what it refuses becomes one line."""
    try:
        yield
    except Exception as refusal:
        said = f"{type(refusal).__name__}: {one_line(refusal)}"
        raise UsageError(
            f"{source} does not compile for {target or 'its devices'}: {said}; --traceback shows where"
        ) from refusal


def _users_frames(trace: TracebackType | None) -> str:
    """The last three frames of the user's files, without those of the lab, of Python and of what is installed."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    theirs = [summary for frame, summary in zip(frames, traceback.extract_tb(trace), strict=True) if is_users(frame)]
    return "".join(traceback.format_list(theirs[-3:])).rstrip()


def is_users(frame: FrameType) -> bool:
    """Whether its code is neither the lab's, nor Python's, nor installed."""
    filename, standard = frame.f_code.co_filename, str(Path(traceback.__file__).parent)
    is_ours = f"{frame.f_globals.get('__name__')}.".startswith("lab.")
    return not (is_ours or filename.startswith(("<", standard)) or "site-packages" in filename)


def _last_line(trace: TracebackType | None) -> str:
    """The innermost line of the user's own files."""
    lines = [line_of(*each) for each in traceback.walk_tb(trace) if is_users(each[0])]
    return lines[-1] if lines else ""


def line_of(frame: FrameType, line: int) -> str:
    """`train.py:36`."""
    return f"{Path(frame.f_code.co_filename).name}:{line}"


def _kind(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"an object of type {type(value).__name__}"
