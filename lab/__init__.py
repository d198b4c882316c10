"""What a sharded program communicates: predicted by theory, read from the compiled program, settled to the byte.
Imports no JAX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lab.core import display
from lab.guard.budget import Allowance, allow, failure
from lab.meshes.errors import UsageError

if TYPE_CHECKING:
    from lab.core.ledger import Ledger
    from lab.diagnosis import Findings
    from lab.measure.prediction import Prediction

__all__ = ["allow", "assert_communication", "diagnose", "inspect", "mesh", "time"]


def inspect(program: Any, *args: Any, mesh: Any = None, target: Any = None) -> Ledger:
    """The ledger of a compiled program; prints as a table in a terminal and in a notebook.

    Args:
      program: a plain or jitted function, a lowered or compiled one, or the path of a compiled text or of an XLA dump's
        folder.
      args: the function's arguments, as arrays or `jax.ShapeDtypeStruct`s with shardings.
      mesh: a `jax.sharding.Mesh` or `lab.meshes.axes.Axes`; by default the mesh of the arguments' shardings.
      target: what it is compiled for, such as "gpu:h100:2x8": decides which transfers leave a host or a slice.
    Raises:
      lab.meshes.errors.UsageError: the text cannot be read, or the mesh has another size than the program has devices.
    """
    from lab.compile import inspection

    return inspection.inspect(program, *args, mesh=mesh, target=target)


def diagnose(program: Any, *args: Any, mesh: Any = None, target: Any = None, prove: bool = True) -> Findings:
    """What is wrong with a program, the worst first: by wire bytes, then by memory. A tuple, empty where nothing is
    found; prints as `lab inspect` does, in a terminal and in a notebook.

    Args:
      program, args, mesh, target: as for `inspect`.
      prove: try what findings advise where a program can make the change, in at most the time of the compile: each then
        says what the changed program sends, computes and holds, and what does not pay is not advised. It is compiled in
        this process, which ends if XLA aborts (a C++ CHECK): `lab inspect` compiles in another and survives that.
    Raises:
      lab.meshes.errors.UsageError: as for `inspect`.
    """
    from lab import diagnosis
    from lab.compile import inspection

    read = inspection.read_one(program, *args, mesh=mesh, target=target)
    return diagnosis.Findings(diagnosis.of(read, prove))


def time(program: Any, *args: Any, mesh: Any = None, target: Any = None) -> Prediction:
    """How long a step of a program takes, by its compiled schedule and the rates of its target's chip; prints as `lab
    time` does.

    Args:
      program, args, mesh, target: as for `inspect`; the target has a chip.
    Raises:
      lab.meshes.errors.UsageError: as for `inspect`; no rates of the chip are known, or it is not known how often a
        loop runs.
    """
    from lab.compile import inspection
    from lab.measure.prediction import predicted, rates_at
    from lab.meshes.targets import parse_target

    target = parse_target(target) if isinstance(target, str) else target
    rates_at(target)  # Before the program is compiled.
    return predicted(inspection.read_one(program, *args, mesh=mesh, target=target))


def assert_communication(
    program: Any, *args: Any, budget: Iterable[Allowance], mesh: Any = None, target: Any = None
) -> Ledger:
    """Holds a program to a budget: what no line of it allows is over it, so that `budget=[]` allows nothing.

    Args:
      program, args, mesh, target: as for `inspect`.
      budget: lines such as `lab.allow("all_gather", "fsdp", executions=2, wire_bytes=32e6)`.
    Returns:
      The program's ledger.
    Raises:
      AssertionError: it sends more; the message has every broken line with its transfers and where they come from, and
        the lines that no transfer matches.
      lab.meshes.errors.UsageError: a line is over an axis that the mesh lacks; or as for `inspect`.
    """
    __tracebackhide__ = True
    try:
        ledger = inspect(program, *args, mesh=mesh, target=target)
        over = failure(ledger, budget)
    except UsageError as refusal:
        # pytest shows the line of the test alone; where in the lab it was refused helps nobody.
        raise refusal.with_traceback(None) from refusal.__cause__
    if over:
        raise AssertionError(over)
    return ledger


def mesh(target: str, **axes: int) -> Any:
    """The `jax.sharding.Mesh` of a target, axes in the order of `mesh.devices`: `lab.mesh("gpu:h100:2x8", data=2,
    tensor=8)` needs no GPU.

    For "cpu:8" call it before anything else starts JAX: it asks for eight fake devices.

    Raises:
      lab.meshes.errors.UsageError: JAX has started without them, sizes differ, or a plugin is missing.
    """
    from lab.meshes.axes import Axes
    from lab.meshes.backends import make_mesh, prepare
    from lab.meshes.targets import parse_target

    place = parse_target(target)
    prepare([place])
    return make_mesh(place, Axes.of(axes))


def _printers() -> Any:
    from lab.report import show

    return show


display.register(_printers)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext lab`: `%lab inspect step(params, batch)`, and pictures of JAX's meshes. Ledgers, verdicts and
    `lab.meshes.axes.Axes` always show themselves."""
    from lab.cli import magic
    from lab.meshes.backends import set_environment
    from lab.report.html import notebook

    set_environment()
    magic.register(shell)
    notebook.register(shell)
