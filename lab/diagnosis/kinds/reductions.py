"""Reductions that are done twice, span an axis along which nothing varies, or leave everywhere what each device keeps a
part of."""

from __future__ import annotations

from collections.abc import Container, Iterator
from fractions import Fraction
from math import prod

from lab.core.known import known
from lab.core.ledger import Kind, Phase, wire_bytes
from lab.core.units import count, exact, listed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.numbers import is_rising, number_on
from lab.diagnosis.program import Argument, Program, Site, sent
from lab.diagnosis.remedy import CompilerOption, ReduceOverLess, Scatter, ShardResult
from lab.diagnosis.slices import ELEMENTWISE, own_slices
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Instruction
from lab.meshes.platforms import Platform

_SCALES = frozenset({"multiply", "divide"})
_REDUCTIONS = ("all-reduce", "all-reduce-start")
# Of a number for people, such as a loss, a second reduction costs a message's latency and no bytes to speak of.
_SMALLEST = 1024
_SCATTERS = ("psum_scatter", "reduce_scatter", "unreduced_reduce_scatter")
T1_FLAG = "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter"
# A flag of a compiler is for a step that sends something to speak of.
_WORTH_A_FLAG = 1 << 20
_SCATTERED = {
    False: "a reduce_scatter then sends half the bytes, and each device keeps its own part",
    True: "each device then keeps its own part; on a GPU or TPU a reduce_scatter then sends half the bytes, while the "
    "CPU compiler keeps the all_reduce (lab explain C2)",
}


def reduced_twice(program: Program) -> Iterator[Finding]:
    """The operand of a reduction is the result of another over the same devices, at most scaled."""
    reductions = [site for site in program.sites if site.kind == "all_reduce"]
    by_name: dict[tuple[str, str], list[Site]] = {}
    for site in reductions:
        by_name.setdefault(_name(site.place), []).append(site)
    for site in reductions:
        first = _reduced_before(program, site, by_name)
        is_again = first is not None and program.between(first) == program.between(site)
        if first is not None and is_again and site.transfer.payload_bytes >= _SMALLEST:
            over = ", ".join(site.transfer.axes or ()) or "the same devices"
            sentence = (
                f"one value of {exact(site.transfer.payload_bytes)} B is reduced twice over {over}: the second "
                "reduction adds up equal copies of the first's result"
            )
            advice = (
                "drop the second (such as a pmean of a gradient in a jax.shard_map with check_vma=True, where JAX has "
                "summed it already: divide by the axis size instead)"
            )
            remedy = (ReduceOverLess(site.op_name, site.transfer.axes or ()),) if site.is_written else ()
            yield program.finding(
                "reduced_twice", sentence, advice, first, site, needed_bytes=sent([first]), remedy=remedy
            )


def _name(place: Place) -> tuple[str, str]:
    return place.computation.name, place.instruction.name


def _reduced_before(program: Program, site: Site, by_name: dict[tuple[str, str], list[Site]]) -> Site | None:
    operand = program.moving(site)
    if operand is None:
        return None
    for place in _scaled_back(program, operand):
        if place.instruction.opcode in _REDUCTIONS:
            its = by_name.get(_name(place), [])
            return next((one for one in its if one.transfer.payload_bytes == site.transfer.payload_bytes), None)
    return None


def _scaled_back(program: Program, start: Place) -> Iterator[Place]:
    """Back through what lays a value out anew or scales it by a constant."""
    place = start
    for _ in range(32):
        yield from program.flow.back(*place)
        place = program.flow.source(*place)
        if place.instruction.opcode not in _SCALES:
            return
        sides = [program.operand(place, number) for number in (0, 1)]
        makers = [
            None if side is None else program.flow.source(*side, through=frozenset({"broadcast"})).instruction
            for side in sides
        ]
        values = [
            side for side, maker in zip(sides, makers, strict=True) if side is not None and not _is_constant(maker)
        ]
        if len(values) != 1:
            return
        place = values[0]


def _is_constant(maker: Instruction | None) -> bool:
    return maker is not None and maker.opcode == "constant"


def reduced_for_nothing(program: Program) -> Iterator[Finding]:
    """A reduction spans an axis along which its operand is the same on every device."""
    for site in program.sites:
        axes = site.transfer.axes
        if site.kind != "all_reduce" or not axes or site.transfer.payload_bytes < _SMALLEST:
            continue
        varies = program.variation.along(site.visit, site.number)
        alike = [axis for axis in axes if axis not in varies]
        if alike:
            rest = ", ".join(axis for axis in axes if axis not in alike)
            rest_size = prod(known(program.axes)[axis] for axis in axes if axis not in alike)
            instead = f"; reducing over {rest} alone would do" if rest else ""
            sentence = (
                f"a reduction of {exact(site.transfer.payload_bytes)} B spans {', '.join(alike)}, along which "
                f"all devices have the same value{instead}"
            )
            advice = (
                f"leave {', '.join(alike)} out of the reduction; if JAX inserted it, keep check_vma=True on the "
                "jax.shard_map, or use inputs that no axis shards outside of it"
            )
            remedy = (ReduceOverLess(site.op_name, tuple(alike)),) if site.is_written else ()
            needed, link = _over(site, rest_size), str(site.transfer.link or "")
            added = {(site.transfer.span, link): -sent([site])}
            if rest_size > 1:
                added["+".join(axis for axis in axes if axis not in alike), link] = needed
            yield program.finding(
                "reduced_for_nothing", sentence, advice, site, needed_bytes=needed, remedy=remedy, added_bytes=added
            )


def _over(site: Site, devices: int) -> Fraction:
    """What an all-reduce would send in a step over so many devices."""
    often = 1 if site.transfer.executions is None else site.transfer.executions
    return often * wire_bytes(Kind.ALL_REDUCE, site.transfer.payload_bytes, devices)


def not_scattered(program: Program) -> Iterator[Finding]:
    """A psum of the user's, of which each device keeps a slice. The name of several that a compiler combined, with what
    it made of scatters, speaks for one, and tells nothing of the others."""
    for site in program.sites:
        is_named = site.is_written and site.primitive not in _SCATTERS and site.key[-1] is None
        is_sum = site.kind == "all_reduce" and is_named
        if is_sum and site.transfer.payload_bytes >= _SMALLEST:
            slices = own_slices(program.flow, program.uses(site, ELEMENTWISE)) if _adds(program, site) else []
            if slices and _are_shares(program, site, slices):
                sentence = (
                    f"an all-reduce gives the whole sum, {exact(site.transfer.payload_bytes)} B, to every device, "
                    f"and each keeps only a part ({count(len(slices), 'slice')})"
                )
                yield program.finding(
                    "not_scattered",
                    sentence,
                    "use jax.lax.psum_scatter: it sends half the bytes",
                    site,
                    needed_bytes=sent([site]) / 2,
                    remedy=(Scatter(site.op_name),),
                )


def _adds(program: Program, site: Site) -> bool:
    combine = program.module.computations.get(site.visit.instruction.attribute("to_apply") or "")
    return combine is not None and {i.opcode for i in combine.instructions} == {"parameter", "add"}


def _are_shares(program: Program, site: Site, slices: list[Use]) -> bool:
    """Together they are one device's share of the sum, and each next device that sums takes the next one, as a scatter
    gives it, and not all the same as where another axis splits it."""
    kept = sum(arrays(known(use.instruction).shape)[0].elements for use in slices)
    groups = program.members(site)
    first = Place(known(slices[0].instruction), slices[0].computation)
    starts = [program.operand(first, number) for number in range(1, len(first.instruction.operands))]
    if groups is None or kept * (site.transfer.group_size or 1) > site.result.elements:
        return False
    for row in groups.members:
        taken = [tuple(None if s is None else number_on(program.flow, s, device) for s in starts) for device in row]
        if any(None in numbers for numbers in taken) or not is_rising(taken):
            return False
    return True


def left_whole(program: Program) -> Iterator[Finding]:
    """Of a reduce-scatter a TPU compiler makes an all-reduce, and each device keeps its slice of it."""
    if program.platform != Platform.TPU:
        return
    sites = sums_cut_into_shards(program)
    now = sent(sites)
    if now >= _WORTH_A_FLAG:
        payload = sum(site.transfer.payload_bytes * (site.transfer.executions or 1) for site in sites)
        sentence = (
            f"the compiler makes all-reduces of reduce-scatters (T1): {exact(payload)} B over "
            f"{listed(site.transfer.span for site in sites)}, of which each device keeps its shard; scattered, each "
            f"would send {exact(now / 2)} B a step instead of {exact(now)}"
        )
        advice = (
            f"LIBTPU_INIT_ARGS=--{T1_FLAG}=true before JAX starts keeps most reduce-scatters (lab explain T1), as does "
            f'compiler_options={{"{T1_FLAG}": "true"}} of a Lowered\'s compile'
        )
        yield program.finding(
            "not_scattered", sentence, advice, *sites, needed_bytes=now / 2, remedy=(CompilerOption(T1_FLAG, "true"),)
        )


def sums_cut_into_shards(program: Program) -> list[Site]:
    """All-reduces that compilers make where each device keeps its shard of the sum."""
    sums = [s for s in program.sites if s.kind == "all_reduce" and (not s.is_written or s.primitive in _SCATTERS)]
    return [site for site in sums if _is_cut_into_shards(program, site)]


def _is_cut_into_shards(program: Program, site: Site) -> bool:
    slices = own_slices(program.flow, program.uses(site, ELEMENTWISE))
    kept = {arrays(known(use.instruction).shape)[0].elements for use in slices}
    return kept == {site.result.elements // (site.transfer.group_size or 1)}


def given_back_whole(program: Program) -> Iterator[Finding]:
    """A sum in the backward pass over an axis that an argument of the same shape is split over, which the program gives
    back whole: its gradient."""
    found: dict[str, list[tuple[Site, Shape]]] = {}
    remedies: dict[str, list[ShardResult]] = {}
    for site in program.inserted:
        if site.kind == "all_reduce" and site.phase == Phase.BACKWARD and site.transfer.payload_bytes >= _SMALLEST:
            for number, shape in _given_back(program, site):
                if twin := _twin(program, site, shape, found):
                    found.setdefault(program.named(twin), []).append((site, shape))
                    remedies.setdefault(program.named(twin), []).append(ShardResult(number, twin.dims or ()))
    for name, whole in found.items():
        sites, held = [site for site, _ in whole], sum(shape.bytes for _, shape in whole)
        over = listed(site.transfer.span for site in sites)
        sentence = (
            f"the gradient of {name} is summed over {over} and returned whole: {exact(held)} B on every device, "
            f"though {name.partition(' ')[0]} itself is sharded"
        )
        advice = f"give it the argument's sharding in out_shardings: {_SCATTERED[program.may_be_cpus]}"
        kept = 1 if program.may_be_cpus else Fraction(1, 2)
        remedy = tuple(remedies[name])
        yield program.finding(
            "given_back_whole",
            sentence,
            advice,
            *sites,
            memory_bytes=held,
            needed_bytes=kept * sent(sites),
            remedy=remedy,
        )


def _given_back(program: Program, site: Site) -> list[tuple[int, Shape]]:
    """The result that is a sum, by its number and laid out as it is then: itself, or the stack that a loop puts it
    into."""
    ends = [use for use in program.uses(site, frozenset({"dynamic-update-slice"})) if use.opcode is None]
    paths = [[arrays(i.shape)[0] for i in use.path if not i.shape.startswith("(")] for use in ends[:1]]
    return [(ends[0].number, path[-1] if path else site.result) for path in paths]


def _twin(program: Program, site: Site, shape: Shape, told: Container[str]) -> Argument | None:
    """What the result would be on a device, were it not split over the axes of the sum; compilers may sum it
    transposed. Of several one that was not told yet; none where another argument that these axes do not split is as
    large on a device, so that the gradient may be its own."""
    over = set(site.transfer.axes or ())
    others = [a for a in program.arguments if not over & {axis for dim in a.dims or () for axis in dim}]
    if any(sorted(a.local.dims) == sorted(shape.dims) and a.local.dtype == shape.dtype for a in others):
        return None
    alike = [a for a in program.arguments if sorted(_whole(a, site, program)) == sorted(shape.dims)]
    return min(alike, key=lambda a: (_whole(a, site, program) != shape.dims, program.named(a) in told), default=None)


def _whole(argument: Argument, site: Site, program: Program) -> tuple[int, ...]:
    """Dims on a device without the axes of the sum; none where the argument is not split over all of them."""
    axes, over = program.axes, set(site.transfer.axes or ())
    if axes is None or not over or argument.dims is None or not over <= {axis for dim in argument.dims for axis in dim}:
        return ()
    split = argument.dims + ((),) * len(argument.local.dims)
    return tuple(
        size * prod(axes[axis] for axis in dim if axis in over)
        for size, dim in zip(argument.local.dims, split, strict=False)
    )
