"""Compilation in processes of their own: XLA keeps the kernels that it has tried, and takes them for any later program,
whatever that one's options say."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from lab.harness import registry
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import Target

# Each that looks for GPUs takes memory on all of them.
PROCESSES = 8
TILED = "--xla_gpu_experimental_enable_fusion_block_level_rewriter=true"
"""With a card XLA tries each fusion as it is and in tiles, by Triton, and takes the faster, which mostly is the latter;
without one it takes the former."""


class Program(NamedTuple):
    """Compiled, what it takes, and its mesh."""

    compiled: jax.stages.Compiled
    args: tuple[Any, ...]
    mesh: Mesh


def apart(targets: Collection[Target], flags: str = "") -> ProcessPoolExecutor:
    """Processes that compile for these targets, with these flags of XLA besides the environment's, and run nothing."""
    return ProcessPoolExecutor(PROCESSES, get_context("spawn"), partial(_start, flags, *targets))


def _start(flags: str, *targets: Target) -> None:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    add_flags(flags)
    prepare(targets)


def add_flags(flags: str) -> None:
    """Before XLA has started: ahead of time it reads these from the environment alone, and passes over a compiler's
    options."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


def compiled(
    name: str,
    style: str,
    parameters: Any,
    axes: Axes,
    target: Target,
    chip_text: str | None = None,
    options: dict[str, str | bool] | None = None,
) -> Program:
    """An experiment's; ahead of time with a description of the card in place of the card."""
    mesh = make_mesh(target, axes, chip_text)
    function, args = registry.build_of(name)(style, parameters, mesh)
    return Program(function.lower(*args).compile(compiler_options=options), args, mesh)
