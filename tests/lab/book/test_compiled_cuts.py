"""What compiled collectives send across the middle of a fleet, and over a torus axis by axis: counted in the compiled text."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

from lab import collectives
from lab.book.collectives import all_reduce_wire_bytes
from lab.book.fabric import all_to_all_cut_bytes, axis_by_axis_wire_bytes, ring_cut_bytes
from lab.hlo import read_text
from meshes.axes import Axes
from meshes.targets import make_mesh, parse_target

N, SIZE = 8, 64
BYTES = 4 * SIZE


def text(kernel: Callable[[jax.Array], jax.Array], mesh: Mesh) -> str:
    spec = PartitionSpec(mesh.axis_names)
    function = jax.jit(jax.shard_map(kernel, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return function.lower(jax.ShapeDtypeStruct((N * SIZE,), jnp.int32)).compile().as_text()


def mesh(**sizes: int) -> Mesh:
    return make_mesh(parse_target("cpu:8"), Axes.of(sizes))


def cut_bytes(compiled: str) -> int:
    """Bytes that permutes send from ranks 0..3 to ranks 4..7."""
    found = re.findall(r"= s32\[([\d,]*)\]\S* collective-permute\(.*source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}", compiled)
    assert found
    pairs = [(4 * int(size or 1), re.findall(r"(\d+),(\d+)", listed)) for size, listed in found]
    return sum(size for size, listed in pairs for source, target in listed if int(source) < N // 2 <= int(target))


def test_a_ring_crosses_the_middle_on_one_edge_each_way():
    compiled = text(lambda x: collectives.all_reduce(x, "data", algorithm="ring"), mesh(data=N))
    assert cut_bytes(compiled) == ring_cut_bytes(BYTES, N) == 1.75 * BYTES


def test_an_all_to_all_crosses_it_with_n_quarters_of_the_buffer_half_of_what_is_printed():
    compiled = text(lambda x: collectives.all_to_all(x, "data", algorithm="pairwise"), mesh(data=N))
    assert cut_bytes(compiled) == all_to_all_cut_bytes(BYTES, N) == N * BYTES / 4
    assert cut_bytes(compiled) == N / 2 * BYTES / 2


@pytest.mark.parametrize(("cascade", "wire"), [(False, 3), (True, 1.75)])
def test_three_all_reduces_over_a_torus_send_3_buffers_and_a_cascade_of_scatters_1_75(cascade, wire):
    names = ("data", "fsdp", "tensor")

    def kernel(x: jax.Array) -> jax.Array:
        for name in names:
            x = jax.lax.psum_scatter(x, name, tiled=True) if cascade else jax.lax.psum(x, name)
        for name in names[::-1] if cascade else ():
            x = jax.lax.all_gather(x, name, tiled=True)
        return x

    compiled = text(kernel, mesh(data=2, fsdp=2, tensor=2))
    ledger = read_text(compiled, axes=Axes(names, (2, 2, 2)))
    expected = all_reduce_wire_bytes(BYTES, N) if cascade else axis_by_axis_wire_bytes(BYTES, (2, 2, 2))
    assert ledger.totals().wire_bytes == expected == wire * BYTES
