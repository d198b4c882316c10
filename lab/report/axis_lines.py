"""What a step sends along each axis of its mesh, a sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap

from lab.core.ledger import Ledger, Totals, Transfer
from lab.core.units import bytes_text, count, listed, share_text
from lab.meshes.platforms import LinkName
from lab.report.place import Place
from lab.report.traffic import crossing_share

WHERE = {
    LinkName.HOST: "inside a host",
    LinkName.NETWORK: "between hosts",
    LinkName.ICI: "over ICI",
    LinkName.DCN: "over DCN",
}


def axis_lines(ledger: Ledger) -> list[str]:
    """`tensor: 26 all_reduces of 33.55 MB, inside a host (NVLink 4): 71 % of the wire bytes`, the most bytes first, and
    last the axes along which nothing is sent. Without a mesh there are none."""
    sent: dict[str, list[Transfer]] = {}
    for t in ledger.transfers:
        if t.wire_bytes != 0 and t.executions != 0:
            sent.setdefault(t.span, []).append(t)
    if not ledger.mesh or not sent:
        return []
    whole, place = ledger.totals(), Place.of(ledger)
    of_step = [_of_step(some, ledger.steps) for _, some in _largest_first(sent)]
    lines = [_line(span, some, whole, place) for span, some in _largest_first(sent)]
    return [f"{line}{each}" for line, each in zip(lines, of_step, strict=True)] + _idle(ledger)


def _of_step(transfers: Sequence[Transfer], steps: int) -> str:
    wire = Totals.of(transfers).wire_bytes
    return f"; {bytes_text(wire / steps)} a step of the {steps:,} of a round" if steps > 1 else ""


def _largest_first(some: Mapping[str, Sequence[Transfer]]) -> list[tuple[str, Sequence[Transfer]]]:
    return sorted(some.items(), key=lambda item: Totals.of(item[1]).by_wire_bytes, reverse=True)


def _line(span: str, transfers: Sequence[Transfer], whole: Totals, place: Place) -> str:
    kinds = {kind: [t for t in transfers if t.kind == kind] for kind in sorted({str(t.kind) for t in transfers})}
    said = listed(starmap(_amount, _largest_first(kinds)))
    links = " and ".join(_where(link, place) for link in LinkName if any(t.link == link for t in transfers))
    wire = Totals.of(transfers).wire_bytes
    share = f"{share_text(float(wire / whole.wire_bytes))} of the wire bytes" if whole.wire_bytes else ""
    known = " that are known" if whole.lower_bound else ""
    axes = "axes not known" if span == "?" else span
    amount = f": {share}{known}{_leaving(transfers, place)}{_behind_products(transfers)}" if wire else ""
    return f"{axes}: {said}{f', {links}' if links else ''}{amount}"


def _leaving(transfers: Sequence[Transfer], place: Place) -> str:
    """`, 12.5 % of it leaves a host`, where some does and some does not."""
    if place.axes is None or place.domains is None or all(t.link is None for t in transfers):
        return ""
    share = crossing_share(Ledger(tuple(transfers)), place.axes, place.domains)
    return f", {share_text(share)} of it leaves a {place.domain}" if share and 1e-9 < share < 1 - 1e-9 else ""


def _behind_products(transfers: Sequence[Transfer]) -> str:
    """Of their wire bytes, how much a schedule can hide; nothing where no text tells."""
    if any(t.is_over_products is None for t in transfers):
        return ""
    behind, whole = (
        float(Totals.of(some).wire_bytes) for some in ([t for t in transfers if t.is_over_products], transfers)
    )
    return (
        f", {share_text(behind / whole)} of it overlaps matrix products"
        if behind
        else ", none of it overlaps matrix products"
    )


def _amount(kind: str, transfers: Sequence[Transfer]) -> str:
    """`at least 26 all_reduces of 4 B to 33.55 MB if every branch runs`: payloads of one execution."""
    sizes = [t.payload_bytes for t in transfers]
    most = "at most " * any(t.upper_bound for t in transfers)
    each = most + " to ".join(map(bytes_text, sorted({min(sizes), max(sizes)})))
    often, is_bound = sum(t.executions or 0 for t in transfers), any(t.executions is None for t in transfers)
    if not often:
        return f"{kind}s of {each}, how often is not known"
    branches = " if every branch runs" if any(t.conditional for t in transfers) else ""
    return f"{'at least ' if is_bound else ''}{count(often, kind)} of {each}{branches}"


def _where(link: LinkName, place: Place) -> str:
    """With the name that the target's chip gives it, where that says more."""
    known = place.link(link)
    return WHERE[link] + (f" ({known.name})" if known and known.name != link.upper() else "")


def _idle(ledger: Ledger) -> list[str]:
    """Axes of several devices along which nothing is sent, where all that is sent is known."""
    if not ledger.is_complete or any(t.axes is None and t.sub_axes is None for t in ledger.transfers):
        return []
    used = {name for t in ledger.transfers for name in t.axes or ()}
    used |= {part.axis for t in ledger.transfers for part in t.sub_axes or ()}
    return [f"{name}: nothing" for name, size in (ledger.mesh or {}).items() if size > 1 and name not in used]
