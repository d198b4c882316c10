"""Compilation in processes of their own: XLA keeps the kernels that it has tried, and takes them for any later program, whatever that one's options say."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from lab import experiment
from meshes.axes import Axes
from meshes.targets import Target, make_mesh, prepare

# Each that looks for GPUs takes memory on all of them.
PROCESSES = 8


class Program(NamedTuple):
    """Compiled, what it takes, and its mesh."""

    compiled: jax.stages.Compiled
    args: tuple[Any, ...]
    mesh: Mesh


def apart(targets: Collection[Target]) -> ProcessPoolExecutor:
    """Processes that compile for these targets, and run nothing."""
    return ProcessPoolExecutor(PROCESSES, get_context("spawn"), _start, tuple(targets))


def _start(*targets: Target) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    prepare(targets)


def compiled(
    name: str, style: str, parameters: Any, axes: Axes, target: Target, chip_text: str | None = None, options: Mapping[str, Any] | None = None
) -> Program:
    """An experiment's; ahead of time with a description of the card in place of the card."""
    mesh = make_mesh(target, axes, chip_text)
    function, args = experiment.load(name).build(style, parameters, mesh)
    return Program(function.lower(*args).compile(compiler_options=options and dict(options)), args, mesh)
