"""Small sums between TPU slices, which the compiler packs into one flat array for one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    claimed have room for exactly these, but for what fills up a tile each; or where those that a term has claimed have
    room left.

    Args:
      settled: predicted transfers, and what carries each out.
    """
    groups: dict[tuple[object, ...], dict[int, Transfer]] = {}
    for place, term in open_terms.items():
        if is_flat_sum(term, context):
            groups.setdefault(_likeness(term), {})[place] = term
    room: dict[tuple[object, ...], int] = {}
    for wanted, measured in settled:
        spare = max((t.payload_bytes - wanted.payload_bytes for t in measured if t.kind is Kind.ALL_REDUCE), default=0)
        if is_flat_sum(wanted, context):
            room[_likeness(wanted)] = max(spare, room.get(_likeness(wanted), 0))
    found: dict[int, Unclaimed] = {}
    # Whose messages are all there is comes last: theirs are over the same axes as messages of the others.
    for likeness, terms in sorted(
        groups.items(), key=lambda group: -len(split(next(iter(group[1].values())), context))
    ):
        taken, sums = _packs(tuple(terms.values()), unclaimed, context)
        unclaimed = subtract(unclaimed, taken)
        if sums:
            found |= {place: taken if place == min(terms) else () for place in terms}
        elif sum(map(_all_bytes, terms.values())) <= room.get(likeness, 0):
            found |= dict.fromkeys(terms, ())
    return found


def _packs(terms: tuple[Transfer, ...], unclaimed: Unclaimed, context: Context) -> tuple[Unclaimed, Unclaimed]:
    """All that carries out these, and the sums inside slices of that; nothing where those are not of as many bytes."""
    tile = TILE * bytes_per_element(terms[0].dtype)
    left = _over_same_parts(terms[0], unclaimed, context)
    most = 2 * sum(term.payload_bytes for term in terms) + tile
    inside = tuple(t for t in left if t.kind in SUMS and _unpadded(t) <= most)
    # Of one device a slice the message is all there is.
    has_inside = len(split(terms[0], context)) > 1
    sums = inside if has_inside else tuple(t for t in left if t.network_kind and t.payload_bytes <= most)
    wanted = sum(map(_all_bytes, terms))
    if not sums:
        return (), ()
    room = tile * sum(known(t.executions) for t in sums)
    alone = {2 * term.payload_bytes: term.payload_bytes for term in terms if term.dtype == "bf16"}
    as_they_are = sum(_unpadded(t) * known(t.executions) for t in sums)
    # A row of 16 bits by itself fills two.
    of_rows = sum(alone.get(t.payload_bytes, _unpadded(t)) * known(t.executions) for t in sums)
    if not any(wanted <= there < wanted + room for there in (as_they_are, of_rows)):
        return (), ()
    largest = max(t.payload_bytes for t in sums)
    return tuple(t for t in left if t.payload_bytes < largest + known(t.group_size) * tile), sums


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


def _all_bytes(term: Transfer) -> int:
    return term.payload_bytes * known(term.executions)


def _unpadded(transfer: Transfer) -> int:
    return transfer.padded_from_bytes or transfer.payload_bytes


T17 = Behaviour(
    id="T17",
    platform=Platform.TPU,
    certainty=Certainty.READABLE,
    effect="small sums between slices are packed into one flat array, filled up to whole tiles, for one message",
    when="several sums of numbers or vectors, of one dtype, over the same axes that span several slices",
    recognise_together=_packed,
)
