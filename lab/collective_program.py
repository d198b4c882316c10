"""A program of several collectives, each in its own scope: what runs, the ledger that the statements ask for, the same on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab import collectives
from lab.book.collectives import all_reduce_wire_bytes
from lab.collectives import ALGORITHMS, AlphaBeta, Cost
from lab.experiment import Claim, Experiment
from lab.ledger import Ledger, Totals, Transfer
from lab.run import RUNNABLE
from meshes.axes import DATA, FSDP, Axes
from meshes.errors import Unusable
from meshes.targets import Target, make_mesh, parse_target

DTYPES = {"s32": jnp.int32, "f32": jnp.float32}
TARGETS = ("cpu:8", "gpu:h100:2x4", "tpu:v5e:2x4")
GATHERED = ("all_gather", "gather")


@dataclass(frozen=True)
class Buffer:
    """What every collective of a program works on.

    Attributes:
      elements: the n of the book: of the result of an all_gather or gather, else of what enters, on each rank.
      dtype: as XLA names it: "s32" or "f32".

    Raises:
      Unusable: a size below one, or another dtype.
    """

    elements: int = 50400
    dtype: str = "s32"

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise Unusable(f"elements={self.elements}: expected 1 or more")
        if self.dtype not in DTYPES:
            raise Unusable(f"dtype={self.dtype}: expected {' or '.join(DTYPES)}")

    @property
    def bytes_per_element(self) -> int:
        return jnp.dtype(DTYPES[self.dtype]).itemsize

    @property
    def size_bytes(self) -> int:
        return self.elements * self.bytes_per_element

    def entering(self, primitive: str, ranks: int) -> int:
        """Elements that one rank brings."""
        if self.elements % ranks:
            raise Unusable(f"elements={self.elements}: expected a multiple of the {ranks} ranks")
        return self.elements // ranks if primitive in GATHERED else self.elements


class Kernel(NamedTuple):
    """One collective over all axes of the mesh, outermost first; a permute has no algorithm and goes from every rank to the next."""

    primitive: str
    algorithm: str = "next"

    @property
    def scope(self) -> str:
        return f"{self.primitive}/{self.algorithm}"

    def serves(self, axes: Axes) -> bool:
        return self.primitive == "permute" or ALGORITHMS[self.primitive][self.algorithm].misfit(axes) is None

    def run(self, x_N: jax.Array, axes: Sequence[str]) -> jax.Array:
        with jax.named_scope(self.primitive), jax.named_scope(self.algorithm):
            if self.primitive == "permute":
                return collectives.permute(x_N, axes, 1)
            return getattr(collectives, self.primitive)(x_N, axes, algorithm=self.algorithm)

    def cost(self, buffer: Buffer, axes: Axes) -> Cost:
        if self.primitive == "permute":
            return collectives.permute_cost(axes, 1, buffer.elements, buffer.bytes_per_element)
        return collectives.cost(self.primitive, self.algorithm, axes, buffer.elements, buffer.bytes_per_element)


Claims = Callable[[Buffer, Axes, Ledger], tuple[Claim, ...]]


def experiment(name: str, chapter: int, question: str, kernels: Sequence[Kernel], claims: Claims, **rest: Any) -> Experiment:
    """An experiment of those of the kernels that serve its mesh."""
    of_collectives = Experiment(
        name=name,
        chapter=chapter,
        question=question,
        parameters=Buffer(),
        numeric_parameters=Buffer(elements=5040),
        axes=inside_hosts,
        build=lambda style, buffer, mesh: program(kernels, buffer, mesh),
        predict=partial(predict, kernels),
        claims=claims,
        reference=lambda buffer: partial(on_one_device, kernels),
        targets=TARGETS,
        styles=("explicit",),
    )
    return replace(of_collectives, **rest)


def inside_hosts(target: Target) -> Axes:
    """Ranks inside a host of GPUs along `fsdp`, hosts along `data`; elsewhere two groups stand for hosts."""
    devices = jax.device_count() if target.devices is None else target.devices
    hosts = target.hosts if target.platform == "gpu" else gcd(devices, 2)
    return Axes.of({DATA: hosts, FSDP: devices // hosts})


def program(kernels: Iterable[Kernel], buffer: Buffer, mesh: Mesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of one array [ranks, N] a kernel, by scope, to what the ranks get, [ranks, ...].

    Raises:
      Unusable: the buffer does not split over the ranks.
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
        shape = mesh.size, buffer.entering(kernel.primitive, mesh.size)
        return jax.ShapeDtypeStruct(shape, DTYPES[buffer.dtype], sharding=sharding)

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
    executions = Counter()
    for kernel in kernels:
        for transfer in kernel.cost(buffer, axes).ledger(axes, buffer.dtype).transfers if kernel.serves(axes) else ():
            executions[replace(transfer, scope=kernel.scope, executions=1)] += transfer.executions
    rows = tuple(replace(transfer, executions=times) for transfer, times in executions.items())
    return Ledger(rows, devices=axes.size, mesh=axes.shape)


def on_one_device(kernels: Iterable[Kernel], xs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {kernel.scope: _STACKED[kernel.primitive](xs[kernel.scope]) for kernel in kernels if kernel.scope in xs}


def sent(measured: Ledger, kernel: Kernel, *axes: str) -> Totals:
    """What the compiled program sends in the scope of a kernel; along these axes alone, where some are named."""
    rows = (t for t in measured.split().transfers if t.scope == kernel.scope)
    return Totals.of(t for t in rows if not axes or t.axes == axes)


def at_hand(measured: Ledger, axes: Axes) -> Mesh | None:
    """The mesh that a program was compiled for, where it is of devices that can run."""
    target = parse_target(measured.target) if measured.target else None
    return make_mesh(target, axes) if target and target.platform in RUNNABLE else None


def priced_s(measured: Ledger, kernel: Kernel, links: Mapping[str, AlphaBeta]) -> float:
    """Seconds of the compiled messages of a kernel, one after the other, each over the slowest link of its axes."""
    rows = (t for t in measured.split().transfers if t.scope == kernel.scope)
    return sum(t.executions * max(links[axis].seconds(t.wire_bytes) for axis in t.axes) for t in rows)


def flat_rings_s(payload_bytes: int, hosts: int, a_host: int, inside: AlphaBeta, across: AlphaBeta) -> float:
    """Seconds of as many flat rings at once as a host has ranks, each through a network card of its own."""
    ranks = hosts * a_host
    sent_bytes = float(all_reduce_wire_bytes(payload_bytes, ranks))
    return 2 * (ranks - 1) * across.alpha_s + max(sent_bytes / a_host / across.bytes_per_s, sent_bytes / inside.bytes_per_s)


def _everywhere(x_N: jax.Array, like_PN: jax.Array) -> jax.Array:
    return jnp.broadcast_to(x_N, (like_PN.shape[0], *x_N.shape))


def _on_first(x_N: jax.Array, like_PN: jax.Array) -> jax.Array:
    return jnp.zeros((like_PN.shape[0], *x_N.shape), x_N.dtype).at[0].set(x_N)


def _transposed(x_PN: jax.Array) -> jax.Array:
    P = x_PN.shape[0]
    return x_PN.reshape(P, P, -1).swapaxes(0, 1).reshape(x_PN.shape)


# The primitives on the stacked buffers of all ranks: [P, N] to [P, ...], the root first.
_STACKED: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_reduce": lambda x_PN: _everywhere(x_PN.sum(0), x_PN),
    "reduce_scatter": lambda x_PN: x_PN.sum(0).reshape(x_PN.shape[0], -1),
    "all_gather": lambda x_PC: _everywhere(x_PC.reshape(-1), x_PC),
    "reduce": lambda x_PN: _on_first(x_PN.sum(0), x_PN),
    "broadcast": lambda x_PN: _everywhere(x_PN[0], x_PN),
    "scatter": lambda x_PN: x_PN[0].reshape(x_PN.shape[0], -1),
    "gather": lambda x_PC: _on_first(x_PC.reshape(-1), x_PC),
    "all_to_all": _transposed,
    "permute": lambda x_PN: jnp.roll(x_PN, 1, axis=0),
}
