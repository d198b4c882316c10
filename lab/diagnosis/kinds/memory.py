"""What devices hold and need not: state that each uses a part of, constants, donations in vain, gathered arguments; and
whether all of it has room."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lab.core.known import known
from lab.core.ledger import Phase
from lab.core.room import Room
from lab.core.units import bytes_text, count, exact, listed
from lab.diagnosis.account import by_way
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.program import (
    Argument,
    Given,
    Program,
    Site,
    largest,
    sent,
    shape_text,
    times,
)
from lab.diagnosis.remedy import Donate, FreeUnnamed, KeepDonated, PassConstants, ShardArgument, ShardResultsAlike
from lab.diagnosis.slices import ELEMENTWISE, is_own_slice, own_slices
from lab.diagnosis.specs import most_alike
from lab.hlo.names import phase
from lab.hlo.shapes import Shape, arrays
from lab.meshes.platforms import Platform

# A counter or a vector of norms is held whole on purpose, and no one would split it.
_SMALLEST = 1 << 14
# Of the room that there is: less does not make a step fit.
_SMALLEST_STATE = 0.05
# Smaller constants are masks and tables of positions.
_SMALLEST_CONSTANT = 1 << 18
_NAMED = 3
# The last layer's weight is used again at once, so that one kept weight is no fault.
_FEWEST_KEPT = 2


def out_of_memory(program: Program) -> Iterator[Finding]:
    """The peak is more than JAX takes of the chip's memory."""
    room, memory = Room.of(program.target), program.ledger.memory
    if room is None or memory is None or memory.peak is None or room.fits(memory.peak):
        return
    largest_first = sorted(program.arguments, key=lambda argument: -argument.local.bytes)[:3]
    whole = [f"{shape_text(a.local)} {a.name}{' whole' * (a.dims == ())}" for a in largest_first]
    arguments = f"arguments, {bytes_text(memory.arguments)} of it (the largest are {', '.join(whole)})"
    temporaries = f"temporaries, {bytes_text(memory.temporaries)}"
    advice = (
        f"shard over more devices what fills it: {arguments}; {temporaries}"
        if memory.arguments >= memory.temporaries
        else f"take fewer sequences at once, or rematerialize: it is filled by {temporaries}; {arguments}"
    )
    yield program.finding(
        "out_of_memory",
        room.sentence(memory.peak),
        advice,
        memory_bytes=memory.peak - room.usable_bytes,
        remedy=(Donate(),),
        origin=program.first_use(largest_first[0].place) if largest_first else None,
        value=program.named(largest_first[0]) if largest_first else "",
        write="",
    )


def offload_undone(program: Program) -> Iterator[Finding]:
    """A policy moves values to the host, and the compiled program moves nothing."""
    memory = program.ledger.memory
    is_on_host = program.ledger.host_copies is not None or (memory is not None and memory.is_on_host)
    if program.offloaded and not is_on_host and program.platform in (Platform.GPU, Platform.TPU):
        sentence = (
            f"a policy of jax.checkpoint offloads {listed(program.offloaded)}, and nothing lies in the host's memory: "
            "the backward pass needs no such value of a rematerialized function"
        )
        advice = (
            "name a value inside the function that its own backward pass reads, such as its input "
            '(x = checkpoint_name(x, "...") in its first line); what it returns is saved by its caller, as by a scan, '
            "which the policy does not govern"
        )
        line = next(filter(None, program.offloaded.values()), None)
        value = f"the values named {listed(program.offloaded)}"
        yield program.finding("offload_undone", sentence, advice, origin=line, value=value)


def held_whole(program: Program) -> Iterator[Finding]:
    """Arguments that lie whole on every device, of which each only uses its part: optimizer state beside split weights.

    Only of arguments that are given up, or go with a split one of the same shape: inputs may lie whole because it is
    simpler.
    """
    split = {
        argument.whole(program.axes)
        for argument in program.arguments
        if argument.dims and any(argument.dims) and program.axes
    }
    donated = program.donors | program.aliased | _donated(program)
    belong = [a for a in program.arguments if a.dims == () and (a.number in donated or a.local.dims in split)]
    whole = [(argument, kept) for argument in belong if (kept := _kept(program, argument))]
    wasted = sum(argument.local.bytes - kept for argument, kept in whole)
    if wasted >= _SMALLEST:
        factor = max(argument.local.bytes / kept for argument, kept in whole)
        sentence = (
            f"{_listed([argument for argument, _ in whole])} replicated, though each device uses only its own part: "
            f"{times(factor)} the memory needed, {exact(wasted)} B more on each device"
        )
        advice = (
            "shard them like the arrays that they belong to: by out_shardings where they are made (optimizer state "
            "that is made under jit follows no sharding by itself), by in_shardings here"
        )
        remedy = [
            ShardArgument(one.name, twin.dims or ())
            for one, _ in whole
            if (twin := _split_twin(program, one)) is not None
        ]
        yield program.finding(
            "held_whole",
            sentence,
            advice,
            origin=program.first_use(whole[0][0].place),
            memory_bytes=wasted,
            remedy=(*remedy, ShardResultsAlike()) if remedy else (),
            value=program.named(whole[0][0]),
        )


def updated_whole(program: Program) -> Iterator[Finding]:
    """State that a step updates and no axis splits, where the step has no room: data parallelism without ZeRO."""
    room, memory, devices = Room.of(program.target), program.ledger.memory, program.ledger.devices or 1
    if room is None or memory is None or memory.peak is None or program.axes is None or room.fits(memory.peak):
        return
    updated = program.donors | program.aliased | _donated(program)
    state = [a for a in program.arguments if a.dims == () and a.number in updated and not _kept(program, a)]
    whole = [a for a in state if a.local.bytes >= _SMALLEST and any(size % devices == 0 for size in a.local.dims)]
    held = sum(a.local.bytes for a in whole)
    if devices > 1 and held - held // devices >= _SMALLEST_STATE * room.usable_bytes:
        most = max(whole, key=lambda a: a.local.bytes)
        axes = listed([name for name in program.axes.names if program.axes[name] > 1])
        sentence = (
            f"{count(len(whole), 'array')} that the step updates, {bytes_text(held)}, lie whole on each of {devices} "
            f"devices (the largest is {program.named(most)}): split over {axes}, each would hold "
            f"{bytes_text(held // devices)} of them"
        )
        advice = (
            f"shard them over {axes}, in in_shardings and out_shardings alike (ZeRO, FSDP): parameters are then "
            "gathered where they are used, moments never"
        )
        yield program.finding(
            "held_whole",
            sentence,
            advice,
            origin=program.first_use(most.place),
            memory_bytes=held - held // devices,
            remedy=(*(_split_first(program, a, devices) for a in whole), ShardResultsAlike()),
            value=program.named(most),
        )


def _split_first(program: Program, argument: Argument, devices: int) -> ShardArgument:
    """Over all axes, along its first dim that all devices can share."""
    axes = known(program.axes)
    names = tuple(name for name in axes.names if axes[name] > 1)
    at = next(dim for dim, size in enumerate(argument.local.dims) if size % devices == 0)
    return ShardArgument(argument.name, (*((),) * at, names))


def _split_twin(program: Program, one: Argument) -> Argument | None:
    """The argument of the same shape, split as each device uses this one, whose name ends alike."""
    axes, used = known(program.axes), _used_part(program, one)
    twins = [a for a in program.arguments if a.dims and any(a.dims) and a.whole(axes) == one.local.dims]
    twins = [a for a in twins if used is not None and a.local.dims == used.dims]
    return twins[most_alike(one.name, [a.name for a in twins])] if twins else None


def _kept(program: Program, argument: Argument) -> int:
    used = _used_part(program, argument)
    return 0 if used is None else used.bytes


def _used_part(program: Program, argument: Argument) -> Shape | None:
    """What each device uses of an argument, where that is a slice of its own."""
    slices = own_slices(program.flow, program.flow.uses(*argument.place, ELEMENTWISE))
    shapes = {known(use.instruction).shape for use in slices}
    return arrays(shapes.pop())[0] if len(shapes) == 1 else None


def _listed(arguments: list[Argument]) -> str:
    names = [f"{a.name} {shape_text(a.local)}" for a in arguments[:4]] + (
        [f"{len(arguments) - 4} more"] if len(arguments) > 4 else []
    )
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"


def made_whole(program: Program) -> Iterator[Finding]:
    """Outputs that need nothing of the split arguments are made whole, on one device or on all."""
    parts, memory = max((given.parts for given in program.given), default=1), program.ledger.memory
    is_alike = program.ledger.devices in (None, 1) or not program.variation.anywhere
    if parts > 1 and is_alike and not program.arguments and memory is not None and memory.outputs >= _SMALLEST:
        where = "one device" if program.ledger.devices in (None, 1) else "every device"
        sentence = (
            f"the outputs, {exact(memory.outputs)} B, are made whole on {where} though the arguments are sharded over "
            f"{count(parts, 'device')}: their values do not depend on the arguments, so that no sharding reaches them; "
            f"{times(parts)} the memory"
        )
        advice = (
            "pass out_shardings to jax.jit, or make them outside jit with jnp.zeros_like, which follows the argument's "
            "sharding"
        )
        yield program.finding(
            "held_whole",
            sentence,
            advice,
            origin=_first_line(program),
            memory_bytes=memory.outputs - memory.outputs // parts,
            remedy=(ShardResultsAlike(),),
            value="the outputs",
        )


def _first_line(program: Program) -> str | None:
    instructions = (i for computation in program.module.computations.values() for i in computation.instructions)
    return next((place for i in instructions if (place := program.origin(i))), None)


def closed_over(program: Program) -> list[tuple[Place, Shape]]:
    """The large constants of a program."""
    constants = [
        Place(i, c) for c in program.module.computations.values() for i in c.instructions if i.opcode == "constant"
    ]
    return [
        (place, shapes[0])
        for place in constants
        if (shapes := arrays(place.instruction.shape)) and shapes[0].bytes >= _SMALLEST_CONSTANT
    ]


def array_constant(program: Program) -> Iterator[Finding]:
    """An array closed over: part of the program, whole on every device, and in no argument's memory."""
    large = closed_over(program)
    if large:
        total, shape = (
            sum(shape.bytes for _, shape in large),
            max((shape for _, shape in large), key=lambda shape: shape.bytes),
        )
        sentence = (
            f"{count(len(large), 'array')} closed over, {exact(total)} B in all, the largest {shape_text(shape)}: as "
            "constants of the program every device holds them whole, on top of what the memory analysis counts"
        )
        advice = "pass it as an argument with a sharding instead of closing over it"
        origin = next(
            (line for place, _ in large if (line := program.origin(place.instruction) or program.first_use(place))),
            None,
        )
        axes = [name for name, size in program.axes.shape.items() if size > 1] if program.axes else []
        remedy = (PassConstants(axes[0]),) if axes else ()
        yield program.finding(
            "array_constant",
            sentence,
            advice,
            origin=origin,
            memory_bytes=total,
            remedy=remedy,
            value=f"the array {shape_text(shape)} that is closed over",
        )


def donation_unused(program: Program) -> Iterator[Finding]:
    """Arguments given up for outputs that could not be made in their memory."""
    unused = [
        a
        for a in program.arguments
        if a.number in program.donors or (a.number not in program.aliased and a.number in _donated(program))
    ]
    wasted = sum(argument.local.bytes for argument in unused)
    if wasted >= _SMALLEST // 16:
        reason = "no output has the same dtype and the same shape on a device"
        sentence = f"the donation of {_names(unused)} has no effect: {reason}, so that {exact(wasted)} B are held twice"
        advice = "give the output the sharding and dtype of the argument (out_shardings), or do not donate it"
        other = _of_another_dtype(program, unused[0])
        spared = sum((_of_another_dtype(program, a) or a.local).bytes for a in unused)
        yield program.finding(
            "donation_unused",
            sentence,
            advice,
            origin=program.first_use(unused[0].place),
            memory_bytes=wasted,
            added_memory=wasted - spared,
            remedy=() if other else (KeepDonated(),),
            value=program.named(unused[0]),
            write=f"dtype {unused[0].local.dtype} of result {shape_text(other)}" if other else None,
        )


def _of_another_dtype(program: Program, argument: Argument) -> Shape | None:
    """The result that has its shape on a device, where none has its dtype."""
    root = program.module.entry.root if program.module.entry else None
    results, local = arrays(root.shape) if root else (), argument.local
    is_elsewhere = any(one.dtype == local.dtype and one.elements >= local.elements for one in results)
    return None if is_elsewhere else next((one for one in results if one.dims == local.dims), None)


def _names(arguments: list[Argument]) -> str:
    listed = ", ".join(f"{a.name} {shape_text(a.local)}" for a in arguments[:4])
    return listed + (f" and {len(arguments) - 4} more" if len(arguments) > 4 else "")


def _donated(program: Program) -> set[int]:
    """Parameters whose argument was donated, as the user gave it: JAX itself drops a donation that it sees no use for.

    Arguments that a program does not use are no parameters, so that the two are matched in their order, by what they
    hold.
    """
    parameters, found, at = program.arguments, set(), 0
    for given in program.given:
        if at < len(parameters) and _is_same(program, parameters[at], given):
            if given.donated:
                found.add(parameters[at].number)
            at += 1
    return found if at == len(parameters) else set()


def _is_same(program: Program, argument: Argument, given: Given) -> bool:
    if argument.dims is None or program.axes is None:
        return prod(argument.local.dims) <= prod(given.shape) and len(argument.local.dims) == len(given.shape)
    return argument.whole(program.axes) == given.shape


def kept_whole(program: Program) -> Iterator[Finding]:
    """Split arguments that are gathered once in the forward pass, and kept until the backward pass uses them."""
    if not program.is_differentiated:
        return
    kept = [
        site
        for site in program.inserted
        if site.kind == "all_gather" and site.phase == Phase.FORWARD and _is_used_in_both(program, site)
    ]
    is_replicated = [site for site in kept if _is_by_constraint(program, site) and _forward_uses(program, site) > 1]
    if sum(_layers(program, site) for site in kept) >= _FEWEST_KEPT or is_replicated:
        held = sum(site.transfer.payload_bytes for site in kept)
        sentence = (
            f"{_gathered(program, kept)} gathered once, in the forward pass, and kept whole for the backward pass: "
            f"{exact(held)} B on every device, as if nothing sharded {'it' if len(kept) == 1 else 'them'}"
        )
        if is_replicated == kept:
            yield program.finding(
                "kept_whole",
                sentence,
                "drop the sharding constraint that replicates it, or write P.UNCONSTRAINED for dims that it is not "
                "about",
                *kept,
                memory_bytes=held,
                needed_bytes=sent(kept),
                remedy=tuple(FreeUnnamed(site.op_name) for site in kept),
            )
            return
        again = [site for site in program.inserted if _is_gathered_forward(program, site)]
        yield program.finding(
            "kept_whole",
            sentence,
            "gather each layer's arguments where they are used, and rematerialize the layer (jax.checkpoint): the "
            f"backward pass then gathers them again, at most {exact(sent(again))} B a step more sent by each device, "
            "and only one layer's are whole at a time",
            *kept,
            memory_bytes=held,
            needed_bytes=sent(kept),
            value=_all_named(program, kept),
            added_bytes=by_way(site.transfer for site in again),
            added_flops=_forward_flops(program),
            added_memory=max(site.transfer.payload_bytes // _layers(program, site) for site in kept),
            at_most=True,
        )


def _is_gathered_forward(program: Program, site: Site) -> bool:
    return site.kind == "all_gather" and site.phase == Phase.FORWARD and _argument(program, site) is not None


def _all_named(program: Program, sites: list[Site]) -> str:
    """The first arguments that they move, and how many more there are."""
    names = list(dict.fromkeys(program.named(known(_argument(program, site))) for site in sites))
    return listed([*names[:_NAMED], *[f"{len(names) - _NAMED} more"] * (len(names) > _NAMED)])


def _forward_flops(program: Program) -> int:
    """Of products of the forward pass, which a rematerialized layer multiplies again but for those that its backward
    pass does not read."""
    return sum(
        (work.flops or 0) * (visit.executions or 1)
        for visit, work in program.reading.products
        if phase(visit.instruction.op_name, True) == Phase.FORWARD
    )


def _gathered(program: Program, kept: list[Site]) -> str:
    """`3 sharded arguments (the largest is up f32[256,1024] P('fsdp', None)) are`."""
    most = largest(kept)
    layers = _layers(program, most)
    name = f"{program.moved(most)}{f', a stack of {layers}' if layers > 1 else ''}"
    return (
        f"1 sharded argument ({name}) is"
        if len(kept) == 1
        else f"{len(kept)} sharded arguments (the largest is {name}) are"
    )


def _layers(program: Program, site: Site) -> int:
    """How many a gathered stack holds, of which a loop takes one at a time."""
    taken = [
        arrays(known(use.instruction).shape)[0].elements
        for use in program.uses(site)
        if use.opcode == "dynamic-slice" and not is_own_slice(program.flow, use)
    ]
    return site.result.elements // taken[0] if taken else 1


def _is_by_constraint(program: Program, site: Site) -> bool:
    """It is named after a sharding constraint or, from jax 0.11 on, after an argument that one replicates."""
    return site.primitive == "sharding_constraint" or known(_argument(program, site)).name in program.replicated


def _argument(program: Program, site: Site) -> Argument | None:
    """The one that it moves."""
    operand = program.moving(site)
    return None if operand is None else program.argument_of(*operand, through=frozenset({"dynamic-slice"}))


def _forward_uses(program: Program, site: Site) -> int:
    names = [use.instruction.op_name or "" for use in program.uses(site) if use.instruction]
    return sum("transpose(" not in name for name in names if name)


def _is_used_in_both(program: Program, site: Site) -> bool:
    if _argument(program, site) is None:
        return False
    names = [use.instruction.op_name or "" for use in program.uses(site) if use.instruction]
    backward = ["transpose(" in name for name in names if name]
    return any(backward) and not all(backward)
