"""Cases c02, c05, c12, c18, c19: operations that the partitioner cannot split, so that it gathers their operands whole.

The wrong values once reported of c05 and c12 are no matter of a ledger.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import PartitionSpec as P

from tests.cases.compiling import (
    ahead_of_time_gpu,
    ahead_of_time_tpu,
    array,
    cpu,
    mesh_on,
    partitioned_by,
    read,
    rows,
    tpu,
    under_both_partitioners,
)

pytestmark = pytest.mark.compiles


@under_both_partitioners
@pytest.mark.parametrize("fft", [lambda a: jnp.fft.fft(a, axis=1), jax.vmap(jnp.fft.fft)], ids=["axis", "vmap"])
def test_fft_of_a_sharded_batch_gathers_all_131072_bytes(fft, shardy):
    """c02: nothing would need to move; shard_map says so."""
    mesh = cpu(i=4)
    x = array(mesh, (64, 256), "i", dtype=jnp.complex64)
    with partitioned_by(shardy):
        assert rows(read(mesh, fft, x, out=P("i"))) == [("all_gather", "i", 1, 131_072)]
        assert rows(read(mesh, jax.shard_map(fft, mesh=mesh, in_specs=P("i"), out_specs=P("i")), x)) == []


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (lambda a: jax.lax.top_k(a, 4), P()),
        (lambda a: jax.lax.top_k(a, 1), P()),
        (lambda a: jnp.sort(a, axis=1), P(None, "d")),
        (lambda a: jnp.cumsum(a, axis=1), P(None, "d")),
    ],
    ids=["top_k(4)", "top_k(1)", "sort", "cumsum"],
)
def test_along_a_sharded_dim_the_whole_131072_bytes_are_gathered(function, out):
    """c05."""
    mesh = cpu(d=8)
    assert rows(read(mesh, function, array(mesh, (4, 8192), None, "d"), out=out)) == [("all_gather", "d", 1, 131_072)]


def test_argmax_gathers_a_value_and_an_index_of_every_device():
    """c05: 4 rows of 8 candidates of 4 B."""
    mesh = cpu(d=8)
    ledger = read(mesh, lambda a: jnp.argmax(a, axis=1), array(mesh, (4, 8192), None, "d"), out=P())
    assert rows(ledger) == 2 * [("all_gather", "d", 1, 128)]


def test_top_k_in_two_stages_gathers_128_times_less():
    """c05: four candidates of every device, values and indices, 512 B each."""
    mesh = cpu(d=8)

    def best_of_candidates(a_BN):
        values_BK, places_BK = jax.lax.top_k(a_BN, 4)
        places_BK += jax.lax.axis_index("d") * a_BN.shape[1]
        values_BK, places_BK = (jax.lax.all_gather(x, "d", axis=1, tiled=True) for x in (values_BK, places_BK))
        best_BK, chosen_BK = jax.lax.top_k(values_BK, 4)
        return best_BK, jnp.take_along_axis(places_BK, chosen_BK, 1)

    two_stages = jax.shard_map(best_of_candidates, mesh=mesh, in_specs=P(None, "d"), out_specs=P(), check_vma=False)
    ledger = read(mesh, two_stages, array(mesh, (4, 8192), None, "d"))
    assert rows(ledger) == 2 * [("all_gather", "d", 1, 512)]


def normal(key):
    return jax.random.normal(key, (512, 256))


def truncated_normal(key):
    return jax.random.truncated_normal(key, -2, 2, (512, 256))


@pytest.mark.parametrize("draw", [normal, truncated_normal])
def test_random_numbers_of_a_sharded_array_move_nothing(draw):
    """c12: threefry is partitionable by default."""
    mesh = cpu(x=4, y=2)
    with jax.threefry_partitionable(True):
        assert rows(read(mesh, draw, jax.ShapeDtypeStruct((2,), jnp.uint32), out=P("x", "y"))) == []


@pytest.mark.parametrize("draw", [normal, truncated_normal])
def test_without_partitionable_threefry_random_numbers_move_851968_bytes(draw):
    """c12: the bits are drawn in another order than they are kept in."""
    mesh = cpu(x=4, y=2)
    with jax.threefry_partitionable(False):
        totals = read(mesh, draw, jax.ShapeDtypeStruct((2,), jnp.uint32), out=P("x", "y")).totals_by(
            lambda t: str(t.kind)
        )
    assert (totals["collective_permute"].sites, totals["collective_permute"].payload_bytes) == (4, 131_072 + 3 * 65_536)
    assert (totals["all_gather"].sites, totals["all_gather"].payload_bytes) == (2, 2 * 262_144)


@pytest.mark.parametrize(
    "function",
    [
        jnp.linalg.cholesky,
        lambda a: jnp.linalg.eigh(a)[1],
        lambda a: jnp.linalg.eig(a)[1],
        lambda a: jnp.linalg.qr(a)[0],
        lambda a: jnp.linalg.svd(a)[0],
        jnp.linalg.inv,
        lambda a: jax.scipy.linalg.lu_factor(a)[0],
        lambda a: jax.scipy.linalg.solve_triangular(a, jnp.ones((16, 32, 1)), lower=True),
    ],
    ids=["cholesky", "eigh", "eig", "qr", "svd", "inv", "lu", "solve_triangular"],
)
def test_linear_algebra_on_a_sharded_batch_moves_nothing(function):
    """c18: a control; older releases gathered."""
    mesh = cpu(b=8)
    assert rows(read(mesh, function, array(mesh, (16, 32, 32), "b"), out=P("b"))) == []


def on_the_host(x):
    def twice(value):
        return 2 * np.asarray(value)

    return jax.pure_callback(twice, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


def test_a_callback_gathers_its_operand_and_sends_its_result_to_all():
    """c19: 65,536 B each way; inside shard_map it stays local."""
    mesh = cpu(b=8)
    x = array(mesh, (64, 256), "b")
    assert rows(read(mesh, on_the_host, x, out=P("b"))) == [
        ("all_gather", "b", 1, 65_536),
        ("all_reduce", "b", 1, 65_536),
    ]
    assert rows(read(mesh, jax.shard_map(on_the_host, mesh=mesh, in_specs=P("b"), out_specs=P("b")), x)) == []


def test_a_foreign_function_gathers_its_operand_of_16384_bytes():
    """c19."""
    mesh = cpu(b=8)

    def factor(a):
        results = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((), jnp.int32))
        return jax.ffi.ffi_call("lapack_spotrf_ffi", results)(a, uplo=np.uint8(ord("L")))[0]

    assert rows(read(mesh, factor, array(mesh, (64, 64), "b"), out=P("b"))) == [("all_gather", "b", 1, 16_384)]


@ahead_of_time_tpu
def test_a_pallas_kernel_is_refused_in_jit_and_moves_nothing_in_shard_map():
    """c19."""
    mesh = tpu(b=8)
    x = array(mesh, (512, 256), "b")

    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    def twice(x):
        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(Exception, match="automatically partitioned"):
        read(mesh, twice, x, out=P("b"))
    assert (
        rows(read(mesh, jax.shard_map(twice, mesh=mesh, in_specs=P("b"), out_specs=P("b"), check_vma=False), x)) == []
    )


@ahead_of_time_gpu
def test_what_a_pallas_kernel_that_reaches_another_gpus_memory_sends_is_not_known():
    from jax.experimental.pallas import mosaic_gpu  # jaxlib has it where GPUs are compiled for.

    mesh = mesh_on("gpu:h200:1x2", d=2)

    def kernel(x_ref, y_ref):
        other = 1 - jax.lax.axis_index("d")
        y_ref[...] = mosaic_gpu.remote_ref(x_ref, other)[...]

    def swapped(x):
        return mosaic_gpu.kernel(kernel, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    on_ranks = jax.shard_map(swapped, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    ledger = read(mesh, on_ranks, array(mesh, (512,), "d"))
    assert not ledger.is_complete and not ledger.transfers
    assert ledger.notes[0].startswith("1 kernel with access to other devices' memory: ")
