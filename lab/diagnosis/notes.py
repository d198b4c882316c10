"""What is no fault, and yet worth knowing of a program's communication: choices that have a price, and what other
counts leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from lab.core.ledger import Phase
from lab.core.note import Note, NoteKind, note_kinds
from lab.core.units import count, exact, executions_text, listed, part_text
from lab.diagnosis.finding import totals_of_arrays
from lab.diagnosis.kinds.links import sent_wide
from lab.diagnosis.kinds.reductions import sums_cut_into_shards
from lab.diagnosis.program import Program, Site
from lab.hlo.shapes import arrays, bits
from lab.meshes.platforms import LinkName, Platform

_NARROW = ("bf16", "f16")
_SLOW = {LinkName.NETWORK: "the network between hosts", LinkName.DCN: "the data-centre network"}


def notes(program: Program) -> list[str]:
    """Those of the ledger, but for what another says better, and those on what it does not know."""
    looks = (
        _not_scattered_by_cpu,
        _reduced_narrow,
        _summed_in_8_bits,
        _gathered_again,
        _over_slow_links,
        _counted_loops,
        _unused_axes,
    )
    widened = list(_widened_by_cpu(program))
    kept = [note for note in program.ledger.notes if not (widened and _is_promoted(note))]
    return [*kept, *widened, *(note for look in looks for note in look(program))]


def _is_promoted(note: str) -> bool:
    (kind,) = note_kinds([note])
    return kind == NoteKind.PROMOTED_REDUCTIONS and " in f32: the program reduces" in note


def _widened_by_cpu(program: Program) -> Iterator[Note]:
    """What is widened counts all reductions that were promoted to f32, and more."""
    sites, said = sent_wide(program)
    if sites and program.may_be_cpus:
        by = "the CPU compiler widens" if program.platform == Platform.CPU else "compilers for CPUs widen"
        first = next((f", the first at {site.line}" for site in sites if site.line), "")
        yield Note(
            NoteKind.WIDENED_BY_CPU,
            f"{said}, {_moved(sites)} B of payload{first}: {by} them, so that these bytes are twice those on a GPU or "
            "TPU; judge programs in 16 bits on a gpu: or tpu: target",
        )


def _not_scattered_by_cpu(program: Program) -> Iterator[Note]:
    """What compilers for GPUs make reduce-scatters of."""
    sites = sums_cut_into_shards(program) if program.platform == Platform.CPU else []
    if sites:
        yield Note(
            NoteKind.NOT_SCATTERED_BY_CPU,
            f"of {count(sum(map(_times, sites)), 'all-reduced array')} each device keeps only its shard, "
            f"{_moved(sites)} B of payload a step: compilers for GPUs make reduce-scatters of these, which send half "
            "the bytes, the CPU compiler does not; judge sharded gradients on a gpu: or tpu: target",
        )


def _reduced_narrow(program: Program) -> Iterator[Note]:
    """Sums over devices in 16 bits, in the backward pass: gradients and what leads to them."""
    sites = [
        s
        for s in program.sites
        if s.kind in ("all_reduce", "reduce_scatter") and s.transfer.dtype in _NARROW and s.phase == Phase.BACKWARD
    ]
    if sites:
        spans = Counter[str]()
        for site in sites:
            spans[_span(program, site)] += _times(site)
        arrays = spans.total()
        each = [f"{f'{number:,} ' * (len(spans) > 1)}over {span}" for span, number in spans.items() if span]
        along = f" ({', '.join(each)})" if each else ""
        summed = f"{'is' if arrays == 1 else 'are'} summed over devices in {listed(s.transfer.dtype for s in sites)}"
        first = next((f", the first at {site.line}" for site in sites if site.line), "")
        yield Note(
            NoteKind.GRADIENTS_SUMMED_NARROW,
            f"{count(arrays, 'array')} of the backward pass{along} {summed}, {_moved(sites)} B a step{first}: "
            "to sum in f32, at twice the bytes, cast before the sum",
        )


def _summed_in_8_bits(program: Program) -> Iterator[Note]:
    """By what the reduction computes in: TPUs move four numbers of 8 bits as one of 32."""
    found: dict[tuple[str, str], list[Site]] = {}
    for site in program.sites:
        if site.kind in ("all_reduce", "reduce_scatter") and (added := _added_in(program, site)):
            found.setdefault((added, site.transfer.dtype), []).append(site)
    for (added, moved), sites in found.items():
        often = sum(map(_times, sites))
        summed = f"{count(often, 'array')} {'is' if often == 1 else 'are'} summed over devices in {added}"
        packed = "" if added == moved else f", four numbers in each {moved} that moves"
        each = "rounds to 8 bits" if added.startswith("f") else "wraps at 8 bits"
        yield Note(
            NoteKind.SUMMED_IN_8_BITS,
            f"{summed}{packed}, {_moved(sites)} B a step: every addition {each}; to sum in more, cast before the sum",
        )


def _added_in(program: Program, site: Site) -> str | None:
    """The type of 8 bits that a reduction adds in."""
    combine = program.module.computations.get(site.visit.instruction.attribute("to_apply") or "")
    added = [arrays(i.shape) for i in combine.instructions if i.opcode == "add"] if combine else []
    return next((shape.dtype for shapes in added for shape in shapes if bits(shape.dtype) == 8), None)


def _span(program: Program, site: Site) -> str:
    return "+".join(program.spanned(site)) if site.transfer.axes is None else site.transfer.span


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
            spans = [span for site in sites if (span := _span(program, site))]
            totals = totals_of_arrays([site.transfer for site in sites])
            in_branches = any(site.transfer.conditional for site in sites)
            most = "at most " * (totals.upper_bound or in_branches)
            yield Note(
                NoteKind.SLOW_LINKS,
                f"each device sends {most}{exact(totals.wire_bytes)} B a step in groups that reach across {name}"
                f"{f' along {listed(spans)}' if spans else ''}, in "
                f"{executions_text(totals.executions, totals.arrays)}{', if every branch runs' * in_branches}",
            )


def _counted_loops(program: Program) -> Iterator[Note]:
    """What XLA's own cost analysis leaves out."""
    once = sum(work.flops or 0 for _, work in program.reading.products)
    every = sum((work.flops or 0) * (visit.executions or 0) for visit, work in program.reading.products)
    if every > once > 0:
        yield Note(
            NoteKind.LOOPS_COUNTED_ONCE,
            f"XLA's cost_analysis() counts the body of a loop once, however often it runs: it gives "
            f"{part_text(Fraction(once, every))} of the FLOPs of matrix products that are listed here",
        )


def _unused_axes(program: Program) -> Iterator[Note]:
    """Axes of the mesh along which no value of the program differs between devices."""
    if program.axes is None or (program.ledger.devices or 1) == 1:
        return
    alike = program.variation.everything - program.variation.anywhere
    if axes := [f"{name}={size}" for name, size in program.axes.shape.items() if name in alike]:
        along = "it" if len(axes) == 1 else "them"
        yield Note(
            NoteKind.UNUSED_AXES,
            f"no sharding names {' or '.join(axes)}: all devices along {along} do the same work",
        )


def _moved(sites: list[Site]) -> str:
    return exact(sum(site.transfer.payload_bytes * _times(site) for site in sites))


def _times(site: Site) -> int:
    """A step; once where the text does not say how often."""
    return site.transfer.executions or 1
