"""Slices, updates and lookups whose place along a split dim the partitioner does not use: it gathers the whole
array."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

from lab.core.known import known
from lab.core.ledger import Kind, Phase, wire_bytes
from lab.core.units import exact
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Program, Site
from lab.diagnosis.remedy import DropConstraint, PinOperand, ThroughIndices
from lab.diagnosis.slices import ELEMENTWISE, is_known
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import arrays
from lab.hlo.text import Instruction

_READS, _UPDATES = (
    ("dynamic_slice", "slice"),
    (
        "dynamic_update_slice",
        "scatter",
        *(f"scatter{mark}{how}" for mark in "-_" for how in ("add", "mul", "min", "max")),
    ),
)
# A lookup that moves its table where its answers are far fewer; what moves up to four times as much may be the simpler
# way.
_FAR_FEWER = 4
_SMALLEST = 1024
_PERMUTES = frozenset({"collective-permute", "collective-permute-start"})
_ADDS_UP = _PERMUTES | {"add", "select"}
_SHIFTS = _PERMUTES | {"concatenate", "slice", "dynamic-slice"}
"""Of shards that TPUs pad to whole tiles."""
_FARTHEST = 100


def gathered_for_slice(program: Program) -> Iterator[Finding]:
    """A read or update of a part gathers the whole."""
    rolls = [site for site in program.inserted if "jit(_roll_dynamic)" in site.op_name]
    if rolls:
        sentence = (
            f"a roll by a traced shift moves {_sum(rolls)} B for {program.behind(rolls[0])}: XLA doubles the array, "
            "exchanges and gathers it"
        )
        advice = (
            "make the shift static (then only rows that cross from shard to shard move), or use jax.lax.ppermute in "
            "jax.shard_map"
        )
        yield program.finding("gathered_for_slice", sentence, advice, *rolls)

    def is_for_part(site: Site) -> bool:
        if site in rolls or site.kind != "all_gather":
            return False
        return _is_part(program, site) or bool(_is_added_to(program, site) and _summed_before(program, site))

    for sites in together(program, is_for_part):
        gather = sites[0]
        if summed := _summed_before(program, gather):
            yield _table_summed_twice(program, gather, summed)
            continue
        if gather.primitive in _UPDATES:
            does = "an update of a part of it"
            advice = (
                "update through an index array, x.at[jnp.arange(a, b)].set(u): the devices that hold the rows then "
                "write them, and nothing moves"
            )
        elif program.flow.loops(gather.place.computation):
            does = "a read of a part of it in every iteration of a loop"
            advice = (
                "put the loop (jax.lax.scan, jax.lax.map) into jax.shard_map, so that each device goes through its own "
                "part, or run it over a dim that no axis shards"
            )
        else:
            does = "a read of a part of it"
            advice = (
                "read through an index array, x[jnp.array([i])]: the device that holds the rows then sends these "
                "alone; or shard another dim"
            )
        sentence = (
            f"{program.moved(gather)} is gathered whole, {exact(gather.transfer.payload_bytes)} B, for {does} "
            f"along its sharded dim ({gather.primitive})"
        )
        is_looped = bool(program.flow.loops(gather.place.computation))
        remedy = () if is_looped else (ThroughIndices(gather.op_name),)
        write = program.in_specs(program.argument_behind(gather)) if is_looped else None
        needed = None if is_looped else _rows_alone(program, gather)
        yield program.finding(
            "gathered_for_slice", sentence, advice, *sites, needed_bytes=needed, remedy=remedy, write=write
        )


def _rows_alone(program: Program, gather: Site) -> Fraction:
    """What it takes to read them on the devices that have them and to sum with zeros of the others; an update takes
    nothing."""
    if gather.primitive in _UPDATES:
        return Fraction(0)
    rows = [use.instruction for use in program.uses(gather) if use.instruction and use.number == 0]
    each = sum(arrays(i.shape)[0].bytes for i in rows)
    often = 1 if gather.transfer.executions is None else gather.transfer.executions
    return often * wire_bytes(Kind.ALL_REDUCE, each, gather.transfer.group_size or 1)


def _summed_before(program: Program, gather: Site) -> list[Site]:
    """The reduction whose parts are gathered again for a lookup's gradient to be added to them: of a table with two
    uses, such as a tied one. The messages of a ring, where XLA sums so while it multiplies."""
    operand = program.moving(gather)
    if gather.phase != Phase.BACKWARD or operand is None:
        return []
    if not (gather.primitive.startswith("scatter") or _is_added_to(program, gather)):
        return []
    parts = _made_of(program, operand, _SHIFTS)
    scatters = [s for s in program.sites if s.kind == Kind.REDUCE_SCATTER and _name(s.place) in parts]
    if scatters:
        return scatters[:1]
    ring = _made_of(program, operand, _ADDS_UP)
    return [s for s in program.inserted if s.kind == Kind.COLLECTIVE_PERMUTE and _name(s.place) in ring]


def _is_added_to(program: Program, gather: Site) -> bool:
    """A scatter adds to what is gathered; compilers may name the gather after what made its operand."""
    return any(use.opcode == "scatter" and use.number == 0 for use in program.uses(gather, ELEMENTWISE))


def _name(place: Place) -> tuple[str, str]:
    return place.computation.name, place.instruction.name


def _made_of(program: Program, place: Place, by: frozenset[str]) -> set[tuple[str, str]]:
    """All that operations make a value of, through loops."""
    pending, seen = [place], set[tuple[str, str]]()
    while pending and len(seen) < _FARTHEST:
        way = list(program.flow.back(*pending.pop()))
        pending += [body for element, loop in pairwise(way) if (body := _in_body(program, element, loop)) is not None]
        if _name(way[-1]) not in seen:
            seen.add(_name(way[-1]))
            if way[-1].instruction.opcode in by:
                operands = [program.operand(way[-1], number) for number in range(len(way[-1].instruction.operands))]
                pending += [operand for operand in operands if operand is not None]
    return seen


def _in_body(program: Program, element: Place, loop: Place) -> Place | None:
    """What a loop's body makes of an element of its state."""
    body = program.module.called(loop.computation, loop.instruction.attribute("body") or "")
    index = element.instruction.attribute("index")
    if loop.instruction.opcode != "while" or body is None or body.root is None or index is None or not index.isdigit():
        return None
    return program.operand(Place(body.root, body), int(index))


def _table_summed_twice(program: Program, gather: Site, summed: list[Site]) -> Finding:
    sentence = (
        f"the gradient of one use of a table is summed over {gather.transfer.span} and gathered whole again, "
        f"{exact(gather.transfer.payload_bytes)} B, for that of a lookup to be added to its rows, and summed once more"
    )
    advice = (
        "sum them once: gather the table in jax.shard_map and differentiate it there for all its uses, "
        "so that each device adds them up before the one reduce_scatter"
    )
    return program.finding("gathered_for_slice", sentence, advice, *summed, gather, needed_bytes=Fraction(0))


def _is_part(program: Program, site: Site) -> bool:
    """The gathered array is what a slice, an update or a scatter works on, and these touch half of it at most."""
    if site.primitive not in _READS + _UPDATES:
        return False
    gathered = site.result.elements
    is_scattered = site.primitive.startswith("scatter")
    for use in program.uses(site, ELEMENTWISE if is_scattered else frozenset()):
        if use.instruction is None or use.number != 0:
            continue
        if use.opcode == "dynamic-update-slice" or (use.opcode == "scatter" and is_scattered):
            shapes = operand_shapes(use.instruction, use.computation)
            return (
                len(shapes) < 2
                or 2 * min(s.elements for s in shapes[1:] if s.elements > 1 or len(shapes) == 2) <= gathered
            )
        if (
            use.opcode in ("dynamic-slice", "slice", "gather")
            and site.primitive in _READS
            and not _takes_all(program, site, use)
        ):
            return 2 * arrays(use.instruction.shape)[0].elements <= gathered
    return False


def _takes_all(program: Program, site: Site, use: Use) -> bool:
    """A loop after the gather takes one part after the other, as a scan over layers does."""
    return not program.flow.loops(use.computation) <= program.flow.loops(site.place.computation)


def table_gathered(program: Program) -> Iterator[Finding]:
    """A lookup gathers its table, where the rows that it looks up are far fewer; in training that is FSDP, and
    wanted."""
    if program.is_differentiated:
        return
    for sites in together(program, lambda site: site.kind == "all_gather" and bool(_lookups(program, site))):
        gather, looked_up = sites[0], _lookups(program, sites[0])
        answers = sum(arrays(i.shape)[0].bytes for i in looked_up) * (gather.transfer.group_size or 1)
        if gather.transfer.payload_bytes >= _FAR_FEWER * answers:
            sentence = (
                f"a lookup gathers its whole table, {program.moved(gather)}, "
                f"{exact(gather.transfer.payload_bytes)} B, to read rows of {exact(answers)} B in all"
            )
            advice = (
                "shard the table and the tokens over different axes, or look up in jax.shard_map: mask the rows that "
                "other devices hold, and psum"
            )
            yield program.finding(
                "table_gathered",
                sentence,
                advice,
                *sites,
                needed_bytes=_rows_summed(program, gather, answers),
                at_most=True,
                remedy=(_kept_split(program, gather),),
            )


def _rows_summed(program: Program, gather: Site, answers: int) -> Fraction:
    """What it takes to gather the tokens, look up on each device the rows that it has, and sum: less where the tokens
    are whole already, or each device keeps its own rows."""
    devices = gather.transfer.group_size or 1
    lookups = [use for use in program.uses(gather) if use.instruction and use.opcode == "gather"]
    asked_for = [operand_shapes(known(use.instruction), use.computation)[1:2] for use in lookups]
    tokens = sum(shape.bytes for shapes in asked_for for shape in shapes) * devices
    often = 1 if gather.transfer.executions is None else gather.transfer.executions
    asked = wire_bytes(Kind.ALL_GATHER, tokens, devices)
    return often * (asked + wire_bytes(Kind.ALL_REDUCE, answers, devices))


def _kept_split(program: Program, gather: Site) -> DropConstraint | PinOperand:
    """Without the constraint that asks for the table whole, else with all tokens on every device that has a part."""
    operand = program.moving(gather)
    table = None if operand is None else program.argument_of(*operand)
    if table is not None and table.name in program.replicated:
        return DropConstraint(table.name)
    is_asked = gather.primitive == "sharding_constraint"
    return DropConstraint(gather.op_name) if is_asked else PinOperand(gather.op_name, 1, ())


def _lookups(program: Program, site: Site) -> list[Instruction]:
    return [
        use.instruction for use in program.uses(site) if use.instruction and use.opcode == "gather" and use.number == 0
    ]


def permuted_by_gather(program: Program) -> Iterator[Finding]:
    """Rows are taken by indices that the program knows, and each device keeps a part of them: it gathers all."""
    for sites in together(program, lambda site: site.kind == "all_gather" and bool(_kept_of_known(program, site))):
        gather, kept = sites[0], _kept_of_known(program, sites[0])
        if gather.transfer.payload_bytes >= 2 * kept >= _SMALLEST:
            sentence = (
                f"{program.moved(gather)} is gathered whole, {exact(gather.transfer.payload_bytes)} B, to take rows by "
                f"indices that are constants of the program, of which each device keeps {exact(kept)} B: sent where "
                "they belong, these would be all"
            )
            advice = (
                "which device needs which rows is known: exchange blocks of them by jax.lax.ppermute in jax.shard_map, "
                "one for each part of a shard that goes to another device"
            )
            often = 1 if gather.transfer.executions is None else gather.transfer.executions
            yield program.finding(
                "permuted_by_gather",
                sentence,
                advice,
                *sites,
                needed_bytes=Fraction(often * kept),
                at_most=True,
                write=program.in_specs(program.argument_behind(gather)),
            )


def _kept_of_known(program: Program, site: Site) -> int:
    """Bytes that a device keeps of rows taken by constants; 0 where anything else is done with them."""
    kept = 0
    for use in program.uses(site):
        if use.opcode != "gather" or use.number != 0 or not use.instruction:
            return 0
        indices = program.operand(Place(use.instruction, use.computation), 1)
        if indices is None or not is_known(program.flow, indices):
            return 0
        kept += arrays(use.instruction.shape)[0].bytes
    return kept


def cotangents_gathered(program: Program) -> Iterator[Finding]:
    """The gradient of a lookup gathers tokens and cotangents, where summing the table's gradient would move less."""
    names = ("scatter-add", "scatter_add")
    for sites in together(
        program, lambda site: site.kind == "all_gather" and site.primitive in names and site.phase == Phase.BACKWARD
    ):
        payload = sum(site.transfer.payload_bytes for site in sites)
        tables = [known(use.instruction) for site in sites for use in program.uses(site) if use.opcode == "scatter"]
        table = max((arrays(i.shape)[0].bytes for i in tables), default=0) * (sites[0].transfer.group_size or 1)
        if table and payload >= 2 * table:
            sentence = (
                f"the gradient of a lookup gathers tokens and cotangents, {exact(payload)} B, where an all-reduce "
                f"of the table's gradient would be {exact(table)} B"
            )
            yield program.finding(
                "table_gathered",
                sentence,
                "constrain the table's gradient to be replicated first, and to its own spec after",
                *sites,
                needed_bytes=(sites[0].transfer.executions or 1)
                * wire_bytes(Kind.ALL_REDUCE, table, sites[0].transfer.group_size or 1),
                remedy=(PinOperand(sites[0].op_name, None, ()),),
            )


def _sum(sites: list[Site]) -> str:
    return exact(sum(site.transfer.payload_bytes for site in sites))
