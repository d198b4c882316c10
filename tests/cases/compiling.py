"""What the tests of the cases share: arrays that know their sharding, programs compiled and read, ledgers as short
rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Ledger, axes_label
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

ahead_of_time_tpu = pytest.mark.skipif(
    not plugins.installed("tpu"), reason="libtpu is not installed: nothing compiles for TPUs"
)
ahead_of_time_gpu = pytest.mark.skipif(
    not plugins.installed("gpu"), reason="JAX's CUDA plugin or ptxas is not installed: nothing compiles for GPUs"
)
under_both_partitioners = pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
Row = tuple[str, str, int | None, int]


@cache
def mesh_on(target: str, **axes: int) -> Mesh:
    return make_mesh(parse_target(target), Axes.of(axes))


def cpu(**axes: int) -> Mesh:
    return mesh_on(f"cpu:{Axes.of(axes).size}", **axes)


def tpu(**axes: int) -> Mesh:
    return mesh_on("tpu:v5e:2x4", **axes)


def array(mesh: Mesh, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def pinned(mesh: Mesh, x: jax.Array, *spec: Any) -> jax.Array:
    """`x` with its sharding constrained."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


@contextmanager
def partitioned_by(shardy: bool) -> Iterator[None]:
    """Programs compiled inside are partitioned by Shardy or by GSPMD."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def compiled(mesh: Mesh, function: Callable, *args: Any, out: Any = None, **options: Any) -> jax.stages.Compiled:
    """The program, its outputs sharded by the specs `out`; None leaves them to the compiler."""
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), out, is_leaf=lambda leaf: isinstance(leaf, P))
    return jax.jit(function, out_shardings=shardings, **options).lower(*args).compile()


def read(mesh: Mesh, function: Callable, *args: Any, out: Any = None, **options: Any) -> Ledger:
    return lab.inspect(compiled(mesh, function, *args, out=out, **options), mesh=mesh)


def rows(ledger: Ledger) -> list[Row]:
    """(kind, axes, executions, payload bytes of one) of every transfer, sorted."""
    return sorted((str(t.kind), axes_label(t), t.executions, t.payload_bytes) for t in ledger.transfers)
