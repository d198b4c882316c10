"""How XLA's TPU compiler scatters a sum: in which layouts it cannot, and how it pads shards to whole pieces.

The laws were found by compiling psum_scatters of some 200 shapes alone, and are held against steps of decoders.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lab.core.dtypes import DTYPES
from lab.core.ledger import Kind, Transfer
from lab.settle.behaviours.behaviour import Context
from lab.settle.behaviours.tpu_slices import devices_of_slice

LANES, ROWS = 128, 8
"""Numbers in a row of a tile, and rows of one."""
PIECES = {"v6e": 7_723_000, "v5e": 3_737_500}
"""Numbers in the pieces that are on their way at once: P + 4 of them over P devices. On v6e between 7,716,864 and
7,729,152, on v5e between 3,727,360 and 3,747,840. On TPU 7x shards are not cut."""
MOST_PADDING = 0.5
"""Of a shard: 11 rows are padded to 16, of 10 rows the sum is not scattered."""


def reduced_everywhere(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The all-reduce of what is not scattered."""
    if transfer.kind is not Kind.REDUCE_SCATTER or not context.target:
        return (transfer,)
    is_unscattered = (
        _is_whole_torus(transfer, context) or _has_odd_columns(transfer) or _is_mostly_padding(transfer, context)
    )
    return (replace(transfer, kind=Kind.ALL_REDUCE),) if is_unscattered else (transfer,)


def _is_whole_torus(transfer: Transfer, context: Context) -> bool:
    """Over all devices of a slice that is a square of 4x4 or more, or that has three dims."""
    target = context.target
    if target is None or target.hardware.devices_per_chip > 1 or transfer.group_size != devices_of_slice(context):
        return False
    sides = [side for side in target.shape if side > 1]
    return len(sides) == 3 or (len(sides) == 2 and sides[0] == sides[1] >= 4)


def _has_odd_columns(transfer: Transfer) -> bool:
    """Along the last dim each device keeps an odd number of 128 columns: the two directions of a ring take half of a
    shard each."""
    dims, at, P = transfer.provenance.dims, transfer.provenance.scattered_dim, transfer.group_size or 1
    if at is None or at != len(dims) - 1 or not _is_of(transfer, dims):
        return False
    return dims[at] % (P * LANES) == 0 and dims[at] // (P * LANES) % 2 == 1


def _is_mostly_padding(transfer: Transfer, context: Context) -> bool:
    rows, padded = _rows_of_shard(transfer, context)
    return padded > rows * (1 + MOST_PADDING)


def padded_scatter(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """The scatter of padded shards, and the permutes that put each device's rows where they belong."""
    rows, padded = _rows_of_shard(transfer, context)
    if padded == rows:
        return (transfer,)
    P = transfer.group_size or 1
    row = transfer.payload_bytes // (P * rows)
    moved = as_permute(transfer)
    messages = halo(P * padded * row, P * (padded - rows) * row, P)
    return (
        replace(transfer, payload_bytes=P * padded * row),
        *(replace(moved, payload_bytes=message, shift=shift) for shift, message in enumerate(messages, 1)),
    )


def as_permute(transfer: Transfer) -> Transfer:
    """Between neighbours of a group: along whole axes, whatever part of them a group has."""
    names = tuple(part.axis for part in transfer.sub_axes or ()) or transfer.axes
    return replace(transfer, kind=Kind.COLLECTIVE_PERMUTE, axes=names, sub_axes=None, groups=None)


def _rows_of_shard(transfer: Transfer, context: Context) -> tuple[int, int]:
    """Of a scatter along any dim but the last: rows of a shard, as they are and padded to pieces of one size."""
    dims, at, P = transfer.provenance.dims, transfer.provenance.scattered_dim, transfer.group_size or 1
    in_pieces = PIECES.get((context.target and context.target.chip) or "")
    is_along_rows = transfer.kind is Kind.REDUCE_SCATTER and at is not None and at < len(dims) - 1
    if not is_along_rows or at is None or in_pieces is None or not _is_of(transfer, dims) or dims[at] % P:
        return 1, 1
    rows = dims[at] // P
    columns = prod(dims) // dims[at]
    # Each direction of a ring takes half of a piece: half of its columns, or of its rows where those are odd.
    least = ROWS if -(-columns // LANES) % 2 == 0 else 2 * ROWS
    most = in_pieces // (P + 4) // (least * columns)
    if columns % LANES or most == 0:
        return 1, 1
    pieces = -(-rows // (least * most))
    return rows, -(-rows // (pieces * least)) * pieces * least


def _is_of(transfer: Transfer, dims: tuple[int, ...]) -> bool:
    """The payload is all of a value of these dims."""
    return prod(dims) * DTYPES[transfer.dtype][1] == transfer.payload_bytes


def halo(padded: int, padding: int, P: int) -> tuple[int, ...]:
    """Messages to the last shard, which lies furthest from where it is to be: of no more than a padded shard each
    [bytes]."""
    shard = padded // P
    whole, rest = divmod((P - 1) * padding // P, shard)
    return (shard,) * whole + (rest,) * (rest > 0)
