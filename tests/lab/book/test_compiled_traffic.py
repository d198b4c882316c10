"""The second source's claims of traffic, counted in compiled text: across the middle, over a torus, of sparse
gradients, by width."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

from lab import collectives
from lab.book.codec import sparse_collective_gain
from lab.book.collectives import all_reduce_wire_bytes
from lab.book.fabric import (
    all_to_all_cut_bytes,
    axis_by_axis_wire_bytes,
    ring_cut_bytes,
)
from lab.core.ledger import Kind
from lab.hlo import read_text
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

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
    found = re.findall(
        r"= s32\[([\d,]*)\]\S* collective-permute\(.*source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}", compiled
    )
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


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_gathering_4_of_64_gradients_gains_16_over_the_ranks(ranks):
    kept, axes = 4, Axes(("data",), (ranks,))
    devices = make_mesh(parse_target(f"cpu:{ranks}"), axes)

    def dense(x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "data")

    def sparse(x: jax.Array) -> jax.Array:
        values, places = jax.lax.top_k(x, kept)
        gathered, where = (jax.lax.all_gather(part, "data", tiled=True) for part in (values, places))
        return jnp.zeros_like(x).at[where].add(gathered)

    sends = []
    for kernel in (dense, sparse):
        function = jax.jit(
            jax.shard_map(
                kernel, mesh=devices, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"), check_vma=False
            )
        )
        compiled = function.lower(jax.ShapeDtypeStruct((ranks * SIZE,), jnp.float32)).compile().as_text()
        sends.append(read_text(compiled, axes=axes).totals().wire_bytes)
    assert sends[0] / sends[1] == sparse_collective_gain(SIZE, kept, ranks, 4, 4) == 16 / ranks


def flops_a_reduced_byte(width: int, tokens: int) -> float:
    """Of the data-parallel step of three square layers."""

    def loss(w_LDD: jax.Array, x_BD: jax.Array) -> jax.Array:
        for w_DD in w_LDD:
            x_BD = jnp.tanh(x_BD @ w_DD)
        return (x_BD**2).sum()

    devices = mesh(data=N)
    replicated, split = (jax.NamedSharding(devices, PartitionSpec(*spec)) for spec in ((), ("data",)))
    weights = jax.ShapeDtypeStruct((3, width, width), jnp.float32, sharding=replicated)
    batch = jax.ShapeDtypeStruct((N * tokens, width), jnp.float32, sharding=split)
    compiled = jax.jit(jax.grad(loss), out_shardings=replicated).lower(weights, batch).compile().as_text()
    ledger = read_text(compiled, axes=Axes(("data",), (N,)))
    reduced = sum(t.payload_bytes * t.executions for t in ledger.transfers if t.kind is Kind.ALL_REDUCE)
    assert reduced == 3 * width**2 * 4
    return ledger.flops / reduced


def test_wider_models_compute_no_more_for_each_byte_they_reduce_and_more_tokens_do():
    narrow, wide, longer = (flops_a_reduced_byte(*case) for case in ((32, 16), (128, 16), (32, 64)))
    assert narrow == wide == longer / 4
