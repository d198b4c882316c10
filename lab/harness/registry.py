"""Where experiments, trainings and questions are found: each is the `EXPERIMENT` of a module in `lab.experiments`, by
its name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol, runtime_checkable

from lab.compile.build import Build
from lab.harness.experiment import Experiment
from lab.meshes.errors import UsageError, no_such


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


def is_registered(found: Experiment) -> bool:
    """Another process finds the same program by the name."""
    return found.name in names() and isinstance(own := load(found.name), Experiment) and own.build is found.build


def build_of(name: str) -> Build:
    """What builds an experiment's program."""
    return experiment(name).build


def experiment(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
      UsageError: there is none, or a training or a question in its place, which have no one program.
    """
    found = load(name)
    if not isinstance(found, Experiment):
        raise UsageError(f"{name} is not an experiment with one program; lab list shows all")
    return found


def load(name: str) -> Entry:
    """The experiment, the training, or the question without a program, of that name.

    Raises:
      UsageError: there is none.
    """
    if name not in names():
        raise no_such("experiment", name, names(), shown_by="lab list")
    return importlib.import_module(f"lab.experiments.{name}").EXPERIMENT
