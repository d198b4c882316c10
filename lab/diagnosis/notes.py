"""What is no fault, and yet worth knowing of a program's communication: choices that have a price, and what other
counts leave out."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lab.core.ledger import Phase
from lab.core.note import Note, NoteKind
from lab.core.units import count, exact
from lab.diagnosis.program import Program, Site, times
from lab.meshes.platforms import LinkName

_NARROW = ("bf16", "f16")
_SLOW = {LinkName.NETWORK: "the network between hosts", LinkName.DCN: "the data-centre network"}


def notes(program: Program) -> list[Note]:
    return [
        note for look in (_reduced_narrow, _gathered_again, _over_slow_links, _counted_loops) for note in look(program)
    ]


def _reduced_narrow(program: Program) -> Iterator[Note]:
    """Sums over devices in 16 bits, of gradients that are then widened."""
    sites = [
        s
        for s in program.sites
        if s.kind in ("all_reduce", "reduce_scatter") and s.transfer.dtype in _NARROW and s.phase == Phase.BACKWARD
    ]
    if sites:
        first = sites[0].transfer
        sums = (
            f"{count(len(sites), 'gradient')} {'is' if len(sites) == 1 else 'are'} summed over devices in {first.dtype}"
        )
        yield Note(
            NoteKind.GRADIENTS_SUMMED_NARROW,
            f"{sums}, {_moved(sites)} B a step, the first at {first.origin}: to sum in f32, at twice the bytes, cast "
            "before the sum",
        )


def _gathered_again(program: Program) -> Iterator[Note]:
    """Weights gathered in the forward pass and again for the backward pass."""
    gathers = [
        site
        for site in program.sites
        if site.kind == "all_gather" and site.phase == Phase.BACKWARD and _argument(program, site)
    ]
    forward = {
        _argument(program, site) for site in program.sites if site.kind == "all_gather" and site.phase == Phase.FORWARD
    }
    again = [site for site in gathers if _argument(program, site) in forward]
    if again:
        weights = len({_argument(program, site) for site in again})
        yield Note(
            NoteKind.WEIGHTS_GATHERED_AGAIN,
            f"{count(weights, 'weight')} {'is' if weights == 1 else 'are'} gathered again in the backward pass, "
            f"{_moved(again)} B a step more, so that none is kept whole between the passes",
        )


def _argument(program: Program, site: Site) -> str | None:
    operand = program.moving(site)
    found = None if operand is None else program.argument_of(*operand, through=frozenset({"dynamic-slice"}))
    return None if found is None else found.name


def _over_slow_links(program: Program) -> Iterator[Note]:
    for link, name in _SLOW.items():
        sites = [site for site in program.sites if site.transfer.link == link]
        if sites:
            axes = dict.fromkeys(axis for site in sites for axis in program.spanned(site))
            wire = sum(((s.transfer.wire_bytes or 0) * (s.transfer.executions or 0) for s in sites), Fraction(0))
            along = f" along {', '.join(axes)}" if axes else ""
            yield Note(
                NoteKind.SLOW_LINKS,
                f"each device sends {exact(wire)} B a step over {name}{along}, for {count(len(sites), 'array')}",
            )


def _counted_loops(program: Program) -> Iterator[Note]:
    """What XLA's own cost analysis leaves out."""
    once = sum(work.flops or 0 for _, work in program.reading.products)
    every = sum((work.flops or 0) * (visit.executions or 0) for visit, work in program.reading.products)
    if every > once > 0:
        yield Note(
            NoteKind.LOOPS_COUNTED_ONCE,
            f"XLA's cost_analysis() counts the body of a loop once, however often it runs: it gives "
            f"{times(every / once)} fewer FLOPs of matrix products than are listed here",
        )


def _moved(sites: list[Site]) -> str:
    return exact(sum(site.transfer.payload_bytes * (site.transfer.executions or 1) for site in sites))
