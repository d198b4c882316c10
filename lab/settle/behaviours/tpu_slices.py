"""What XLA's TPU compiler makes of a transfer between several slices: a part inside each, over ICI, and messages to the
others, over the data-centre network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Any

from lab.core.dtypes import DTYPES
from lab.core.known import known
from lab.core.ledger import Kind, SubAxis, Transfer
from lab.meshes.axes import Axes
from lab.meshes.platforms import Platform
from lab.meshes.targets import slice_axis
from lab.settle.behaviours.behaviour import Behaviour, Certainty, Context
from lab.settle.behaviours.transforms import is_declared_scatter
from lab.settle.unclaimed import Unclaimed, claim, claim_up_to

LANES, ROWS, TILE = 128, 8, 1024
"""Elements that a flat array is padded to: a power of two times the lanes while it is small, then whole tiles."""


def devices_of_slice(context: Context) -> int:
    """How many devices run one copy of the program."""
    return prod(context.mesh.values()) // (context.target.slices if context.target else 1)


def _parts(transfer: Transfer, context: Context) -> tuple[tuple[SubAxis, ...], tuple[SubAxis, ...]] | None:
    """Of the axes of a transfer what lies inside a slice, and what lies between slices; None where it stays inside."""
    slices = context.target.slices if context.target else 1
    if slices == 1 or not transfer.axes:
        return None
    across = slice_axis(slices, Axes.of(context.mesh))
    if across not in transfer.axes:
        return None
    size = context.mesh[across]
    inside = [
        SubAxis(name, context.mesh[name], 1, size // slices if name == across else context.mesh[name])
        for name in transfer.axes
    ]
    return tuple(part for part in inside if part.size > 1), (SubAxis(across, size, size // slices, slices),)


def span_slices(axes: tuple[str, ...], context: Context) -> bool:
    """Groups over these axes have devices of several TPU slices."""
    slices = context.target.slices if context.target else 1
    if slices == 1 or context.platform != Platform.TPU:
        return False
    return slice_axis(slices, Axes.of(context.mesh)) in axes


def _over(parts: Iterable[SubAxis], transfer: Transfer) -> dict[str, Any]:
    """Fields of what a transfer does over these parts of its axes."""
    parts = tuple(parts)
    size = prod(part.size for part in parts)
    are_whole = all(part.size == part.axis_size for part in parts)
    stated = None if transfer.groups is None else transfer.groups * known(transfer.group_size)
    return {
        "axes": tuple(part.axis for part in parts) if are_whole else None,
        "sub_axes": None if are_whole else parts,
        "group_size": size,
        "groups": stated and stated // size,
    }


def split(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    """What a transfer becomes; itself where it stays inside a slice."""
    found = _parts(transfer, context)
    if is_declared_scatter(transfer, context):
        # The partitioner sums all, of which each device keeps a part.
        stated = replace(transfer.provenance, scattered_dim=None)
        parts = split(replace(transfer, kind=Kind.ALL_REDUCE, provenance=stated), context) if found else (transfer,)
        return parts if len(parts) > 1 else tuple(replace(part, provenance=transfer.provenance) for part in parts)
    if found is None:
        return (transfer,)
    inside, across = found
    within, slices = prod(part.size for part in inside), across[0].size

    def local(kind: Kind, payload_bytes: int) -> tuple[Transfer, ...]:
        """What runs inside a slice, if more than one device of it takes part."""
        one = replace(transfer, kind=kind, payload_bytes=payload_bytes, **_over(inside, transfer))
        return (one,) if within > 1 else ()

    def message(kind: Kind, payload_bytes: int, own_bytes: int | None = None) -> Transfer:
        where = _over(across, transfer)
        filled_from = None if own_bytes == payload_bytes else own_bytes
        sent = replace(transfer, kind=Kind.SEND_RECV, network_kind=kind, payload_bytes=payload_bytes, **where)
        return replace(sent, padded_from_bytes=filled_from)

    n = transfer.payload_bytes
    match transfer.kind:
        case Kind.ALL_REDUCE:
            whole, part = _padded(transfer, n), _part(transfer, within)
            if part is None:
                own = None if whole == n else n
                inside_first = tuple(replace(t, padded_from_bytes=own) for t in local(Kind.ALL_REDUCE, whole))
                return (*inside_first, message(Kind.ALL_REDUCE, whole, n))
            is_flat = len(transfer.provenance.dims) < 2
            scatter = local(Kind.REDUCE_SCATTER, whole if is_flat else n)
            gather = local(Kind.ALL_GATHER, within * part if is_flat else n)
            sent = message(Kind.ALL_REDUCE, part, n // within)
            return (*(_scattered(each, within, context) for each in scatter), sent, *gather)
        case Kind.REDUCE_SCATTER:
            # A device's part of the whole is not one run of its slice's sum, so that this sum is not scattered.
            return (*local(Kind.ALL_REDUCE, n), message(Kind.REDUCE_SCATTER, n // within))
        case Kind.ALL_GATHER:
            return (message(Kind.ALL_GATHER, n // (within * slices)), *local(Kind.ALL_GATHER, n))
        case Kind.ALL_TO_ALL:
            return (replace(transfer, kind=Kind.SEND_RECV, network_kind=Kind.ALL_TO_ALL),)
        case Kind.COLLECTIVE_PERMUTE:
            sent = replace(transfer, kind=Kind.SEND_RECV)
            return (transfer, sent) if within > 1 else (sent,)
    return (transfer,)


def _part(transfer: Transfer, within: int) -> int | None:
    """What each of the devices of a slice sends of a sum [bytes]; None where the sum is too small to be scattered."""
    width, dims = bytes_per_element(transfer.dtype), transfer.provenance.dims
    elements = transfer.payload_bytes // width
    if within == 1:
        return None
    if len(dims) < 2:
        part = -(-elements // within)
        return None if part <= TILE else width * -(-part // TILE) * TILE
    is_as_it_is = len(dims) > 2 or dims[-1] % LANES > 0
    return transfer.payload_bytes // within if is_as_it_is else width * prod(_in_tiles(_shard(dims, within), width))


def _shard(dims: tuple[int, ...], within: int) -> tuple[int, ...]:
    """A sum of equal copies is scattered along the first dim that divides."""
    at = _scattered_dim(dims, within)
    return tuple(size // within if i == at else size for i, size in enumerate(dims))


def _scattered_dim(dims: tuple[int, ...], within: int) -> int:
    return next((i for i, size in enumerate(dims) if size % within == 0), 0)


def _in_tiles(dims: tuple[int, ...], width: int) -> tuple[int, int]:
    """A matrix filled up to tiles of 8 rows of 128 numbers, or to fewer rows, of 4 bytes at least."""
    rows, columns = dims
    filled = max(4 // width, 1 << (rows - 1).bit_length()) if rows < ROWS else -(-rows // ROWS) * ROWS
    return filled, -(-columns // LANES) * LANES


def _padded(transfer: Transfer, payload_bytes: int) -> int:
    """A flat array in whole tiles [bytes]."""
    width = bytes_per_element(transfer.dtype)
    elements = payload_bytes // width
    tile = min(TILE, max(LANES, 1 << (elements - 1).bit_length()))
    return width * -(-elements // tile) * tile


def _scattered(scatter: Transfer, within: int, context: Context) -> Transfer:
    """Inside a slice; as a sum everywhere where an explicit loop stores matrices, each as a stack of one."""
    stated = scatter.provenance
    is_stored = context.style == "explicit" and stated.iterations > 1
    is_whole = is_stored and len(stated.dims) == 2 and stated.dims[-1] % LANES == 0
    at = _scattered_dim(stated.dims, within) if context.style == "explicit" else None
    dims, kind = stated.dims, Kind.ALL_REDUCE if is_whole else scatter.kind
    # Along the first dim of several the parts are of whole rows, all dims but the last taken as one.
    if at is not None and at < len(dims) - 1 and prod(dims[:at]) == 1:
        dims, at = (prod(dims[:-1]), dims[-1]), 0
    return replace(scatter, kind=kind, provenance=replace(stated, dims=dims, scattered_dim=at))


def bytes_per_element(dtype: str) -> int:
    return DTYPES[dtype][1]


def _in_whole_tiles(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The messages that were filled up from as many bytes, with those that were not."""
    if predicted.network_kind is None:
        return ()
    own = predicted.padded_from_bytes or predicted.payload_bytes
    as_filled = [
        replace(predicted, payload_bytes=size, padded_from_bytes=own)
        for size in sorted({t.payload_bytes for t in unclaimed if t.network_kind and t.padded_from_bytes == own})
    ]
    taken: Unclaimed = ()
    for each in (*as_filled, predicted):
        rest = known(predicted.executions) - sum(known(t.executions) for t in taken)
        taken += claim_up_to(replace(each, executions=rest), unclaimed)
    is_all = sum(known(t.executions) for t in taken) == predicted.executions
    return taken if is_all and any(t.padded_from_bytes for t in taken) else ()


T18 = Behaviour(
    id="T18",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="a message between slices is filled up to whole tiles of 128 columns; of several that are packed into one "
    "message none is",
    when="a part of a matrix that fills no tiles, such as that of heads of 32 or 64, or what several parts are packed "
    "into; the text tells from how many bytes",
    remedy="choose shards that fill the tiles",
    recognise=_in_whole_tiles,
)


def _scattered_between(predicted: Transfer, context: Context, unclaimed: Unclaimed) -> Unclaimed:
    """The messages of a reduce-scatter, filled up or not, instead of those of a sum."""
    if predicted.network_kind is not Kind.ALL_REDUCE or predicted.provenance.scattered_dim is None:
        return ()
    wanted = replace(predicted, network_kind=Kind.REDUCE_SCATTER)
    return claim(wanted, unclaimed) or _in_whole_tiles(wanted, context, unclaimed)


T19 = Behaviour(
    id="T19",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="a declared reduce-scatter between slices stays one: half of the wire bytes of the sum that T14 predicts",
    when="declared style; the shards are those of one device of each slice",
    recognise=_scattered_between,
)


def is_flat_sum(transfer: Transfer, context: Context) -> bool:
    """It sums numbers, vectors or a stack of vectors over several slices."""
    stated = transfer.provenance
    is_small = len(stated.dims) < (2 if stated.is_matrix_product else 3)
    return (
        transfer.kind is Kind.ALL_REDUCE
        and is_small
        and context.platform == Platform.TPU
        and _parts(transfer, context) is not None
    )


T14 = Behaviour(
    id="T14",
    platform=Platform.TPU,
    certainty=Certainty.PREDICTABLE,
    effect="a transfer between slices is split: an all-reduce of n bytes becomes a reduce-scatter inside each slice of "
    "m devices (an all-reduce where an explicit loop stacks matrices), a message of n/m to the others, which the "
    "runtime sums, and an all-gather inside; with 1,024 numbers a device or fewer an all-reduce inside and one message "
    "of them all; a reduce-scatter the same if it is declared, else an all-reduce inside and a message of n/m; an "
    "all-gather a message of the device's own part and an all-gather inside; an all-to-all one message of the whole "
    "buffer; a permute one inside each slice and a message between slices",
    when="an axis that spans several slices",
    remedy="let an axis of little traffic span the slices: data, or pipe",
    rewrite=split,
)
