"""Cases c06, c41, c48: rolls, updates, reads and convolutions along a sharded dim.

The wrong values once reported of c48 are no matter of a ledger.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tests.cases.compiling import array, cpu, read, rows

pytestmark = pytest.mark.compiles

SCALAR = jax.ShapeDtypeStruct((), jnp.int32)


def rolled(shift):
    mesh = cpu(d=4)
    return rows(read(mesh, lambda a: jnp.roll(a, shift, axis=0), array(mesh, (64, 128), "d"), out=P("d")))


def test_a_roll_by_one_sends_one_row_of_512_bytes():
    """c06."""
    assert rolled(1) == [("collective_permute", "d", 1, 512)]


def test_a_roll_by_20_sends_4_and_12_rows_to_two_neighbours():
    """c06: shards have 16 rows."""
    assert rolled(20) == [("collective_permute", "d", 1, 2_048), ("collective_permute", "d", 1, 6_144)]


def test_a_shift_that_does_not_wrap_sends_one_row_of_512_bytes():
    """c06: the last device has no target."""
    mesh = cpu(d=4)
    ledger = read(mesh, lambda a: jnp.pad(a, ((1, 0), (0, 0)))[:-1], array(mesh, (64, 128), "d"), out=P("d"))
    assert rows(ledger) == [("collective_permute", "d", 1, 512)]
    assert ledger.transfers[0].shift == 1


def test_a_roll_by_a_traced_shift_moves_the_array_11_times():
    """c06: all-to-alls of one and two shards of 8,192 B, and the doubled array gathered, 90,112 B in place of 512."""
    mesh = cpu(d=4)
    ledger = read(mesh, lambda a, k: jnp.roll(a, k, axis=0), array(mesh, (64, 128), "d"), SCALAR, out=P("d"))
    assert rows(ledger) == [
        ("all_gather", "d", 1, 65_536),
        ("all_to_all", "d", 1, 8_192),
        ("all_to_all", "d", 1, 16_384),
    ]


WHOLE = [("all_gather", "d", 1, 65_536)]


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (lambda x, u, i, k: x.at[0:3].set(u), WHOLE),
        (lambda x, u, i, k: jax.lax.dynamic_update_slice(x, u, (k, 0)), WHOLE),
        (lambda x, u, i, k: x.at[jnp.array([0, 1, 2])].set(u), []),
        (lambda x, u, i, k: x.at[i].set(u), []),
        (lambda x, u, i, k: x.at[i].add(u), []),
    ],
    ids=["slice", "dynamic slice", "constant indices", "indices", "added at indices"],
)
def test_an_update_through_a_slice_gathers_65536_bytes_and_through_indices_none(update, expected):
    """c41: the owner could write; only index arrays let it."""
    mesh = cpu(d=8)
    x, u, i = array(mesh, (64, 256), "d"), array(mesh, (3, 256)), array(mesh, (3,), dtype=jnp.int32)
    assert rows(read(mesh, update, x, u, i, SCALAR, out=P("d"))) == expected


@pytest.mark.parametrize(
    ("reading", "out", "expected"),
    [
        (lambda x, i, p, k: x[0], P(), [("all_reduce", "d", 1, 1_024)]),
        (lambda x, i, p, k: x[k], P(), WHOLE),
        (lambda x, i, p, k: x[0:8], P(), [("all_gather", "d", 1, 8_192), *7 * [("collective_permute", "d", 1, 1_024)]]),
        (lambda x, i, p, k: x[::2], P("d"), []),
        (lambda x, i, p, k: x[::-1], P("d"), [("collective_permute", "d", 1, 8_192)]),
        (lambda x, i, p, k: x[i], P(), [("all_reduce", "d", 1, 3_072)]),
        (lambda x, i, p, k: x[p], P("d"), WHOLE),
    ],
    ids=["x[0]", "x[k]", "x[0:8]", "x[::2]", "x[::-1]", "x[indices]", "x[permutation]"],
)
def test_what_a_read_of_a_sharded_65536_byte_array_moves(reading, out, expected):
    """c41: rows have 1,024 B, shards 8."""
    mesh = cpu(d=8)
    x, i, p = array(mesh, (64, 256), "d"), array(mesh, (3,), dtype=jnp.int32), array(mesh, (64,), dtype=jnp.int32)
    assert rows(read(mesh, reading, x, i, p, SCALAR, out=out)) == expected


KERNEL_GATHER, HALO = ("all_gather", "d", 1, 9_216), ("collective_permute", "d", 1, 4_096)


@pytest.mark.parametrize(
    ("x_spec", "k_spec", "stride", "expected"),
    [
        (P("d"), P("d"), 1, [KERNEL_GATHER]),
        (P("d"), P("d"), 2, [KERNEL_GATHER]),
        (P(None, None, "d"), P(), 1, [HALO, HALO]),
        (P(None, None, "d"), P(), 2, [HALO]),
        (P(None, "d"), P(None, "d"), 1, [("all_reduce", "d", 1, 131_072)]),
        (P(None, "d"), P(None, "d"), 2, [("all_reduce", "d", 1, 32_768)]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_convolution_gathers_the_kernel_exchanges_halos_or_reduces_the_output(x_spec, k_spec, stride, expected):
    """c48: batch and output channels, height, and input channels sharded; the input has 131,072 B, the kernel 9,216."""
    mesh = cpu(d=8)
    x, k = array(mesh, (8, 16, 32, 8), *x_spec), array(mesh, (16, 16, 3, 3), *k_spec)
    ledger = read(mesh, lambda x, k: jax.lax.conv_general_dilated(x, k, (stride, stride), ((1, 1), (1, 1))), x, k)
    assert rows(ledger) == expected
