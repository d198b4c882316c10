"""What the partitioner moves for matrix products, where something else would move less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from lab.core.known import known
from lab.core.units import exact, part_text
from lab.diagnosis.dims import followed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Argument, Program, Site, sent
from lab.diagnosis.remedy import KeepLargeSide, Remedy, ShardArgument
from lab.diagnosis.specs import spec_text, without
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import arrays

# The other way also moves the output, and takes another layout of it: it must be worth that.
_FAR_LESS = 4
# Key-value heads are repeated up to the queries'.
_REPEATS = frozenset({"broadcast"})
# GPUs make one product of several with the same operand, in pieces that are added up, and take it apart again.
_APART = frozenset({"slice", "reduce"})

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->")
_WINDOW = re.compile(r"(\w+)=(\d{1,9}(?:x\d{1,9})*)")


def larger_side_gathered(program: Program) -> Iterator[Finding]:
    """A product gathers one operand where gathering the other, and scattering the output, would move far less; in
    training that is FSDP, and wanted."""
    if program.is_differentiated:
        return
    for sites in together(program, lambda site: site.kind == "all_gather" and site.primitive == "dot_general"):
        gather = sites[0]
        use = next((use for use in program.uses(gather) if _is_product(use)), None)
        if use is None or not use.instruction:
            continue
        other, output = _whole(gather, use)
        if other and gather.transfer.payload_bytes >= _FAR_LESS * (other + output):
            gathered = gather.transfer.payload_bytes
            sentence = (
                f"a matrix product gathers {program.moved(gather)}, {exact(gathered)} B; gathering its other operand "
                f"would be {exact(other)} B, {part_text(Fraction(other, gathered))} of that, and scattering the output "
                f"{exact(output)} B"
            )
            over = gather.transfer.span
            advice = (
                f"keep the large operand sharded: constrain the small one to be replicated over {over}, and the "
                + (
                    "output to be split over it, as the large operand's last axis, before its own sharding"
                    if _is_kept(gather, use)
                    else "output as well"
                )
            )
            remedy = (KeepLargeSide(gather.op_name, _split_over(program, gather), not _is_kept(gather, use)),)
            needed = sent([gather]) * Fraction(other + output, gathered)
            yield program.finding("larger_side_gathered", sentence, advice, *sites, needed_bytes=needed, remedy=remedy)


def _split_over(program: Program, gather: Site) -> tuple[str, ...]:
    """The axes that split the gathered dim of an argument, in their order; of another value those that are known."""
    operand, over = program.moving(gather), set(gather.transfer.axes or ())
    argument = None if operand is None else program.argument_behind(gather)
    split = [names for names in (argument.dims or () if argument else ()) if over <= set(names)]
    return split[0] if over and split else gather.transfer.axes or ()


def _is_product(use: Use) -> bool:
    return use.opcode in ("dot", "convolution") or (use.opcode == "custom-call" and use.number < 2)


def _whole(gather: Site, use: Use) -> tuple[int, int]:
    """Bytes of the product's other operand, of all devices together, and of its output as the other way moves it: of
    all devices together where the gathered dim is summed over, since each then has a part of every sum; else a device's
    columns of all rows change places with its rows of all columns, which are as many."""
    product, devices = known(use.instruction), gather.transfer.group_size or 1
    shapes = operand_shapes(product, use.computation)
    other = shapes[1 - use.number].bytes if len(shapes) == 2 and use.number < 2 else 0
    output = arrays(product.shape)[0].bytes
    return other * devices, output if _is_kept(gather, use) else output * devices


def _is_kept(gather: Site, use: Use) -> bool:
    """The gathered dim is one of the output's, as far as the text tells."""
    if use.opcode != "dot" or use.number > 1:
        return False
    dim, shape = gather.gathered
    side = ("lhs", "rhs")[use.number]
    summed = re.findall(r"\d+", known(use.instruction).braced(f"{side}_contracting_dims") or "")
    at = followed(dim, shape, use.path)
    return at is not None and str(at) not in summed


def batch_dim_gathered(program: Program) -> Iterator[Finding]:
    """A product with a batch dim, such as heads, gathers one operand along it, since the axis splits another dim of the
    other operand: split along the batch dim, both would stay where they are."""
    found = [(site, other) for site in program.inserted if (other := _split_elsewhere(program, site))]
    for site, other in found:
        axis = site.transfer.span
        sentence = (
            f"a product with a batch dim gathers {program.moved(site)} along it over {axis}, "
            f"{exact(site.transfer.payload_bytes)} B, since {program.named(other)} is split over {axis} along another "
            "dim; with both split along the batch dim the product moves nothing"
        )
        advice = f"split {other.name} over {axis} along the batch dim (heads, say) as well"
        yield program.finding(
            "batch_dim_gathered",
            sentence,
            advice,
            site,
            needed_bytes=Fraction(0),
            remedy=_along_batch_dim(program, site, other),
        )


def _split_elsewhere(program: Program, site: Site) -> Argument | None:
    """The other operand of a product along whose batch dim a gather goes, if the same axis splits it."""
    if site.kind != "all_gather" or site.number is not None or not site.transfer.axes:
        return None
    dim, shape = site.gathered
    for use in program.uses(site):
        if use.opcode in ("dot", "convolution") and followed(dim, shape, use.path) in _batch_dims(use):
            side = program.operand(Place(known(use.instruction), use.computation), 1 - use.number)
            other = None if side is None else program.argument_of(*side)
            if other and set(site.transfer.axes) <= {axis for names in other.dims or () for axis in names}:
                return other
    return None


def _along_batch_dim(program: Program, site: Site, other: Argument) -> Remedy:
    """The other operand split where the gathered one is: along the same of the product's batch dims."""
    dim, shape = site.gathered
    over = site.transfer.axes or ()
    for use in program.uses(site):
        if use.opcode not in ("dot", "convolution"):
            continue
        ours = next((each for each in program.flow.uses(*other.place) if each.instruction is use.instruction), None)
        at = followed(dim, shape, use.path)
        if ours is None or at not in (batch := _batch_dims(use)):
            continue
        wanted = _batch_dims(ours)[batch.index(at)]
        rank = len(other.local.dims)
        for number in range(rank):
            if followed(number, other.place.instruction.shape, ours.path) == wanted:
                free = (*without(other.dims or (), over), *((),) * rank)[:rank]
                return (
                    ShardArgument(
                        other.name, tuple((*names, *over) if n == number else names for n, names in enumerate(free))
                    ),
                )
    return ()


def experts_gathered(program: Program) -> Iterator[Finding]:
    """Tokens are gathered to split experts and their outputs summed over the experts' axis, or the other way round,
    where two all-to-alls would do."""
    for axis in _expert_axes(program):
        over = [site for site in program.inserted if site.transfer.axes == (axis,)]
        gathers = [site for site in over if site.kind == "all_gather" and _is_of_tokens(program, site)]
        sums = [
            site for site in over if site.kind in ("all_reduce", "reduce_scatter") and site.primitive == "dot_general"
        ]
        if gathers and sums and len({site.line for site in gathers + sums}) > 1:
            payload = sum(site.transfer.payload_bytes for site in gathers + sums)
            sentence = (
                f"a constraint on the experts' dim makes XLA gather all tokens and sum all outputs over {axis}, "
                f"{exact(payload)} B, where two all-to-alls would move a part of that"
            )
            advice = (
                f"constrain the dispatched tokens to their groups over {axis} first, and then to their experts; "
                "the outputs in the opposite order"
            )
            groups, experts = spec_text(((axis,),)), spec_text(((), (axis,)))
            write = f"{groups} of the dispatched tokens [groups, experts, ..], then {experts}"
            weight = next(w for w in _experts(program) if axis in known(w.dims)[0])
            value = f"the tokens of {program.named(weight)}"
            yield program.finding("experts_gathered", sentence, advice, *gathers, *sums, value=value, write=write)


def _is_of_tokens(program: Program, site: Site) -> bool:
    """What is gathered for a product, and is no expert's weight; arguments of a training step are all weights."""
    operand = program.moving(site)
    argument = None if operand is None else program.argument_of(*operand)
    is_weight = argument is not None and (program.is_differentiated or argument in _experts(program))
    return not is_weight and any(map(_is_product, program.uses(site)))


def _experts(program: Program) -> list[Argument]:
    return [
        a
        for a in program.arguments
        if a.dims and len(a.dims) >= 3 and a.dims[0] and not any(a.dims[1:]) and _is_batched(program, a)
    ]


def _expert_axes(program: Program) -> list[str]:
    """Axes that split the first dim of a weight [E, D, F], which a product takes as its batch dim."""
    return list(dict.fromkeys(axis for argument in _experts(program) for axis in known(argument.dims)[0]))


def _is_batched(program: Program, argument: Argument) -> bool:
    """A product takes its first dim, as it lies, as a batch dim: one contracted or kept beside others counts no
    experts. Of one expert a device no batch dim is left, but weights, unlike tokens, are not gathered."""
    uses = program.flow.uses(*argument.place)
    if argument.local.dims[0] == 1:
        return any(map(_is_product, uses)) and not any("all-gather" in (use.opcode or "") for use in uses)
    return any(
        use.opcode == "dot" and followed(0, argument.place.instruction.shape, use.path) in _batch_dims(use)
        for use in uses
    )


def _batch_dims(use: Use) -> list[int]:
    """Of the operand of a product; TPUs print a batch dim as a window over it that meets one element at a time."""
    if use.number > 1:
        return []
    product = known(use.instruction)
    if labels := _LABELS.search(product.attributes):
        window = {name: sizes.split("x") for name, sizes in _WINDOW.findall(product.braced("window") or "")}
        sizes, strides = window.get("size", []), window.get("stride", [])
        is_batch = sizes == window.get("lhs_dilate") and strides == [str(int(size) - 1) for size in sizes]
        return [at for at, label in enumerate(labels[1 + use.number]) if label.isdigit() and is_batch]
    side = ("lhs", "rhs")[use.number]
    return [int(number) for number in re.findall(r"\d{1,9}", product.braced(f"{side}_batch_dims") or "")]


def heads_split_apart(program: Program) -> Iterator[Finding]:
    """Of grouped-query attention: the axis that splits the queries' heads has more devices than there are key-value
    heads, so that a head is split."""
    found: dict[str, list[Site]] = {}
    for site in program.inserted:
        if (
            site.kind == "all_gather"
            and site.primitive in ("dot_general", "reshape", "broadcast_in_dim")
            and (weights := _column_weights(program, site))
        ):
            found.setdefault(f"{', '.join(program.spanned(site))}|{weights[0].dims}", []).append(site)
    for sites in found.values():
        weights = [weight for site in sites for weight in _column_weights(program, site)]
        axis = known(weights[0].dims)[-1][0]
        devices = known(program.axes)[axis]
        names = " and ".join(dict.fromkeys(program.named(weight) for weight in weights))
        sentence = (
            f"the product with {names} is gathered over {axis} before the next product: it has fewer heads than {axis} "
            f"has devices, {devices}, so that each head is split"
        )
        advice = (
            f"shard the key-value heads over a smaller axis, repeat them up to {devices} before the "
            f"product, or replicate their weights over {axis}"
        )
        replicated = dict.fromkeys(ShardArgument(each.name, without(each.dims or (), (axis,))) for each in weights)
        yield program.finding("heads_split_apart", sentence, advice, *sites, remedy=tuple(replicated))


def _column_weights(program: Program, site: Site) -> list[Argument]:
    """The weights [.., F] split along F alone, of whose product a part of a row, and no whole head, is gathered for
    another product."""
    operand = program.moving(site)
    if operand is None or not any(_is_product(use) for use in program.uses(site, _REPEATS)):
        return []
    product = program.flow.source(*operand, through=_APART)
    if product.instruction.opcode not in ("dot", "custom-call", "convolution"):
        return []
    sides = [program.flow.source(*side) for number in (0, 1) if (side := program.operand(product, number))]
    weights = [weight for side in sides for weight in _joined(program, side, program.flow.source(*operand))]
    split = [weight for weight in weights if weight.dims and weight.dims[-1] and not any(weight.dims[:-1])]
    return split if split and set(program.spanned(site)) <= set(known(split[0].dims)[-1]) else []


def _joined(program: Program, side: Place, part: Place) -> list[Argument]:
    """The argument that a product's operand is; of several side by side those as wide as the part that is taken of the
    product."""
    if side.instruction.opcode != "concatenate":
        return [argument] if (argument := program.argument_of(*side)) else []
    pieces = [piece for number in range(len(side.instruction.operands)) if (piece := program.operand(side, number))]
    arguments = [argument for piece in pieces if (argument := program.argument_of(*piece))]
    return [argument for argument in arguments if argument.local.dims[-1] in arrays(part.instruction.shape)[0].dims]
