"""The table of all changes on a mesh of 2 x 2 x 2, for every class of pairs; `sharding-lab/redistribution/1`.

    python -m lab.measure.redistribution.table results/redistribution_2x2x2.json

A row holds the wire bytes of one device, and the transfers: the least that any way must send, the plan, what three
compilers make of the two placements, and what they make of the plan once it is written out with `shard_map`
(`kernel_bytes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

import click
import jax
from rich.console import Console
from rich.progress import track

from lab.core.files import write_whole
from lab.core.ledger import Kind, Ledger, axes_label
from lab.core.units import number
from lab.measure.redistribution.measure import Row, measure, measure_kernel
from lab.measure.redistribution.pairs import Pair, classes, sums
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import Target, parse_target
from lab.redistribution.bound import least_bytes
from lab.redistribution.placement import Array
from lab.redistribution.plan import plan

SCHEMA: Final = "sharding-lab/redistribution/1"
AXES, ARRAY = Axes.of({"a": 2, "b": 2, "c": 2}), Array((32, 64, 128))
TARGETS = tuple(map(parse_target, ("cpu:8", "gpu:h100:1x8", "tpu:v5e:2x4")))


class SentJson(TypedDict):
    """Of one device; a transfer is its kind, its axes joined by `+`, and its payload bytes."""

    wire_bytes: float
    transfers: list[tuple[Kind, str, int]]


class CompiledJson(SentJson):
    ratio: float | None
    rebuilds_the_whole: bool


PairJson = TypedDict(
    "PairJson",
    {
        "from": str,
        "to": str,
        "least_bytes": float,
        "planned": SentJson,
        "compiled": Mapping[str, CompiledJson],
        "kernel_bytes": Mapping[str, float],
    },
)


@dataclass(frozen=True)
class ArrayJson:
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class TableJson:
    """Every change of an array's placement on a mesh: what it must send, what the plan sends, what compilers send."""

    schema: Literal["sharding-lab/redistribution/1"]
    command: str
    jax: str
    mesh: Mapping[str, int]
    array: ArrayJson
    rows: tuple[PairJson, ...]


def every_pair() -> list[Pair]:
    """339 changes of an array, and 248 from a partial sum."""
    return [*classes(len(ARRAY.shape), AXES), *sums(len(ARRAY.shape), AXES)]


def theory(pair: Pair) -> dict[str, Any]:
    """The half of a row that is calculated."""
    before, after = pair
    least, planned = least_bytes(*pair, ARRAY, AXES), plan(*pair, ARRAY, AXES)
    return {"from": str(before), "to": str(after), "least_bytes": number(least), "planned": _sent(planned)}


def measurement(pair: Pair, targets: Sequence[Target] = TARGETS) -> dict[str, Any]:
    """The half of a row that compilers decide."""
    rows = {str(target): measure(pair, ARRAY, make_mesh(target, AXES), target) for target in targets}
    kernels = {str(target): measure_kernel(pair, ARRAY, make_mesh(target, AXES), target) for target in targets}
    return {
        "compiled": {target: _sent(row.measured) | _beside_the_plan(row) for target, row in rows.items()},
        "kernel_bytes": {target: _bytes(ledger) for target, ledger in kernels.items()},
    }


def table(command: str, rows: Iterable[dict[str, Any]]) -> str:
    """As JSON, one pair a line."""
    array = {"shape": list(ARRAY.shape), "dtype": ARRAY.dtype, "bytes": ARRAY.bytes}
    head = {"schema": SCHEMA, "command": command, "jax": jax.__version__, "mesh": AXES.shape, "array": array}
    lines = ",\n".join(map(json.dumps, rows))
    return f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'


def _sent(ledger: Ledger) -> dict[str, Any]:
    transfers = [[str(t.kind), axes_label(t), t.payload_bytes] for t in ledger.transfers]
    return {"wire_bytes": _bytes(ledger), "transfers": transfers}


def _bytes(ledger: Ledger) -> int | float:
    return number(ledger.totals().wire_bytes)


def _beside_the_plan(row: Row) -> dict[str, Any]:
    """`ratio` to the plan's bytes: null where the plan sends nothing."""
    ratio = round(float(row.wire_bytes / row.planned_bytes), 3) if row.planned_bytes else None
    return {"ratio": ratio, "rebuilds_the_whole": row.rebuilds_the_whole}


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Writes the table of every pair of placements to PATH, as JSON."""
    prepare(TARGETS)
    console = Console(stderr=True)
    pairs = track(every_pair(), "compiling", console=console, disable=not console.is_terminal)
    write_whole(
        path, table(f"python -m lab.redistribution.table {path}", (theory(pair) | measurement(pair) for pair in pairs))
    )


if __name__ == "__main__":
    main()
