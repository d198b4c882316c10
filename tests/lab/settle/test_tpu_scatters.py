"""Which scatters TPU compilers keep, and how they pad them: against psum_scatters that libtpu compiled one by one."""

import pytest

from lab.core.ledger import Kind, Provenance, Transfer
from lab.meshes.targets import parse_target
from lab.settle import Context
from lab.settle.behaviours import emitted


def compiled(target: str, P: int, *dims: int, at: int = 0, width: int = 2, **mesh: int) -> list[tuple[str, int]]:
    """Kinds and rows of a shard, of the message for a permute."""
    payload = width
    for size in dims:
        payload *= size
    scatter = Transfer(
        Kind.REDUCE_SCATTER,
        ("data",),
        P,
        1,
        {2: "bf16", 4: "f32"}[width],
        payload,
        provenance=Provenance(dims=dims, scattered_dim=at),
    )
    context = Context("tpu", "explicit", mesh or {"data": P}, target=parse_target(target))
    row = payload // dims[at]
    return [
        (str(t.kind), t.payload_bytes // row // (1 if t.kind is Kind.COLLECTIVE_PERMUTE else P))
        for t in emitted(scatter, context)[0]
    ]


@pytest.mark.parametrize(
    ("target", "is_kept"),
    [
        ("v6e:2x2", True),
        ("v6e:2x4", True),
        ("v6e:4x4", False),
        ("v6e:4x8", True),
        ("v6e:8x8", False),
        ("v6e:8x16", True),
        ("v6e:16x16", False),
        ("v5e:4x4", False),
        ("v5p:2x2x1", True),
        ("v5p:2x4x1", True),
        ("v5p:4x4x1", False),
        ("v5p:2x2x2", False),
        ("v5p:4x4x8", False),
        ("v5p:8x8x8", False),
        ("v4:2x2x2", False),
        ("7x:2x2x2", True),
        ("7x:4x4x4", True),
    ],
)
def test_over_a_whole_square_or_cube_sums_are_not_scattered(target, is_kept):
    P = parse_target(f"tpu:{target}").devices
    (found,) = compiled(f"tpu:{target}", P, 4096, 512)
    assert found[0] == ("reduce_scatter" if is_kept else "all_reduce")


def test_over_a_part_of_a_square_sums_are_scattered():
    assert compiled("tpu:v6e:4x4", 8, 4096, 512, data=8, tensor=2) == [("reduce_scatter", 512)]


@pytest.mark.parametrize("columns", range(1, 13))
def test_along_the_last_dim_an_odd_number_of_128_columns_is_not_scattered(columns):
    """As 4096 x (128, 256, ..., 1408) bf16 over 8 of v6e."""
    ((kind, _),) = compiled("tpu:v6e:2x4", 8, 4096, 8 * 128 * columns, at=1)
    assert kind == ("all_reduce" if columns % 2 else "reduce_scatter")
    assert compiled("tpu:v6e:2x4", 8, 4096, 8 * 64 * (2 * columns - 1), at=1)[0][0] == "reduce_scatter"


@pytest.mark.parametrize(
    ("P", "rows", "columns", "padded"),
    [
        (4, 256, 7680, 264),
        (4, 256, 2816, 256),
        (4, 512, 32000, 528),
        (4, 8000, 2048, 8064),
        (4, 1000, 2048, 1008),
        (4, 1536, 2048, 1536),
        (4, 32768, 2048, 32944),
        (4, 7560, 128, 7584),
        (4, 24, 128, 32),
        (8, 512, 14336, 520),
        (8, 1536, 2048, 1560),
        (8, 8000, 2048, 8112),
        (8, 16384, 2048, 16536),
        (8, 1001, 2048, 1024),
        (8, 11, 2048, 16),
        (8, 1000, 640, 1024),
        (8, 1000, 1152, 1024),
        (32, 128, 14336, 128),
    ],
)
def test_shards_are_padded_to_pieces_of_one_size(P, rows, columns, padded):
    target = {4: "tpu:v6e:2x2", 8: "tpu:v6e:2x4", 32: "tpu:v6e:4x8"}[P]
    scatter, *moved = compiled(target, P, P * rows, columns)
    assert scatter == ("reduce_scatter", padded)
    assert sum(size for _, size in moved) == (P - 1) * (padded - rows)


def test_of_float32_8_rows_fill_a_tile_too():
    assert compiled("tpu:v6e:2x4", 8, 8 * 4096, 2048, width=4)[0] == ("reduce_scatter", 4144)


def test_v5e_takes_half_as_large_pieces_and_tpu_7x_cuts_no_shards():
    assert compiled("tpu:v5e:2x2", 4, 4 * 4096, 2048)[0] == ("reduce_scatter", 4104)
    assert compiled("tpu:v5e:2x2", 4, 4 * 8192, 2048)[0] == ("reduce_scatter", 8288)
    assert compiled("tpu:7x:2x2x1", 8, 8 * 8000, 2048) == [("reduce_scatter", 8000)]


@pytest.mark.parametrize(("rows", "is_scattered"), [(4, False), (6, True), (10, False), (11, True)])
def test_shards_that_would_be_padded_by_more_than_a_half_are_summed_whole(rows, is_scattered):
    assert (compiled("tpu:v6e:2x4", 8, 8 * rows, 2048)[0][0] == "reduce_scatter") is is_scattered


def test_six_rows_padded_to_eight_move_a_whole_shard_and_six_rows_more():
    assert compiled("tpu:v6e:2x4", 8, 48, 2048) == [
        ("reduce_scatter", 8),
        ("collective_permute", 8),
        ("collective_permute", 6),
    ]


def test_over_two_devices_a_piece_has_as_many_as_10032_rows_of_128_numbers_and_no_10064():
    for rows, is_whole in ((10_032, True), (10_064, False)):
        scatter, *moved = compiled("tpu:v6e:2x2", 2, 2 * rows, 128, data=2, tensor=2)
        assert (scatter == ("reduce_scatter", rows)) is is_whole and bool(moved) is not is_whole
