"""Where experiments, trainings and questions are found: each is the `EXPERIMENT` of a module in `lab.experiments`, by
its name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol, runtime_checkable

from lab.meshes.errors import no_such


@runtime_checkable
class Entry(Protocol):
    """What an experiment, a training and a question have in common: a name, that of its module, a chapter of the book,
    and a question."""

    @property
    def name(self) -> str: ...

    @property
    def chapter(self) -> int: ...

    @property
    def question(self) -> str: ...

    @property
    def parameters(self) -> Any: ...

    @property
    def targets(self) -> tuple[str, ...]: ...

    @property
    def styles(self) -> tuple[str, ...]: ...


def names() -> tuple[str, ...]:
    """Names of all, none of them imported."""
    package = importlib.import_module("lab.experiments")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def is_registered(entry: Any) -> bool:
    """Another process finds the same program by the name."""
    return entry.name in names() and load(entry.name).build is entry.build


def build_of(name: str) -> Any:
    """What builds an experiment's program."""
    return load(name).build


def load(name: str) -> Any:
    """The experiment, the training, or the question without a program, of that name: an `Entry`.

    Raises:
      UsageError: there is none.
    """
    if name not in names():
        raise no_such("experiment", name, names(), shown_by="lab list")
    return importlib.import_module(f"lab.experiments.{name}").EXPERIMENT
