"""What compilers emit for a redistribution, beside the plan and the least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import jax
from jax.sharding import Mesh

from lab.compile.inspection import inspect_program
from lab.core.ledger import Kind, Ledger, Transfer, axes_label
from lab.core.units import number
from lab.measure.redistribution.pairs import Pair
from lab.meshes.axes import Axes
from lab.meshes.targets import Target
from lab.redistribution.bound import least_bytes
from lab.redistribution.kernel import redistribute, shape, sharding
from lab.redistribution.placement import Array, Placement
from lab.redistribution.plan import plan


@dataclass(frozen=True)
class Row:
    """One pair of placements, three times: the least that any way must send, the plan, and the compiled program."""

    before: Placement
    after: Placement
    array: Array
    least_bytes: Fraction
    planned: Ledger
    measured: Ledger

    @property
    def pair(self) -> Pair:
        return self.before, self.after

    @property
    def wire_bytes(self) -> Fraction:
        return self.measured.totals().wire_bytes

    @property
    def planned_bytes(self) -> Fraction:
        return self.planned.totals().wire_bytes

    @property
    def excess_bytes(self) -> Fraction:
        """What the compiled program sends more than the plan."""
        return self.wire_bytes - self.planned_bytes

    @property
    def rebuilds_the_whole(self) -> bool:
        """Every device gathers or sums up the whole array although it is to keep a part."""
        wholes = [t for t in self.measured.split().transfers if t.payload_bytes >= self.array.bytes]
        return bool(self.after.axes) and any(t.kind in (Kind.ALL_GATHER, Kind.ALL_REDUCE) for t in wholes)

    def __str__(self) -> str:
        whole = ", rebuilds the whole array on every device" if self.rebuilds_the_whole else ""
        return f"{_sent(self.measured)}{whole}; planned {_sent(self.planned)}; least {number(self.least_bytes):,} B"


def measure(pair: Pair, array: Array, mesh: Mesh, target: Target) -> Row:
    """Compiles one redistribution for a target, and reads what it sends."""
    axes = Axes.of(dict(mesh.shape))
    planned = plan(*pair, array, axes)
    measured = inspect_program(_compiled(pair, array, mesh), (), mesh, target, source=planned.source)
    return Row(*pair, array, least_bytes(*pair, array, axes), planned, measured)


def measure_kernel(pair: Pair, array: Array, mesh: Mesh, target: Target) -> Ledger:
    """The same for the plan, written out with `shard_map`."""
    program = jax.jit(lambda x: redistribute(x, *pair, mesh))
    return inspect_program(program, (shape(pair[0], array, mesh),), mesh, target, source="redistribute")


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """By what is sent beyond the plan."""
    return sorted(rows, key=lambda row: row.excess_bytes, reverse=True)


def _compiled(pair: Pair, array: Array, mesh: Mesh) -> jax.stages.Compiled:
    before, after = pair
    change = _sum if before.partial else _same
    return jax.jit(change, out_shardings=sharding(after, mesh)).lower(shape(before, array, mesh)).compile()


def _same(x_B: jax.Array) -> jax.Array:
    return x_B


def _sum(x_NB: jax.Array) -> jax.Array:
    """Of a stack with one summand on each device: what the partitioner sees of any product whose contracted dim is
    split."""
    return x_NB.sum(0, dtype=x_NB.dtype)


def _sent(ledger: Ledger) -> str:
    sent = number(ledger.totals().wire_bytes)
    return f"{sent:,} B by {', '.join(_steps(ledger))}" if ledger.transfers else "nothing"


def _steps(ledger: Ledger) -> list[str]:
    return [_step(transfer) for transfer in ledger.transfers]


def _step(transfer: Transfer) -> str:
    return f"{transfer.kind} over {axes_label(transfer)} of {transfer.payload_bytes:,} B"
