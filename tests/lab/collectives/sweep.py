"""Every algorithm of every primitive in one program, so that a mesh is compiled for once; what each must give, and must
send.

As a script, `python -m tests.lab.collectives.sweep 9 16`, it prints what is wrong on so many fake CPU devices, and on
random shapes there.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab import collectives
from lab.collectives import ALGORITHMS, Cost
from lab.core.ledger import Kind, Ledger, Transfer
from lab.hlo import read_text
from lab.meshes.axes import Axes
from lab.meshes.backends import prepare
from lab.meshes.targets import parse_target

ROWS = 7
BY_ROWS = ("reduce_scatter", "all_gather", "scatter", "gather", "all_to_all")
ROOTED = ("reduce", "broadcast", "scatter", "gather")
Rows = Counter[tuple[Kind, tuple[str, ...] | None, int]]


@dataclass(frozen=True)
class Case:
    """One algorithm, on arrays whose rows have a width of their own: their bytes tell its messages from those of
    others."""

    primitive: str
    algorithm: str
    axes: Axes
    width: int

    @property
    def root(self) -> int:
        """The last rank; the first over several axes, where it decides which of them a step crosses."""
        return self.axes.size - 1 if len(self.axes.names) == 1 else 0

    def kernel(self, x_NW: jax.Array, **how: Any) -> jax.Array:
        if self.primitive == "barrier":
            return collectives.barrier(self.axes.names, self.algorithm)[None]
        root = {"root": self.root} if self.primitive in ROOTED else {}
        return getattr(collectives, self.primitive)(x_NW, self.axes.names, algorithm=self.algorithm, **root, **how)

    def cost(self, rows: int = ROWS, bytes_per_number: int = 4) -> Cost:
        rows *= self.axes.size if self.primitive in ("all_gather", "gather") else 1
        elements, size = (
            (rows, self.width * bytes_per_number)
            if self.primitive in BY_ROWS
            else (rows * self.width, bytes_per_number)
        )
        return collectives.cost(self.primitive, self.algorithm, self.axes, elements, size)

    def expected(self, x_PNW: np.ndarray) -> np.ndarray:
        """What NumPy says, [ranks, ...]."""
        return _REFERENCES[self.primitive](x_PNW, self.root)


def cases(axes: Axes, chosen: Callable[[str, str], bool] = lambda primitive, algorithm: True) -> list[Case]:
    """The algorithms that serve these axes."""
    named = [
        (p, name)
        for p, known in ALGORITHMS.items()
        for name, one in known.items()
        if not one.misfit(axes) and chosen(p, name)
    ]
    return [Case(primitive, name, axes, width) for width, (primitive, name) in enumerate(named, start=2)]


def program(mesh: Mesh, swept: list[Case]) -> tuple[jax.stages.Wrapped, NamedSharding]:
    """A function of one [ranks, ROWS, width] array a case to what each gives, [ranks, ...]."""
    spec = PartitionSpec(tuple(mesh.axis_names))

    def together(xs: list[jax.Array]) -> list[jax.Array]:
        return [case.kernel(x_1NW[0])[None] for case, x_1NW in zip(swept, xs, strict=True)]

    return jax.jit(jax.shard_map(together, mesh=mesh, in_specs=spec, out_specs=spec)), NamedSharding(mesh, spec)


def compiled(mesh: Mesh, swept: list[Case], dtype: Any = jnp.int32, rows: int = ROWS) -> jax.stages.Compiled:
    function, sharding = program(mesh, swept)
    shapes = [jax.ShapeDtypeStruct((mesh.size, rows, case.width), dtype, sharding=sharding) for case in swept]
    return function.lower(shapes).compile(compiler_options=_QUICK.get(mesh.devices.flat[0].platform))


# How carefully XLA makes machine code of what lies between collectives: most of the time, and no matter here.
_ON_CPU = {"xla_backend_optimization_level": 0} | (
    {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
)
_ON_GPU = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_gpu_disable_gpuasm_optimizations": True,
}
_QUICK = {"cpu": _ON_CPU, "gpu": _ON_GPU, "cuda": _ON_GPU}


def on_ranks(kernel: Callable[..., Any], ranks: int | Axes) -> Callable[..., Any]:
    """A kernel of one rank's arrays, as a jitted function of arrays [ranks, ...] on fake CPU devices."""
    axes = Axes(("data",), (ranks,)) if isinstance(ranks, int) else ranks
    spec = PartitionSpec(axes.names)

    def one_rank(*stacked: Any) -> Any:
        return jax.tree.map(lambda y: y[None], kernel(*jax.tree.map(lambda x: x[0], stacked)))

    mapped = jax.shard_map(one_rank, mesh=cpu_mesh(axes), in_specs=spec, out_specs=spec)
    return jax.jit(mapped, compiler_options=_ON_CPU)


def cpu_mesh(axes: Axes) -> Mesh:
    """Of the first fake CPU devices."""
    return Mesh(np.array(jax.devices("cpu")[: axes.size]).reshape(axes.sizes), axes.names)


def stated(swept: list[Case]) -> Rows:
    return sum((rows(case.cost().ledger(case.axes, "s32")) for case in swept), Counter())


def shown(text: str, axes: Axes, **how: Any) -> Rows:
    """What a compiled program communicates."""
    return rows(read_text(text, axes=axes, **how))


def rows(ledger: Ledger) -> Rows:
    """What moves. Combined reductions count one by one; the pieces of an all_to_all, which CPU text lists, as one."""
    found: Rows = Counter()
    for transfer in ledger.transfers:
        for part in _parts(transfer) if transfer.wire_bytes else ():
            found[part.kind, part.axes, part.payload_bytes] += part.executions
    return found


def _parts(transfer: Transfer) -> tuple[Transfer, ...]:
    return (transfer,) if transfer.kind is Kind.ALL_TO_ALL else transfer.split()


def wrong(axes: Axes, swept: list[Case]) -> Iterator[str]:
    """What does not hold on fake CPU devices: values bit for bit, and the ledger."""
    mesh = cpu_mesh(axes)
    ready = compiled(mesh, swept)
    draw = np.random.default_rng(axes.size)
    xs = [draw.integers(-(2**31), 2**31, (mesh.size, ROWS, case.width), np.int32) for case in swept]
    _, sharding = program(mesh, swept)
    results = ready(jax.device_put(xs, sharding))
    for case, x, result in zip(swept, xs, results, strict=True):
        if not np.array_equal(case.expected(x), result):
            yield f"{case.primitive} by {case.algorithm} over {axes}: other values than NumPy's"
    found, said = shown(ready.as_text(), axes), stated(swept)
    if found != said:
        yield f"over {axes}: shown but not stated {found - said}, stated but not shown {said - found}"


@st.composite
def random_case(draw: st.DrawFn, meshes: list[Axes]) -> tuple[Case, np.ndarray]:
    """An algorithm that serves one of the meshes, and buffers of any shape for it, [ranks, rows, width]."""
    axes = draw(st.sampled_from(meshes), label="mesh")
    one = draw(st.sampled_from(cases(axes, lambda primitive, _: primitive != "barrier")), label="case")
    case = replace(one, width=draw(st.integers(0, 3), label="width"))
    rows = draw(st.integers(0, 20), label="rows")
    return case, np.random.default_rng(rows).integers(-(2**31), 2**31, (axes.size, rows, case.width), np.int32)


def exact_on_any_shape(meshes: list[Axes], examples: int) -> Callable[[], None]:
    """A test that algorithms give what NumPy gives, bit for bit."""

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(random_case(meshes))
    def exact(drawn: tuple[Case, np.ndarray]) -> None:
        case, x = drawn
        np.testing.assert_array_equal(on_ranks(case.kernel, case.axes)(x), case.expected(x))

    return exact


def _padded_blocks(x_PNW: np.ndarray) -> np.ndarray:
    """[P, N, W] to [P, P, C, W]."""
    P, N, W = x_PNW.shape
    C = -(-N // P)
    return np.pad(x_PNW, ((0, 0), (0, P * C - N), (0, 0))).reshape(P, P, C, W)


def _everywhere(y: np.ndarray, ranks: int) -> np.ndarray:
    return np.broadcast_to(y, (ranks, *y.shape))


def _only_on(root: int, y: np.ndarray, ranks: int) -> np.ndarray:
    return np.stack([y if rank == root else np.zeros_like(y) for rank in range(ranks)])


def _sum(x: np.ndarray) -> np.ndarray:
    return x.sum(0, dtype=x.dtype)


_REFERENCES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "all_reduce": lambda x, root: _everywhere(_sum(x), len(x)),
    "reduce_scatter": lambda x, root: _sum(_padded_blocks(x)),
    "all_gather": lambda x, root: _everywhere(np.concatenate(x), len(x)),
    "reduce": lambda x, root: _only_on(root, _sum(x), len(x)),
    "broadcast": lambda x, root: _everywhere(x[root], len(x)),
    "scatter": lambda x, root: _padded_blocks(x)[root],
    "gather": lambda x, root: _only_on(root, np.concatenate(x), len(x)),
    "all_to_all": lambda x, root: (
        (b := _padded_blocks(x)).swapaxes(0, 1).reshape(len(x), prod(b.shape[1:3]), x.shape[-1])
    ),
    "permute": lambda x, root: np.roll(x, 1, axis=0),
    "barrier": lambda x, root: np.full((len(x), 1), len(x)),
}


if __name__ == "__main__":
    sizes = list(map(int, sys.argv[1:]))
    prepare([parse_target(f"cpu:{max(sizes)}")])
    rings = [Axes(("data",), (size,)) for size in sizes]
    for axes in rings:
        print(*wrong(axes, cases(axes)), sep="\n", end="")
    tori = [Axes.parse("data=3,tensor=3"), Axes.parse("data=4,tensor=4")]
    exact_on_any_shape([*rings, *(axes for axes in tori if axes.size <= max(sizes))], examples=20)()
