"""A program of several collectives, each in its own scope, and the ledger that the statements ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.compile.build import Built
from lab.core.known import known
from lab.core.ledger import Ledger, Transfer
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.meshes.axes import Axes


def program(kernels: Iterable[Kernel], buffer: Buffer, mesh: Mesh) -> Built:
    """A function of one array [ranks, N] a kernel, by scope, to what the ranks get, [ranks, ...].

    Raises:
      UsageError: the buffer does not split over the ranks.
    """
    serving = [kernel for kernel in kernels if kernel.serves(Axes.of(mesh.shape))]
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def in_turn(xs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        results: dict[str, jax.Array] = {}
        for kernel in serving:
            # Compilers combine the messages of kernels that do not wait for each other, and then no scope has them.
            x_1N, results = jax.lax.optimization_barrier((xs[kernel.scope], results))
            results |= {kernel.scope: kernel.run(x_1N[0], mesh.axis_names)[None]}
        return results

    def entering(kernel: Kernel) -> jax.ShapeDtypeStruct:
        of_a_rank = buffer.entering(kernel.primitive, mesh.size)
        return jax.ShapeDtypeStruct((mesh.size, *of_a_rank.shape), of_a_rank.dtype, sharding=sharding)

    return on_ranks(in_turn, mesh), ({kernel.scope: entering(kernel) for kernel in serving},)


def on_ranks(function: Callable[..., Any], mesh: Mesh) -> jax.stages.Wrapped:
    """A function of one rank's arrays [1, ...], jitted, of arrays [ranks, ...]."""
    over = PartitionSpec(mesh.axis_names)
    options = _QUICK if mesh.devices.flat[0].platform == "cpu" else None
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=over, out_specs=over), compiler_options=options)


# What XLA's CPU compiler takes most of its time for: the machine code between collectives, which decides nothing here.
_QUICK = {"xla_backend_optimization_level": "0"}


def predict(kernels: Iterable[Kernel], buffer: Buffer, axes: Axes) -> Ledger:
    """The statements of the kernels, equal messages of one kernel added up."""
    executions: Counter[Transfer] = Counter()
    for kernel in kernels:
        for transfer in kernel.ledger(buffer, axes).transfers if kernel.serves(axes) else ():
            executions[replace(transfer, scope=kernel.scope, executions=1)] += known(transfer.executions)
    rows = tuple(replace(transfer, executions=times) for transfer, times in executions.items())
    return Ledger(rows, devices=axes.size, mesh=axes.shape)
