"""Traffic on the wrong wires: the slow link, neighbours of the mesh that are none of the torus, bytes doubled by a
dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

import numpy as np

from lab.core.dtypes import DTYPES
from lab.core.known import known
from lab.core.units import count, exact, listed
from lab.diagnosis.account import Way
from lab.diagnosis.cost import leaving
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Flow, Use, is_number_scale
from lab.diagnosis.program import Program, Site, Wires, largest, operation, sent
from lab.diagnosis.remedy import CastAfter, CastBefore, OrderDevices, PinArgument, PinBefore, Remedy
from lab.diagnosis.specs import without
from lab.hlo.shapes import arrays, bits
from lab.hlo.text import Computation, Instruction
from lab.meshes.axes import Axes
from lab.meshes.platforms import LinkName

_SLOW: Mapping[LinkName | None, str] = {
    LinkName.NETWORK: "the network between hosts",
    LinkName.DCN: "the data-centre network",
}
_SMALLEST = 1 << 12
# Another order of axes is much to ask: it must spare a quarter.
_WORTH = 0.75
_HALF = ("bf16", "f16")
_NARROW = (*_HALF, "f8e4m3fn", "f8e5m2")
_PARTS = frozenset({"slice", "dynamic-slice"})
_MOVES = ("all_gather", "all_to_all", "collective_permute", "collective_broadcast")


def on_slow_link(program: Program) -> Iterator[Finding]:
    """Another order of the mesh's axes would send far fewer bytes across hosts or slices: all transfers counted, on
    both links, and what of them has to leave a host or slice is less by as much."""
    inside = _inside(program)
    if not inside:
        return
    axes, domains = known(program.axes), np.asarray(known(program.reading.reader.placement.devices).domains)
    crossing = [site for site in program.sites if site.transfer.link in _SLOW and program.spanned(site)]
    along = tuple(dict.fromkeys(axis for site in crossing for axis in program.spanned(site)))
    orders = {name: _outermost(name, axes, domains) for name in axes.names if name in inside}
    first, across = min(
        ((name, _sent_across(program, order)) for name, order in orders.items()),
        key=lambda each: sum(each[1].values()),
    )
    now, then = sent(crossing), sum(across.values(), Fraction(0))
    is_worth = then <= _WORTH * now and _leaving(program, orders[first]) <= _WORTH * _leaving(program, domains)
    if now >= _SMALLEST and is_worth:
        there = _SLOW[crossing[0].transfer.link]
        largest_span = max(across, key=lambda axes: across[axes], default=())
        along_there = f", along {', '.join(largest_span)}" * bool(largest_span)
        sentence = (
            f"{exact(now)} B a step are sent along {', '.join(along)} over {there}; with {first} outermost in the mesh "
            f"it needs {exact(then)} B{along_there}, and the rest goes over the fast link"
        )
        order = (first, *(name for name in axes.names if name != first))
        advice = (
            f"order the mesh's axes {', '.join(order)}, and its devices host after host or slice after slice, so that "
            f"{first} spans these (jax.experimental.mesh_utils.create_hybrid_device_mesh)"
        )
        remedy = OrderDevices(_devices_of(first, axes, domains), f"{first} outermost in the mesh")
        yield program.finding(
            "on_slow_link",
            sentence,
            advice,
            *crossing,
            needed_bytes=then,
            remedy=(remedy,),
            value="the mesh",
            added_bytes=_moved_to(program, orders[first], str(crossing[0].transfer.link)),
        )


def _moved_to(program: Program, domains: np.ndarray, slow: str) -> dict[Way, Fraction]:
    """By axes and link, what more would be sent there: what crosses hosts or slices on the slow link."""
    added: dict[Way, Fraction] = {}
    for site in program.sites:
        groups, size = program.members(site), sent([site])
        is_across = groups is None or any(len({domains[position] for position in row}) > 1 for row in groups.members)
        fast = LinkName.HOST if slow == LinkName.NETWORK else LinkName.ICI
        for link, change in ((str(site.transfer.link or ""), -size), (slow if is_across else str(fast), size)):
            way = site.transfer.span, link
            added[way] = added.get(way, Fraction(0)) + change
    return added


def _outermost(name: str, axes: Axes, domains: np.ndarray) -> np.ndarray:
    """The host or slice of each position of the mesh, were this axis its first and the devices one domain after
    another."""
    return domains[list(_devices_of(name, axes, domains))]


def _devices_of(name: str, axes: Axes, domains: np.ndarray) -> tuple[int, ...]:
    """For each position of that mesh, the position that its device has now."""
    at = axes.names.index(name)
    sizes = (axes.sizes[at], *(size for number, size in enumerate(axes.sizes) if number != at))
    sorted_by_domain = np.argsort(domains, kind="stable").reshape(sizes)
    return tuple(map(int, np.moveaxis(sorted_by_domain, 0, at).reshape(-1)))


def _sent_across(program: Program, domains: np.ndarray) -> dict[tuple[str, ...], Fraction]:
    """Bytes that would be sent from host to host or slice to slice, by the axes that they are sent along."""
    across: dict[tuple[str, ...], Fraction] = {}
    for site in program.sites:
        groups = program.members(site)
        if groups is not None and any(len({domains[position] for position in row}) > 1 for row in groups.members):
            axes = program.spanned(site)
            across[axes] = across.get(axes, Fraction(0)) + sent([site])
    return across


def _leaving(program: Program, domains: np.ndarray) -> Fraction:
    """What has to leave a host or slice at least, these being those of the mesh's positions."""
    total = Fraction(0)
    for site in program.sites:
        if groups := program.members(site):
            shares = (leaving(site.transfer.kind, [domains[at] for at in row]) for row in groups.members)
            total += sent([site]) * max(shares, default=Fraction(0))
    return total


def _inside(program: Program) -> set[str]:
    """Axes whose groups each lie in one host or slice, beside those that span several."""
    placement = program.reading.reader.placement
    if program.axes is None or placement.devices is None or len(set(placement.devices.domains)) < 2:
        return set()
    domains = np.asarray(placement.devices.domains)
    if len(domains) != program.axes.size:
        return set()
    rows = {
        name: domains[np.asarray(program.axes.groups((name,)))] for name in program.axes.names if program.axes[name] > 1
    }
    return {name for name, found in rows.items() if (found.min(axis=1) == found.max(axis=1)).all()}


def not_neighbours(program: Program) -> Iterator[Finding]:
    """Along axes that communicate, neighbours of the mesh are several hops apart in the torus, and JAX knows an order
    in which they are not."""
    wires = program.locate() if program.sites else None
    if wires is None or program.axes is None:
        return
    apart: dict[str, tuple[float, float]] = {}
    over: list[Site] = []
    for axis in program.axes.names:
        sites = [site for site in program.sites if site.transfer.axes == (axis,) and site.transfer.link != LinkName.DCN]
        if sites and program.axes[axis] >= 3:
            groups = program.axes.groups((axis,))
            stand, arranged = (_hops(where, groups, wires.torus) for where in (wires.stand, wires.arranged))
            if stand > arranged:
                apart[axis] = stand, arranged
                over += sites
    if apart:
        told = listed(
            f"{stand:.2g} hops apart along {axis} ({arranged:.2g} with jax.make_mesh)"
            for axis, (stand, arranged) in apart.items()
        )
        sentence = (
            f"neighbours in the mesh are on average {told}, in the torus of {'x'.join(map(str, wires.torus))} chips"
        )
        advice = (
            "make the mesh with jax.make_mesh or jax.experimental.mesh_utils.create_device_mesh, which follow the torus"
        )
        remedy = (OrderDevices(_by_wires(wires), "the devices in the order of jax.make_mesh"),)
        yield program.finding("not_neighbours", sentence, advice, *over, remedy=remedy, value="the mesh")


def on_links(program: Program) -> Fraction | None:
    """Bytes that one device sends inside a slice of TPUs, each on every link that it passes from neighbour to neighbour
    of the mesh; None where no torus is known."""
    wires = program.locate() if program.sites else None
    if wires is None or program.axes is None:
        return None
    hops = {
        axis: Fraction(_hops(wires.stand, program.axes.groups((axis,)), wires.torus)).limit_denominator(1 << 16)
        for axis in program.axes.names
        if program.axes[axis] > 1
    }
    inside = [(site.transfer.axes or (), sent([site])) for site in program.sites if site.transfer.link != LinkName.DCN]
    return sum((size * (hops[axes[0]] if len(axes) == 1 else 1) for axes, size in inside), Fraction(0))


def _by_wires(wires: Wires) -> tuple[int, ...]:
    """For each position of the mesh that JAX would make, the position that its device has now."""
    left: dict[tuple[int, ...], list[int]] = {}
    for position, where in enumerate(wires.stand):
        left.setdefault(where, []).append(position)
    return tuple(left[where].pop(0) for where in wires.arranged)


def _hops(stand: tuple[tuple[int, ...], ...], groups: np.ndarray, torus: tuple[int, ...]) -> float:
    """Mean distance from each member of a group to the next, around the torus where that is shorter."""
    found: list[int] = []
    for row in groups:
        for one, other in pairwise([*row]):
            steps = [abs(a - b) for a, b in zip(stand[one], stand[other], strict=True)]
            found.append(
                sum(min(step, size - step) if size > 2 else step for step, size in zip(steps, torus, strict=True))
            )
    return sum(found) / len(found)


def widened(program: Program) -> Iterator[Finding]:
    """A value is moved in f32 that fits into 16 bits: it was widened just before."""
    sites, said = sent_wide(program)
    if sites and not program.may_be_cpus:
        sentence = f"{said}: cast after the transfer, they would be half the bytes"
        advice = (
            "cast what the transfer gives, not what it takes; where the compiler puts the transfer in, constrain the "
            "sharding of the narrow value (jax.lax.with_sharding_constraint), so that it comes before the cast"
        )
        yield program.finding(
            "widened", sentence, advice, *sites, needed_bytes=sent(sites) / 2, remedy=_moved_narrow(program, sites)
        )


def sent_wide(program: Program) -> tuple[list[Site], str]:
    """Values of 16 bits that are moved or, by CPUs, summed in f32, and what to say of them."""
    wide = [site for site in program.sites if site.transfer.dtype == "f32"]
    sites = [site for site in wide if _is_widened(program, site)]
    if not sites:
        return [], ""
    moved = sum(site.transfer.executions or 1 for site in sites)
    return sites, (
        f"{_at_least(sites, wide)}{count(moved, 'array')} of 16-bit floats {'is' if moved == 1 else 'are'} sent as "
        f"f32 in a step (the largest is {program.moved(largest(sites))})"
    )


def _moved_narrow(program: Program, sites: list[Site]) -> Remedy:
    """What the program moves itself is cast after that; arguments that the compiler gathers are before they are
    widened."""
    found: list[PinArgument | CastAfter] = []
    for site in sites:
        if site.is_written:
            found.append(CastAfter(site.op_name))
            continue
        operand = program.moving(site) if site.kind == "all_gather" else None
        argument = None if operand is None else program.argument_of(*operand)
        if argument is not None and argument.dims:
            found.append(PinArgument(argument.name, without(argument.dims, site.transfer.axes or ())))
    return tuple(dict.fromkeys(found))


def _at_least(sites: list[Site], wide: list[Site]) -> str:
    """Of a combination of which some arrays were widened the others may be too, but for numbers such as a loss."""
    combined = {site.visit.instruction.name for site in (*sites, *filter(_is_promoted, wide))}
    others = [site for site in wide if site not in sites and site.visit.instruction.name in combined]
    is_open = any(site.result.elements > 1 for site in others) or any(s.transfer.executions is None for s in sites)
    return "at least " if is_open else ""


def _is_widened(program: Program, site: Site) -> bool:
    operand = program.moving(site)
    if "to_apply=" in site.visit.instruction.attributes:
        return program.may_be_cpus and (
            (_is_promoted(site) and site.key[-1] is None)
            or (operand is not None and any(_is_compilers(i, c) for i, c in program.flow.back(*operand)))
            or _is_narrowed_after(program, site)
        )
    if site.kind not in _MOVES or operand is None:
        return False
    # Of 8 bits `dequantised_before` tells.
    return any(i.opcode == "convert" and _from(i, c) in _HALF for i, c in program.flow.back(*operand, through=_PARTS))


def _is_promoted(site: Site) -> bool:
    """Of a combined sum the operation is named after one: of the others that tells nothing."""
    return "_promoted" in site.visit.instruction.attributes


def _is_narrowed_after(program: Program, site: Site) -> bool:
    """Whatever is done with a sum, the compiler narrows it first: the program has it in 16 bits."""
    uses = program.uses(site)
    casts = [next((i for i in use.path if i.opcode == "convert"), None) for use in uses]
    return bool(uses) and all(i is not None and arrays(i.shape)[0].dtype in _NARROW and not _is_users(i) for i in casts)


def _is_compilers(i: Instruction, c: Computation) -> bool:
    return i.opcode == "convert" and _from(i, c) in _NARROW and not _is_users(i)


def _is_users(convert: Instruction) -> bool:
    """What the compiler puts in has the name of the operation that it widens, or none."""
    return operation(convert.op_name) == "convert_element_type"


def _from(i: Instruction, c: Computation) -> str:
    source = c.by_name.get(i.operands[0]) if i.operands else None
    return source.shape.partition("[")[0] if source is not None else ""


def narrowed_after(program: Program) -> Iterator[Finding]:
    """A value is moved wide, and all that is done with it is to cast it, at most scaled by a number, to a narrower
    dtype."""
    found = [(site, narrow) for site in program.sites if (narrow := _narrowed_to(program, site))]
    if not found:
        return
    sites = [site for site, _ in found]
    now = sent(sites)
    then = sum(
        (sent([site]) * Fraction(bits(narrow), bits(site.transfer.dtype)) for site, narrow in found), Fraction(0)
    )
    most = largest(sites)
    if now - then >= _SMALLEST:
        dtype = next(narrow for site, narrow in found if site is most)
        be, which, it = ("is", "", "it") if len(sites) == 1 else ("are", "the largest is ", "they")
        sentence = (
            f"{count(len(sites), 'value')} {be} cast to a narrower dtype after being sent ({which}"
            f"{program.moved(most)}, sent as {most.transfer.dtype} and cast to {dtype}): cast before, {it} would be "
            f"{exact(then)} B a step sent by each device instead of {exact(now)}"
        )
        advice = (
            "cast before the transfer, and pin the cast value to the sharding that it has there: "
            f"jax.lax.with_sharding_constraint(x.astype({_of_jax(dtype)}), the spec of x) and then to the one that is "
            "asked for"
        )
        yield program.finding(
            "narrowed_after", sentence, advice, *sites, needed_bytes=then, remedy=_cast_before(program, found)
        )


def _of_jax(dtype: str) -> str:
    """`jnp.float8_e4m3fn`."""
    return f"jnp.{DTYPES[dtype][0]}" if dtype in DTYPES else dtype


def _cast_before(program: Program, found: list[tuple[Site, str]]) -> Remedy:
    """What the program moves itself is cast before that; else the cast value in the spec of the argument that it is
    made of, before the constraint that moves it."""
    remedy: list[PinBefore | CastBefore] = []
    for site, narrow in found:
        argument = program.argument_behind(site)
        if site.is_written:
            remedy.append(CastBefore(site.op_name, narrow))
        elif argument is not None and argument.dims:
            remedy.append(PinBefore(site.op_name, (argument.dims,)))
    return tuple(remedy)


def _narrowed_to(program: Program, site: Site) -> str | None:
    """The dtype that every use casts a moved value to."""
    if site.kind not in _MOVES or not (wide := bits(site.transfer.dtype)):
        return None
    # What is scaled after a transfer that the program writes would have to be scaled before it.
    through = frozenset[str]() if site.is_written else frozenset(SCALES)
    found = {_first_narrow(program.flow, use, wide) for use in program.uses(site, through)}
    narrow = found.pop() if len(found) == 1 else None
    is_asked = narrow is None and not program.may_be_cpus and wide > 8
    traced = program.narrow(site.op_name, site.result.elements) if is_asked else None
    if traced is not None and traced.is_cast_before:
        # Of a float that is rounded and widened again the compiled text need not tell.
        return traced.dtype
    # CPU compilers widen all 16-bit floats, of which there is a note.
    return None if program.may_be_cpus and narrow in _NARROW else narrow


def _first_narrow(flow: Flow, use: Use, wide: int) -> str | None:
    for step in use.path:
        if step.opcode in SCALES and not is_number_scale(flow, step):
            return None
        if step.opcode == "convert" and bits(dtype := arrays(step.shape)[0].dtype) < wide:
            return dtype
    return None
