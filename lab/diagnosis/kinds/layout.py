"""Data that moves since dims are reshaped, joined, padded or split in another order of axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from lab.core.known import known
from lab.core.ledger import Phase
from lab.core.units import count, exact
from lab.diagnosis.dims import followed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import LAYOUT, Place
from lab.diagnosis.kinds.together import moves_on, together
from lab.diagnosis.program import Argument, Program, Site, operation, sent
from lab.diagnosis.remedy import PartitionableKeys, PinInstead, Remedy, ShardArgument, ShardResult
from lab.diagnosis.slices import ELEMENTWISE
from lab.diagnosis.specs import spec_text
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import arrays

# What it is, and what to try.
_JOINS = {
    "reshape": (
        "a reshape that merges or splits a sharded dim",
        "keep the sharded dim outermost when it is merged or split: x.reshape(batch, micro), not "
        "x.reshape(micro, batch)",
    ),
    "concatenate": (
        "a concatenation along a sharded dim",
        "join along a dim that is not sharded (jnp.stack), or shift with jnp.roll or jax.lax.ppermute",
    ),
    "split": (
        "splitting an array along a sharded dim",
        "give the parts a dim of their own that is not sharded, such as [D, 2, F] sharded along F; or an array each",
    ),
    "tile": (
        "a repetition along a sharded dim",
        "repeat along a dim that is not sharded, or each row on its own device (jnp.repeat)",
    ),
}
# TPUs pad what they join, and take the maximum.
_JOINING = frozenset({"concatenate", "pad", "maximum"})
_DUALS = {"concatenate": "split", "split": "concatenate"}
_EXCHANGES = ("all_to_all", "all_gather")
# A move that the program asks for by its own name: these permutes carry the rows that cross.
_MOVES = frozenset(
    """rev concatenate pad slice split roll dynamic_slice dynamic_update_slice gather scatter conv_general_dilated
    dot_general squeeze reshape transpose select_n""".split()
)
_DRAWS = tuple(
    f"jit({name}"
    for name in """_uniform _normal _normal_real _truncated_normal _gumbel _bernoulli _randint threefry_2x32
    _random_bits""".split()
)
# Rounding a dim up to the axis costs less than one row a device; a tenth of the bytes is worth another size.
_WASTE = 0.1
_SMALLEST = 1024


def moved_to_reshape(program: Program) -> Iterator[Finding]:
    causes = {
        (site.primitive, site.line)
        for site in program.inserted
        if (_is_joined(site) and not _is_as_before(program, site)) or _is_cut(program, site)
    }
    by_line: dict[tuple[str | None, str], list[Site]] = {}
    for sites in together(
        program, lambda site: site.kind in (*_EXCHANGES, "collective_permute") and (site.primitive, site.line) in causes
    ):
        by_line.setdefault((sites[0].line, _forward(sites[0], causes)), []).extend(
            [*sites, *_ends(program, sites, causes)]
        )
    for (_, primitive), sites in by_line.items():
        moved = sum(site.transfer.payload_bytes for site in sites)
        kinds = " and ".join(dict.fromkeys(site.kind.replace("_", "-") for site in sites))
        both = " forward and backward" if {Phase.FORWARD, Phase.BACKWARD} <= {site.phase for site in sites} else ""
        what, advice = _JOINS.get(primitive, _JOINS["reshape"])
        sentence = (
            f"{what} moves {exact(moved)} B{both} ({kinds}): a shard of the result is made of parts of several shards "
            f"of {program.behind(sites[0])}"
        )
        is_split = primitive == "split"
        yield program.finding(
            "moved_to_reshape",
            sentence,
            advice,
            *sites,
            needed_bytes=Fraction(0) if is_split else None,
            write=_with_parts(program.sole_argument_behind(sites[0])) if is_split else "",
        )


def _ends(program: Program, sites: list[Site], causes: set[tuple[str, str | None]]) -> list[Site]:
    """What joins parts by another dim, and exchanges the whole for the first dim again, is served for what comes next,
    and yet named after the joining, as what it moves is."""
    cause = sites[0].primitive, sites[0].line
    others = [s for s in program.inserted if s.kind in _EXCHANGES and (s.primitive, s.line) not in causes]
    named = [s for s in others if (operation(s.transfer.op_name), s.transfer.origin) == cause]
    return [site for site in named if moves_on(program, site, sites, _JOINING)]


def _with_parts(argument: Argument | None) -> str:
    """The spec of an argument whose parts have a dim of their own before the one that is split; parts that differ in
    size have none."""
    split = [dim for dim, names in enumerate(argument.dims or ()) if names] if argument else []
    if argument is None or argument.dims is None or not split:
        return ""
    at = split[-1]
    stacked = spec_text((*argument.dims[:at], (), *argument.dims[at:]))
    return f"{stacked} of {argument.name}, its parts along dim {at}, or {spec_text(argument.dims)} of each alone"


def _forward(site: Site, causes: set[tuple[str, str | None]]) -> str:
    """The operation that was written: the gradient of a split is a concatenation, and the other way round."""
    dual = _DUALS.get(site.primitive)
    return dual if dual and site.phase == Phase.BACKWARD and (dual, site.line) in causes else site.primitive


def _is_joined(site: Site) -> bool:
    # An exchange of a split dim for another may serve a split too, of a third dim; what is taken apart itself is
    # shifted.
    is_moved = site.kind == "collective_permute" if site.primitive == "split" else site.kind in _EXCHANGES
    # What XLA joins itself, such as the rows of two scatters, has no name of the program around it.
    is_of_program = "/" in site.op_name
    return is_moved and site.primitive in _JOINS and is_of_program and "random" not in site.op_name


def _is_as_before(program: Program, site: Site) -> bool:
    """No reshape splits the gathered dim or merges it with an outer one: JAX has one, of dims of 1, in the gradient of
    each broadcast."""
    if site.kind != "all_gather" or site.primitive != "reshape":
        return False
    dim, shape = site.gathered
    return all(followed(dim, shape, use.path, is_outermost=True) is not None for use in program.uses(site))


def _is_cut(program: Program, site: Site) -> bool:
    """An exchange along a part of the only axis that splits an argument, whatever it is named after: only a reshape
    cuts an axis."""
    operand = program.moving(site)
    if site.kind != "all_to_all" or site.transfer.axes is not None or operand is None:
        return False
    argument = program.argument_of(*operand, through=ELEMENTWISE | {"slice", "concatenate"})
    split = [axis for names in argument.dims or () for axis in names] if argument else []
    return bool(split) and split == list(program.spanned(site))


def axis_order(program: Program) -> Iterator[Finding]:
    """A whole shard is permuted: the same split, by axes in another order."""
    for site in program.inserted:
        if (
            site.kind == "collective_permute"
            and (site.primitive not in _MOVES or _is_gathered_after(program, site))
            and len(site.transfer.axes or ()) > 1
            and _is_whole_shard(program, site)
            and not _is_one_step_of_several(program, site)
        ):
            sentence = (
                f"{program.moved(site)} has the same shards before and after, on other devices: each, "
                f"{exact(site.transfer.payload_bytes)} B, is sent, since the two shardings, the program's or XLA's own "
                f"choice, name the axes {', '.join(site.transfer.axes or ())} in different orders"
            )
            yield program.finding(
                "axis_order",
                sentence,
                "name the axes in the same order in both specs: P(('x', 'y')) and P(('y', 'x')) place shards on "
                "different devices; where the program has no such spec, constrain the value "
                "(jax.lax.with_sharding_constraint)",
                site,
                needed_bytes=Fraction(0),
                remedy=_same_order(program, site),
            )


def _same_order(program: Program, site: Site) -> Remedy:
    """Results that are only the permuted value keep the order of the argument that they are made of; an argument that
    is permuted for other uses, of two axes, has them in the other order."""
    argument, uses = program.argument_behind(site), program.uses(site)
    if argument is None or not argument.dims or not uses:
        return ()
    if not any(use.instruction for use in uses):
        return tuple(ShardResult(use.number, argument.dims) for use in uses)
    operand, both = program.moving(site), set(site.transfer.axes or ())
    swapped = tuple(names[::-1] if len(names) == 2 and set(names) == both else names for names in argument.dims)
    is_moved = (
        operand is not None and program.argument_of(*operand, ELEMENTWISE) == argument and swapped != argument.dims
    )
    return (ShardArgument(argument.name, swapped),) if is_moved else ()


def _is_gathered_after(program: Program, site: Site) -> bool:
    """An argument changes places to be gathered over fewer axes for a product: those were named in the other order."""
    operand = program.moving(site)
    uses = program.uses(site)
    return (
        site.primitive == "dot_general"
        and site.transfer.executions == 1
        and operand is not None
        and program.argument_of(*operand) is not None
        and bool(uses)
        and all((use.opcode or "").startswith("all-gather") for use in uses)
    )


def _is_one_step_of_several(program: Program, site: Site) -> bool:
    """What is permuted comes or goes along a part of an axis: the partitioner changes a split in steps, for which it
    cuts axes, whatever their order."""
    cut = {step.visit.instruction.name for step in program.inserted if step.transfer.sub_axes}
    operand = program.moving(site)
    before = program.flow.source(*operand).instruction.name if operand else None
    return before in cut or any(use.instruction and use.instruction.name in cut for use in program.uses(site))


def _is_whole_shard(program: Program, site: Site) -> bool:
    """What is sent is a value as it is, or what elementwise operations made of it, and no edge of it."""
    operand = program.moving(site)
    if operand is None:
        return False
    source = program.flow.source(*operand)
    if argument := program.argument_behind(site):
        return argument.local.bytes == site.transfer.payload_bytes
    return source.instruction.opcode in ELEMENTWISE | LAYOUT


def padded(program: Program) -> Iterator[Finding]:
    """A gather moves rows that fill up the last shard, and cuts them off again."""
    for site in program.inserted:
        if site.kind != "all_gather":
            continue
        uses = program.uses(site, ELEMENTWISE)
        cuts = [
            Place(known(use.instruction), use.computation) for use in uses if use.opcode == "slice" and use.number == 0
        ]
        gathered = site.result
        padding = operand_shapes(*cuts[0])[0] if cuts else gathered
        if (
            cuts
            and len(cuts) == len(uses)
            and sorted(padding.dims) == sorted(gathered.dims)
            and gathered.bytes >= _SMALLEST
        ):
            kept = max(arrays(cut.instruction.shape)[0].dims for cut in cuts)
            wider = [(held, whole) for held, whole in zip(kept, padding.dims, strict=True) if held < whole]
            if (
                len(wider) == 1
                and wider[0][1] - wider[0][0] >= _WASTE * wider[0][0]
                and all(map(_is_from_the_first, cuts))
            ):
                held, whole = wider[0]
                sentence = (
                    f"a dim of {held} is padded to {whole} to split over "
                    f"{count(site.transfer.group_size or 0, 'device')}, and gathered with its padding, "
                    f"{exact(site.transfer.payload_bytes)} B: {(whole - held) / held:.0%} more than its own bytes"
                )
                yield program.finding(
                    "padded",
                    sentence,
                    f"choose a multiple of {site.transfer.group_size}, or shard another dim",
                    site,
                    needed_bytes=sent([site]) * Fraction(held, whole),
                    remedy=_another_dim(site, kept),
                )


def _is_from_the_first(cut: Place) -> bool:
    """A slice that leaves away what fills up the end; one of several that go to other devices begins elsewhere."""
    return not re.search(r"\[[1-9]", cut.instruction.braced("slice") or "")


def _another_dim(site: Site, kept: tuple[int, ...]) -> Remedy:
    """The first dim that is a multiple of the axis, in place of the one that is split."""
    parts, axes = site.transfer.group_size or 1, site.transfer.axes
    even = next((at for at, size in enumerate(kept) if size % parts == 0), None)
    return () if even is None or not axes else (PinInstead(site.op_name, (*((),) * even, axes)),)


def random_numbers_moved(program: Program) -> Iterator[Finding]:
    """Random bits drawn in another order than they are kept in."""
    sites = [site for site in program.inserted if any(f"{name})" in site.op_name for name in _DRAWS)]
    if sites:
        moved = exact(sum(site.transfer.payload_bytes for site in sites))
        sentence = (
            f"drawing random numbers for a sharded array moves {moved} B in {count(len(sites), 'transfer')}, since "
            "jax_threefry_partitionable is off"
        )
        yield program.finding(
            "random_numbers_moved",
            sentence,
            "turn jax_threefry_partitionable on (JAX's default): each device then draws only its own part, of other "
            "numbers than before",
            *sites,
            needed_bytes=Fraction(0),
            remedy=(PartitionableKeys(),),
        )
