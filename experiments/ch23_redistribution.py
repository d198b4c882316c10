"""Chapter 23: what does it cost to change the layout of an array, and do compilers pay more?

The program follows the cheapest routes of a sample of pairs of placements, and is settled to the byte. The claims
compile the same changes, and as many from partial sums, as the partitioner makes them from two specs, one program a
pair. All pairs of 8 devices stand in `results/redistribution_2x2x2.json`, which `lab.measure.redistribution.table`
writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import jax
from jax.sharding import Mesh

from lab.compile.build import Built
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import counted
from lab.harness.experiment import Experiment
from lab.measure.redistribution.measure import Row, measure, measure_kernel, worst_first
from lab.measure.redistribution.pairs import Pair, classes, sums
from lab.meshes.attached import device_count
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.redistribution import Array, Placement, plan
from lab.redistribution.kernel import redistribute, shape

_DTYPES = ("f32", "s32")


@dataclass(frozen=True)
class Changes:
    """An array of three dims, and how many pairs of placements it is moved between.

    Attributes:
      pairs: classes of pairs to compile, evenly chosen, and as many that start from a partial sum. On a mesh of three
        equal axes 339 and 248 are all.
      dtype: as XLA names it: "f32" or "s32".

    Raises:
      UsageError: a size below one, or another dtype.
    """

    rows: int = 32
    columns: int = 64
    depth: int = 128
    dtype: str = "f32"
    pairs: int = 6

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "depth", "pairs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.dtype not in _DTYPES:
            raise UsageError(f"dtype={self.dtype}: expected {' or '.join(_DTYPES)}")

    @property
    def array(self) -> Array:
        return Array((self.rows, self.columns, self.depth), self.dtype)

    def sample(self, axes: Axes) -> tuple[Pair, ...]:
        return self._spread(classes(3, axes))

    def sample_of_sums(self, axes: Axes) -> tuple[Pair, ...]:
        return self._spread(sums(3, axes))

    def _spread(self, everything: tuple[Pair, ...]) -> tuple[Pair, ...]:
        return everything[:: max(1, -(-len(everything) // self.pairs))]


def in_three(target: Target) -> Axes:
    """Two axes of 2 where the devices allow it, and one of what remains."""
    devices = device_count(target)
    halves = [2 if devices % factor == 0 else 1 for factor in (2, 4)]
    return Axes(("a", "b", "c"), (*halves, devices // (halves[0] * halves[1])))


def build(_style: str, changes: Changes, mesh: Mesh) -> Built:
    """A function of one array a pair, by scope, to the same arrays placed anew."""
    pairs, array = {_scope(pair): pair for pair in changes.sample(Axes.of(dict(mesh.shape)))}, changes.array
    moved = partial(redistribute, mesh=mesh)

    def together(xs: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {scope: jax.named_scope(scope)(moved)(xs[scope], *pair) for scope, pair in pairs.items()}

    return jax.jit(together), ({scope: shape(before, array, mesh) for scope, (before, _) in pairs.items()},)


def predict(changes: Changes, axes: Axes) -> Ledger:
    plans = {_scope(pair): plan(*pair, changes.array, axes) for pair in changes.sample(axes)}
    transfers = tuple(replace(t, scope=scope) for scope, ledger in plans.items() for t in ledger.transfers)
    return Ledger(transfers, devices=axes.size, mesh=axes.shape)


def claims(changes: Changes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size == 1:
        return ()
    target = parse_target(known(measured.target))
    mesh = make_mesh(target, axes)
    compiled = partial(measure, array=changes.array, mesh=mesh, target=target)
    written = partial(measure_kernel, array=changes.array, mesh=mesh, target=target)
    kept, summed = (list(map(compiled, pairs)) for pairs in (changes.sample(axes), changes.sample_of_sums(axes)))
    worse = [
        calculated("ch23.redistribution", str(row), statement=_scope(row.pair))
        for row in worst_first(kept + summed)
        if row.excess_bytes > 0
    ]
    tallies = _tally("compilers' own changes", kept), _tally("compilers' own sums", summed)
    return (*_book(changes.array, axes, compiled), *tallies, _written(summed, written), *worse)


def _book(array: Array, axes: Axes, compiled: Callable[[Pair], Row]) -> tuple[Claim, Claim]:
    """Whole, split by its first dim and split by its second, over all axes."""
    whole, first, second = (
        Placement.of(*entries) for entries in ((None,) * 3, (axes.names, None, None), (None, axes.names, None))
    )
    gathered, sliced, exchanged = (
        compiled(pair).wire_bytes for pair in ((first, whole), (whole, first), (first, second))
    )
    n, V = axes.size, array.bytes
    holds = gathered * n == (n - 1) * V and sliced == 0 and exchanged * n * n == (n - 1) * V
    sent = (
        f"n={n}, V={V:,} B: gathering sends {counted(gathered)} B, slicing {counted(sliced)}, another dim "
        f"{counted(exchanged)}"
    )
    volumes, equal = (
        "(n-1)/n V to gather, nothing to slice, (n-1)/n^2 V to another dim",
        "another dim costs as much as a gather",
    )
    return (
        decided("ch23.redistribution", holds, sent, statement=volumes),
        decided("ch23.redistribution", exchanged == gathered, sent, statement=equal, disputed="Ch. 23, 1"),
    )


def _tally(what: str, rows: list[Row]) -> Claim:
    as_planned, whole = _as_planned(rows), sum(row.rebuilds_the_whole for row in rows)
    least = sum(row.wire_bytes == row.least_bytes for row in rows)
    worst = max((row.wire_bytes / row.planned_bytes for row in rows if row.planned_bytes), default=Fraction(1))
    found = (
        f"of {len(rows)} changes {as_planned} send no more than planned, {least} the least that any way must, "
        f"{whole} gather the full array"
    )
    by_plan = ", ".join(f"{kinds} {_as_planned(some)} of {len(some)}" for kinds, some in _by_plan(rows).items())
    evidence = (
        f"{found}; the worst sends {float(worst):.1f} times the plan; as planned, by what the plan takes: {by_plan}"
    )
    return calculated("ch23.redistribution", evidence, statement=what)


def _written(rows: list[Row], compiled: Callable[[Pair], Ledger]) -> Claim:
    """Whether a compiler leaves a planned sum as it is, once it is written out with `shard_map`."""
    beyond = [compiled(row.pair).totals().wire_bytes - row.planned_bytes for row in rows]
    found = f"of {len(rows)} planned sums, written out as kernels, {beyond.count(Fraction(0))} send what is planned"
    more = f"; the others send up to {counted(max(beyond))} B more" if any(beyond) else ""
    return calculated("ch23.redistribution", found + more, statement="planned sums, written out")


def _by_plan(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows by the kinds of transfers that their plans consist of, the most frequent first."""
    kinds = [" + ".join(sorted({str(t.kind) for t in row.planned.transfers})) or "nothing" for row in rows]
    return {
        name: [row for row, kind in zip(rows, kinds, strict=True) if kind == name]
        for name, _ in Counter(kinds).most_common()
    }


def _as_planned(rows: list[Row]) -> int:
    return sum(row.excess_bytes <= 0 for row in rows)


def _scope(pair: Pair) -> str:
    return f"{pair[0]} to {pair[1]}"


EXPERIMENT = Experiment(
    name="ch23_redistribution",
    chapter=23,
    question="What does it cost to change the layout of an array, and do compilers pay more?",
    parameters=Changes(),
    numeric_parameters=Changes(),
    axes=in_three,
    build=build,
    predict=predict,
    claims=claims,
    reference=lambda changes: lambda xs: xs,
    targets=("cpu:8", "gpu:h100:1x8", "tpu:v5e:2x4"),
    styles=("explicit",),
    everyday=(("explicit", "cpu:8"),),
)
