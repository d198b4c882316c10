"""What compilers emit for a redistribution, beside the plan and the least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from lab.inspection import inspect_program
from lab.ledger import Ledger, Transfer, axes_label, number
from lab.redistribution.bound import least_bytes
from lab.redistribution.kernel import sharding
from lab.redistribution.pairs import Pair
from lab.redistribution.placement import Array, Placement
from lab.redistribution.plan import plan
from meshes.axes import Axes
from meshes.targets import Target

DTYPES = {"f32": jnp.float32, "s32": jnp.int32}


@dataclass(frozen=True)
class Row:
    """One pair of placements, three times: the least that any way must send, the plan, and the compiled program."""

    before: Placement
    after: Placement
    array: Array
    least_bytes: int
    planned: Ledger
    measured: Ledger

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
        """Every device gathers the whole array although it is to keep a part."""
        return bool(self.after.axes) and any(t.payload_bytes >= self.array.bytes for t in self.measured.split().transfers)

    def __str__(self) -> str:
        whole = ", rebuilds the whole array on every device" if self.rebuilds_the_whole else ""
        return f"{_sent(self.measured)}{whole}; planned {_sent(self.planned)}; least {self.least_bytes:,} B"


def measure(pair: Pair, array: Array, mesh: Mesh, target: Target) -> Row:
    """Compiles one redistribution for a target, and reads what it sends."""
    axes = Axes.of(dict(mesh.shape))
    planned = plan(*pair, array, axes)
    measured = inspect_program(_compiled(pair, array, mesh), (), mesh, target, source=planned.source)
    return Row(*pair, array, least_bytes(*pair, array, axes), planned, measured)


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """By what is sent beyond the plan."""
    return sorted(rows, key=lambda row: row.excess_bytes, reverse=True)


def _compiled(pair: Pair, array: Array, mesh: Mesh) -> jax.stages.Compiled:
    before, after = (sharding(placement, mesh) for placement in pair)
    shape = jax.ShapeDtypeStruct(array.shape, DTYPES[array.dtype], sharding=before)
    return jax.jit(lambda x: x, out_shardings=after).lower(shape).compile()


def _sent(ledger: Ledger) -> str:
    sent = number(ledger.totals().wire_bytes)
    return f"{sent:,} B by {', '.join(_steps(ledger))}" if ledger.transfers else "nothing"


def _steps(ledger: Ledger) -> list[str]:
    return [_step(transfer) for transfer in ledger.transfers]


def _step(transfer: Transfer) -> str:
    return f"{transfer.kind} over {axes_label(transfer)} of {transfer.payload_bytes:,} B"
