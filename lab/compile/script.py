"""Follows a script that makes its own mesh and its own arrays, up to the functions that it calls on several devices."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.compile import sources
from lab.compile.other_process import Stage
from lab.core.units import count
from lab.meshes.errors import UsageError, no_such

if TYPE_CHECKING:
    from lab.compile.shapes_only import Called


@dataclass(frozen=True)
class Followed:
    """What a script called on several devices.

    Attributes:
      calls: the different ones, in their order.
      ended: why it was followed no further; empty where it ran to its end.
      asks_value: it was left where it asks for the value of an array.
    """

    calls: tuple[Called, ...]
    ended: str
    asks_value: bool = False


class _Enough(BaseException):
    pass


def is_script(source: str) -> bool:
    """A file of Python, and no function in it."""
    return source.endswith(".py")


def followed(
    script: str,
    arguments: Sequence[str],
    devices: Sequence[Any],
    usable_bytes: int | None,
    most_calls: int,
    stage: Stage = lambda _: nullcontext(),
) -> Followed:
    """Runs a script as Python does, on these devices and with arrays that have no values.

    Args:
      usable_bytes: what JAX takes of the memory of each device; None on CPUs.
      most_calls: on several devices, after which it is left.
      stage: what goes on around what takes time in it, by its name.
    Raises:
      UsageError: there is no such file; it raises; or it calls no function of its own on several devices, or asks for
        the value of an array before it does.
    """
    if not Path(script).is_file():
        raise UsageError(f"{script}: no such file; expected a script of Python, or file.py:build")
    from lab.compile import shapes_only

    made = 0

    def called(_: Called) -> None:
        nonlocal made
        made += 1
        if made > most_calls:
            raise _Enough

    sys.argv, ended, asks_value = [script, *arguments], "", False
    sys.path.insert(0, str(Path(script).parent.resolve()))
    with _threads_end_silently(), shapes_only.follow(devices, usable_bytes, called, stage) as calls:
        try:
            with sources.users_code(script):
                runpy.run_path(script, run_name="__main__")
        except _Enough:
            ended = f"it had made {count(most_calls, 'call')} on several devices; --calls follows more or fewer"
        except UsageError as failure:
            cause, steps = failure.__cause__, min(made, most_calls)
            if isinstance(cause, sources.ValueNeeded):
                ended, asks_value = str(failure), True
            elif not (isinstance(cause, SystemExit) and not cause.code):
                if isinstance(cause, SystemExit) and isinstance(cause.code, int):
                    way = "" if arguments else f"; its own arguments go after --: {script} --target T -- ARGUMENTS"
                    failure = UsageError(f"{script} ended itself with status {cause.code} (see above){way}")
                if steps:
                    failure.args = (f"{failure}; --calls {steps} shows what it called on several devices before",)
                raise failure from cause
    if not any(call.is_own for call in calls):
        raise UsageError(_nothing(script, ended))
    return Followed(tuple(calls), ended, asks_value)


@contextmanager
def _threads_end_silently() -> Iterator[None]:
    """Threads of a script that ask for a value, and those that go on after it ended, when JAX has its devices no
    more."""
    shown = threading.excepthook
    threading.excepthook = lambda end: None if issubclass(end.exc_type, sources.ValueNeeded) else shown(end)
    try:
        yield
    finally:
        threading.excepthook = lambda _: None


def chosen(script: str, found: Followed, names: Sequence[str]) -> list[Called]:
    """The functions of these names, once for each set of shapes and shardings; by default the one that computes most.

    Raises:
      UsageError: a name that was not called on several devices; or the script asks for a value before its step.
    """
    calls = found.calls
    if not names:
        own = [call for call in calls if call.is_own]
        if found.asks_value and all(call.only_makes_arrays for call in own):
            made = ", ".join(dict.fromkeys(f"{call.name} ({call.place})" for call in own))
            raise UsageError(
                f"{script} was followed until {found.ended}; before it no step was called, and only what makes arrays: "
                f"{made}; ask after the first step, or write build(mesh) and give file.py:build"
            )
        most = max(call.work for call in own)
        return [call for call in own if call.work == most][-1:]
    known = list(dict.fromkeys(call.name for call in calls))
    for name in names:
        if name not in known:
            raise no_such("function called on several devices", name, known, f" in {script}")
    return [call for call in calls if call.name in names]


def note(found: Followed, shown: Sequence[Called]) -> str:
    """What of the script is shown, what it called besides, and how far it was followed."""
    names = {call.name for call in shown}
    others = dict.fromkeys(
        f"{call.name} ({call.place})" for call in found.calls if call.is_own and call.name not in names
    )
    ways = len([call for call in found.calls if call.name in names]) - len(shown)
    said = [f"called at {', '.join(dict.fromkeys(call.place for call in shown))}"]
    if ways:
        shows = " ".join(f"--function {name}" for name in dict.fromkeys(call.name for call in shown))
        said.append(f"called with {count(ways, 'other set')} of shapes or shardings before; {shows} shows all")
    if others:
        said.append(f"called besides on several devices: {', '.join(others)}; --function NAME shows one")
    if found.ended:
        said.append(f"followed until {found.ended}")
    return "; ".join(said)


def _nothing(script: str, ended: str) -> str:
    way = "call a jitted function on arrays that are split over a mesh, or write build(mesh) and give file.py:build"
    if ended:
        return f"{script} was followed until {ended}; before it nothing is called on several devices: {way}"
    return f"{script} ended and called no jitted function on several devices; {way}"
