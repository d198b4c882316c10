"""Small sums between TPU slices, which the compiler packs into one flat array for one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from lab.core.known import known
from lab.core.ledger import Kind, Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, Context
from lab.settle.behaviours.tpu_slices import TILE, bytes_per_element, is_flat_sum, split
from lab.settle.unclaimed import Unclaimed, subtract

SUMS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)


def _packed(
    open_terms: Mapping[int, Transfer],
    settled: Iterable[tuple[Transfer, Unclaimed]],
    unclaimed: Unclaimed,
    context: Context,
) -> dict[int, Unclaimed]:
    """What carries out small sums that no transfer of their own does, by the place of the term: all that is packed for
    the first of those alike, nothing more for the others.

    Sums of one dtype over the same axes are packed. They are there where the sums inside slices that no term has
    claimed are of exactly as many bytes, but for what fills them up, and each has its message, and its gather if it was
    scattered.
    """
    groups: dict[tuple[object, ...], dict[int, Transfer]] = {}
    for place, term in open_terms.items():
        if is_flat_sum(term, context):
            groups.setdefault(_likeness(term), {})[place] = term
    found: dict[int, Unclaimed] = {}
    # Whose messages are all there is comes last: theirs are over the same axes as messages of the others.
    for terms in sorted(groups.values(), key=lambda group: -len(split(next(iter(group.values())), context))):
        taken = _packs(tuple(terms.values()), unclaimed, context)
        unclaimed = subtract(unclaimed, taken)
        if taken:
            found |= {place: taken if place == min(terms) else () for place in terms}
    return found


def _packs(terms: tuple[Transfer, ...], unclaimed: Unclaimed, context: Context) -> Unclaimed:
    """All that carries out these; nothing where what is there is not of as many bytes."""
    tile = TILE * bytes_per_element(terms[0].dtype)
    left = _over_same_parts(terms[0], unclaimed, context)
    wanted = sum(term.payload_bytes * known(term.executions) for term in terms)
    most = 2 * sum(term.payload_bytes for term in terms) + tile
    inside = [t for t in split(terms[0], context) if t.kind in SUMS]
    sums = tuple(t for t in left if _own(t) <= most and (t.kind in SUMS if inside else t.network_kind))
    if sum(_own(t) * known(t.executions) for t in sums) != wanted:
        return ()
    taken = sums
    for each in sums if inside else ():
        sent = _sent(each, subtract(left, taken), prod(known(t.group_size) for t in inside), tile)
        if not sent:
            return ()
        taken += sent
    return taken


def _sent(packed: Transfer, left: Unclaimed, within: int, tile: int) -> Unclaimed:
    """The message of all that is summed inside a slice; or of a device's part, with the gather of all parts and the
    permutes that undo what a scatter was filled up with."""
    at_once = tuple(t for t in left if t.executions == packed.executions)
    messages = [t for t in at_once if t.network_kind]
    for message in messages:
        is_whole = message.payload_bytes == packed.payload_bytes and _own(message) >= _own(packed)
        if is_whole and packed.kind is Kind.ALL_REDUCE:
            return (message,)
    halos = [t for t in left if t.kind is Kind.COLLECTIVE_PERMUTE and packed.kind is Kind.REDUCE_SCATTER]
    for gather in at_once:
        room = gather.payload_bytes - _own(packed)
        if gather.kind is Kind.ALL_GATHER and 0 <= room < within * tile:
            for message in messages:
                if within * _own(message) in (_own(packed), gather.payload_bytes):
                    return message, gather, *halos
    return ()


def _over_same_parts(term: Transfer, unclaimed: Unclaimed, context: Context) -> Unclaimed:
    """What is left of all that a sum over slices may become, over the parts of axes that this one's are split into."""
    expected = split(term, context)
    parts = {(t.kind, t.network_kind, t.axes, t.sub_axes, t.groups) for t in expected}
    inside = {(t.axes, t.sub_axes, t.groups) for t in expected if t.kind in SUMS}
    parts |= {(kind, None, *where) for kind in (*SUMS, Kind.ALL_GATHER) for where in inside}
    halos = {tuple(part.axis for part in sub) for _, sub, _ in inside if sub}
    return tuple(
        t
        for t in unclaimed
        if t.dtype == term.dtype
        and (
            (t.kind, t.network_kind, t.axes, t.sub_axes, t.groups) in parts
            or (t.kind is Kind.COLLECTIVE_PERMUTE and t.axes in halos)
        )
    )


def _likeness(transfer: Transfer) -> tuple[object, ...]:
    return transfer.axes, transfer.dtype, transfer.groups


def _own(transfer: Transfer) -> int:
    """Bytes, but for what fills them up."""
    return transfer.padded_from_bytes or transfer.payload_bytes


T17 = Behaviour(
    id="T17",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="small sums between slices are packed into one flat array, filled up to whole tiles, for one message: they "
    "are there where all that is packed is of exactly their bytes and each array has its message",
    when="several sums of numbers or vectors, of one dtype, over the same axes that span several slices",
    recognise_together=_packed,
)
