"""The programs that a picture is asked to show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.compile.sources import is_program, saved_ledger
from lab.core.ledger import Ledger
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target


def given_ledgers(what: str, source: str, mesh: str, target: Target | None) -> Sequence[Ledger]:
    """Of a compiled text, of the modules of a dump's folder, or of what `lab inspect --json` wrote, which knows its
    mesh and target.

    Args:
      what: is drawn, for people.
      mesh: its axes, as on the command line; "" where they are not known.
    Raises:
      UsageError: it is none of these.
    """
    if source.endswith(".json"):
        return (saved_ledger(source),)
    if is_program(source):
        raise UsageError(
            f"source={source}: {what} takes a compiled text or the folder of an XLA dump, or what lab inspect --json "
            "wrote"
        )
    from lab.compile.inspection import inspect_texts

    return inspect_texts(Path(source), Axes.parse(mesh) if mesh else None, target)
