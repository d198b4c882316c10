"""What a page tells of one ledger: where its bytes go, the mesh, memory, roofline, who sends to whom, and every
transfer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from lab.core.known import known
from lab.core.ledger import Ledger, Memory, Totals, Transfer
from lab.core.room import FRACTION, Room
from lab.core.units import bytes_text, count, scaled, seconds_text, share_text
from lab.meshes.errors import UsageError
from lab.meshes.picture import mesh_svg
from lab.programs.memory.terms import Terms, label
from lab.report import roofline as rooflines
from lab.report.axis_lines import axis_lines
from lab.report.heat import heat
from lab.report.html import charts
from lab.report.html.markup import element, joined, paragraphs, words
from lab.report.html.page import Section
from lab.report.html.tables import Column, bars, numbers, table
from lab.report.origins import stack_lines
from lab.report.place import Place
from lab.report.tables import (
    alike_transfers,
    at_least,
    axes_text,
    bounded,
    bytes_bound,
    common_scope,
    copy_lines,
    fit_lines,
    is_combined,
    kind_text,
    sent_text,
    unnumbered,
)
from lab.report.traffic import Traffic, levels, not_placed, traffic

LARGEST_PAIRS = 10
DTYPE = "bf16"
"""Of whose products the peak is taken: those of 16 bits."""
_IF_TAKEN = ", if every branch runs"
"""After amounts that are the most that a step can come to, and no least of its time."""


def sections(ledger: Ledger, held: Terms | None = None) -> tuple[Section, ...]:
    """In the order of a page.

    Args:
      held: bytes that theory puts on one device, by the id of the term.
    """
    place = Place.of(ledger)
    return (
        Section("Mesh", mesh(ledger, place)),
        Section("Where the bytes go", wire(ledger, place)),
        Section("Transfers", transfers(ledger)),
        Section("Memory of one device", memory(ledger.memory, held, place)),
        Section("Roofline", roofline(ledger, place)),
        Section("Who sends to whom", who(ledger, place)),
        Section("Notes", words(ledger.notes) if ledger.notes else Markup("")),
    )


def sums(ledger: Ledger) -> tuple[str, ...]:
    """What a step sends in all and over each link, what it multiplies, and whether one device holds it: a sentence
    each."""
    place = Place.of(ledger)
    return (
        _sent(ledger),
        *_over_links(ledger, place),
        *_products(ledger, place),
        *(f"{said[0].upper()}{said[1:]}." for said in (*fit_lines(ledger), *copy_lines(ledger))),
    )


def _sent(ledger: Ledger) -> str:
    total, in_branches = ledger.totals(), any(t.conditional for t in ledger.transfers)
    most = "at most " * (in_branches and not bytes_bound(total))
    return f"One device sends {most}{sent_text(total)} a {ledger.unit}{_IF_TAKEN * in_branches}."


def _over_links(ledger: Ledger, place: Place) -> Iterable[str]:
    for name, total in _by(ledger, lambda t: t.link or "").items():
        if (link := place.link(name)) and (seconds := place.seconds(name, total)):
            in_branches = any(t.conditional and (t.link or "") == name for t in ledger.transfers)
            yield (
                f"{_wire(total)} go over {link.name}{_IF_TAKEN * in_branches}: {'at least ' * (not in_branches)}"
                f"{seconds_text(seconds)}, at its full rate of {scaled(round(link.value), 'B/s')}."
            )


def _products(ledger: Ledger, place: Place) -> Iterable[str]:
    if ledger.flops and (peak := _peak(place)):
        least = "" if ledger.flops_in_branches else "at least "
        yield (
            f"Its matrix products are {_flops(ledger)}: {least}{seconds_text(ledger.flops / peak)}, at the "
            f"{scaled(round(peak), 'FLOP/s')} of {known(place.chip).name} in {DTYPE}."
        )


def _flops(ledger: Ledger) -> str:
    """A step of each device."""
    most = bool(ledger.flops_in_branches)
    return f"{'at most ' * most}{scaled(known(ledger.flops), 'FLOP')} a {ledger.unit}{_IF_TAKEN * most}"


def _peak(place: Place) -> float | None:
    """FLOP/s of one device in products of 16 bits."""
    chip = place.chip
    return rooflines.peak(chip, DTYPE) / chip.devices_per_chip if chip and DTYPE in chip.flops_per_s else None


def does_not_fit(ledger: Ledger) -> bool:
    found, room = ledger.memory, ledger.room
    return bool(room and found and found.peak is not None and not room.fits(found.peak))


def mesh(ledger: Ledger, place: Place) -> Markup:
    if place.axes is None:
        return Markup("")
    domains = None if place.domains is None else place.domains.tolist()
    drawn = charts.scrolling(f"mesh {place.axes}", Markup(mesh_svg(place.axes.shape, domains, place.domain)))
    sent = {name: Totals.of(t for t in ledger.transfers if t.axes and name in t.axes) for name in place.axes.names}
    links = [place.link(place.link_along(name)) for name in place.axes.names]
    columns = [
        Column("axis", place.axes.names),
        numbers("size", place.axes.sizes, place.axes.sizes),
        Column("link between neighbours", [link.name if link else "" for link in links]),
        numbers(
            "link, one way",
            [scaled(round(link.value), "B/s") if link else "" for link in links],
            [None] * len(links),
        ),
        bars(
            f"wire a {ledger.unit}, alone or with other axes",
            [_wire(total) for total in sent.values()],
            [total.wire_bytes for total in sent.values()],
        ),
    ]
    told = f"{place.axes.size:,} devices{_hosts(place)}; each box is a device, with its position in mesh.devices."
    return joined((element("p", told), drawn, table("Axes of the mesh", columns)))


def _hosts(place: Place) -> str:
    if place.domains is None:
        return ""
    count = int(place.domains.max()) + 1
    return f" in {count:,} {place.domain}s, a colour each" if count > 1 else f" in one {place.domain}"


def wire(ledger: Ledger, place: Place) -> Markup:
    """Along each axis in words; then by axes, by link and by term."""
    if not ledger.transfers:
        return Markup("")
    lines = axis_lines(ledger)
    return joined((words(lines) if lines else Markup(""), _by_axes(ledger), _by_link(ledger, place), _by_term(ledger)))


def _by_axes(ledger: Ledger) -> Markup:
    found = _by(ledger, lambda t: f"{t.span}\n{t.kind}")
    axes, kinds = zip(*(name.split("\n") for name in found), strict=True)
    return table(
        "By axes and kind, of one device in one step",
        [Column("axes", axes), Column("kind", kinds), *_totals(list(found.values()))],
    )


def _by_link(ledger: Ledger, place: Place) -> Markup:
    found = _by(ledger, lambda t: t.link or "")
    if list(found) == [""]:
        return Markup("")
    links, seconds = [place.link(name) for name in found], [place.seconds(name, total) for name, total in found.items()]
    in_branches = any(t.conditional for t in ledger.transfers)
    columns = [
        Column("link", [name or "not known" for name in found]),
        Column("name", [link.name if link else "" for link in links]),
        numbers(
            "one way",
            [scaled(round(link.value), "B/s") if link else "" for link in links],
            [link.value if link else None for link in links],
        ),
        *_totals(list(found.values())),
        numbers(
            f"takes at full rate{_IF_TAKEN}" if in_branches else "takes at least",
            [seconds_text(s) if s is not None else "" for s in seconds],
            seconds,
        ),
    ]
    return table("By link, of one device in one step", columns)


def _by_term(ledger: Ledger) -> Markup:
    """A term is a scope, of whichever layer."""
    found = _by(
        ledger, lambda t: "\n".join((unnumbered(t.scope_or_function) or "no scope", t.kind, t.span, t.phase or ""))
    )
    scopes, kinds, axes, phases = zip(*(name.split("\n") for name in found), strict=True)
    columns = [
        Column("scope", scopes),
        Column("kind", kinds, is_choice=True),
        Column("axes", axes, is_choice=True),
        Column("phase", phases, is_choice=True),
        *_totals(list(found.values())),
    ]
    return table("By term, of one device in one step; * stands for a number", columns, is_sortable=True)


def _by(ledger: Ledger, key: Callable[[Transfer], str]) -> dict[str, Totals]:
    """Totals, the most wire bytes first."""
    groups: dict[str, list[Transfer]] = {}
    for t in ledger.transfers:
        groups.setdefault(key(t), []).append(t)
    totals = {name: Totals.of(group) for name, group in groups.items()}
    return dict(sorted(totals.items(), key=lambda item: item[1].by_wire_bytes, reverse=True))


def _totals(totals: Sequence[Totals]) -> list[Column]:
    return [
        *_counts(totals),
        bars("wire a step", [_wire(total) for total in totals], [total.wire_bytes for total in totals]),
    ]


def _wire(total: Totals) -> str:
    return bounded(total, bytes_text(total.wire_bytes))


def transfers(ledger: Ledger) -> Markup:
    """A row for transfers alike, as in a terminal, which opens into its sites; the most wire bytes first."""
    rows, totals = alike_transfers(ledger)
    firsts = [row[0] for row in rows]
    columns = [
        Column("kind", [kind_text(t.kind, [t]) for t in firsts], is_choice=True),
        Column("axes", [axes_text(t) for t in firsts], is_choice=True),
        *_counts(totals),
        numbers("payload each", [bytes_text(t.payload_bytes) for t in firsts], [t.payload_bytes for t in firsts]),
        numbers(
            f"wire a {ledger.unit}",
            [_wire(total) for total in totals],
            [None if total.lower_bound else total.wire_bytes for total in totals],
            is_summed=True,
        ),
        Column("dtype", [t.dtype for t in firsts], is_choice=True),
        Column("overlap", [t.overlap or "" for t in firsts], is_choice=True),
        Column("link", [t.link or "" for t in firsts], is_choice=True),
        Column("phase", [t.phase or "" for t in firsts], is_choice=True),
        Column("scope", [common_scope(row) for row in rows], is_path=True),
        Column("origin", [t.origin or "" for t in firsts], is_choice=True, is_path=True),
    ]
    caption = f"{count(len(ledger.transfers), 'site')} of the program in {count(len(rows), 'row')} of transfers alike"
    return table(f"{caption}; a row opens into its sites", columns, is_sortable=True, details=list(map(_sites, rows)))


def _sites(row: Sequence[Transfer]) -> list[str]:
    """What tells the sites of a row apart: instruction, executions, scope and operation; then their stacks, innermost
    line first."""

    def said(t: Transfer) -> str:
        often = at_least(t, count(t.executions or 0, "execution"))
        return ", ".join(filter(None, (t.instruction, often, t.scope and f"scope {t.scope}", t.op_name)))

    by_stack: dict[str, list[Transfer]] = {}
    for t in row:
        by_stack.setdefault(" < ".join(stack_lines(t.stack)), []).append(t)
    stacks = [
        f"stack{f' of {_first(group)}' * (len(by_stack) > 1)}: {stack}" for stack, group in by_stack.items() if stack
    ]
    return [*map(said, row), *stacks]


def _first(group: Sequence[Transfer]) -> str:
    more = len(group) - 1
    return f"{group[0].instruction}{f' and {more} more' * (more > 0)}"


def _counts(totals: Sequence[Totals]) -> list[Column]:
    """Sites, executions and, where the compiler combined some, arrays."""
    columns = [numbers("sites", [f"{total.sites:,}" for total in totals], [total.sites for total in totals])]
    for name in ("executions", "arrays") if any(map(is_combined, totals)) else ("executions",):
        amounts = [getattr(total, name) for total in totals]
        cells = [at_least(total, f"{amount:,}") for total, amount in zip(totals, amounts, strict=True)]
        columns.append(numbers(name, cells, amounts))
    return columns


def memory(found: Memory | None, held: Terms | None, place: Place) -> Markup:
    """XLA's own analysis, and what theory puts there, as shares of what a program may take of the device."""
    room, tables = place.room, []
    if found:
        rows = {
            "arguments": found.arguments,
            "outputs, not in place": found.outputs - found.aliased,
            "temporaries": found.temporaries,
        }
        rows |= {"temporaries in on-chip memory (VMEM), at the peak": found.on_chip} if found.on_chip else {}
        rows |= {"peak": found.peak} if found.peak is not None else {}
        tables.append(_held("As compiled, by XLA's own analysis", rows, room))
        if found.is_on_host:
            on_host = {
                "arguments": found.host_arguments,
                "outputs": found.host_outputs,
                "temporaries": found.host_temporaries,
            }
            tables.append(_held("In the memory of its host", on_host, None))
    if held:
        terms = {label(name): size for name, size in held.items() if size} | {"together": sum(held.values())}
        tables.append(_held("At the peak, by theory", terms, room))
    if tables and room:
        tables.append(element("p", _full_bar(room), class_="note"))
    return joined(tables)


def _full_bar(room: Room) -> str:
    if room.default_share == 1:
        return f"A full bar is {bytes_text(room.device_bytes)}, the memory of one device of {room.chip}."
    return (
        f"A full bar is {bytes_text(room.usable_bytes)}: JAX takes {share_text(room.default_share)} of the "
        f"{bytes_text(room.device_bytes)} of {room.chip} by default, and more with {FRACTION}."
    )


def _held(caption: str, rows: Mapping[str, int], room: Room | None) -> Markup:
    amounts = list(rows.values())
    whole = room.usable_bytes if room else None
    columns = [Column("what", list(rows)), bars("bytes", [bytes_text(amount) for amount in amounts], amounts, whole)]
    if whole:
        shares = [amount / whole for amount in amounts]
        columns.append(numbers("of a full bar", list(map(share_text, shares)), shares))
    return table(caption, columns)


def roofline(ledger: Ledger, place: Place) -> Markup:
    of = place.chip
    if not (of and ledger.flops and DTYPE in of.flops_per_s):
        return Markup("")
    try:
        top, found = rooflines.peak(of, DTYPE), rooflines.points(of, ledger)
    except UsageError as reason:  # Not every transfer's link is known.
        return element("p", f"{reason}.")
    told = f"Each device does {_flops(ledger)}; {of.name} does {scaled(round(top), 'FLOP/s')} in {DTYPE} at most."
    needed, shares = [top / point.link.value for point in found], [point.share_of(top) for point in found]
    columns = [
        Column("link", [point.link.name for point in found]),
        numbers(
            "FLOP for each byte",
            [scaled(point.flops_per_byte, "FLOP/B") for point in found],
            [point.flops_per_byte for point in found],
        ),
        numbers("needed for the peak", [scaled(each, "FLOP/B") for each in needed], needed),
        bars("of the peak at most", list(map(share_text, shares)), shares, 1.0),
    ]
    return joined(
        (
            element("p", told),
            charts.picture(rooflines.roofline(of, found, DTYPE), kind="roofline"),
            table("What each link allows, if nothing else limits", columns),
        )
    )


def who(ledger: Ledger, place: Place) -> Markup:
    if place.axes is None or place.axes.size < 2:
        return Markup("")
    shown = levels(place.axes, place.domains, place.domain)
    found = [matrix for blocks in shown if (matrix := traffic(ledger, place.axes, blocks)).bytes.any()]
    if not found:
        return Markup("")
    told = [
        "Bytes of a step of all devices together; a row sends, a column receives.",
        "Collectives are shown as rings in the mesh's order, an all_to_all as equal parts to all of its group, a "
        "permute by its pairs.",
        *not_placed(ledger, found[0]),
    ]
    drawn = [joined((charts.picture(heat(matrix), kind="heat"), _pairs(matrix))) for matrix in found]
    return joined((paragraphs(told), *drawn))


def _pairs(found: Traffic) -> Markup:
    pairs = sorted(zip(*found.bytes.nonzero(), strict=True), key=lambda pair: -found.bytes[pair])[:LARGEST_PAIRS]
    amounts = [float(found.bytes[pair]) for pair in pairs]
    columns = [
        Column("from", [str(sender) for sender, _ in pairs]),
        Column("to", [str(receiver) if sender != receiver else f"{receiver}, inside" for sender, receiver in pairs]),
        bars("a step", [bytes_text(round(amount)) for amount in amounts], amounts),
    ]
    unit = found.blocks.unit
    units = f"{unit}s" if unit[0].isalpha() else f"runs of {unit}"
    return table(f"The {len(pairs)} largest of {int((found.bytes > 0).sum()):,} pairs of {units}", columns)
