"""Sums over devices that linear algebra would do later, of fewer bytes: of what is added up next, or multiplied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from lab.core.known import known
from lab.core.ledger import Kind, wire_bytes
from lab.core.units import count, exact, scaled
from lab.diagnosis.cost import Load, pays, rated
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import SCALES, Place, Use, is_number_scale
from lab.diagnosis.program import Program, Site, dtype_of_product, largest, sent, shape_text
from lab.diagnosis.slices import depends_on_device, own_slices
from lab.hlo.shapes import Shape, arrays, bits
from lab.hlo.text import Instruction
from lab.meshes.platforms import Platform

_SMALLEST = 1024
_GEMM = 'custom_call_target="__cublas'
_INTO_SUM = frozenset({"select", "scatter", "add"})
_ADDITION = {"parameter", "add"}
_SCALED = frozenset({*SCALES, "negate"})
_FARTHEST = 300


def summed_apart(program: Program) -> Iterator[Finding]:
    """Several sums over the same axes whose results are only added to or subtracted from each other: one of that would
    do. Compilers for GPUs and TPUs join those that are just added by themselves; the CPU's does not try."""
    if program.platform == Platform.CPU:
        return
    by_sum: dict[tuple[Instruction, str, object], list[Site]] = {}
    for site in program.sites:
        if _adds_up(program, site) and (total := _total(program, site)) is not None:
            by_sum.setdefault((total, site.kind, program.between(site)), []).append(site)
    for (total, _, _), sites in by_sum.items():
        most = largest(sites)
        if len(sites) > 1 and most.transfer.payload_bytes >= _SMALLEST:
            sentence = (
                f"{count(len(sites), 'result')} of {shape_text(most.result)} are summed over {most.transfer.span} one "
                f"by one and then only added to or subtracted from each other; when each device does that first, one "
                f"sum sends {exact(sent([most]))} B instead of {exact(sent(sites))}"
            )
            advice = (
                "jax.lax.psum(a - b, axis) for jax.lax.psum(a, axis) - jax.lax.psum(b, axis)"
                if "shard_map" in (total.op_name or "")
                else "add them up before the sum over devices: compute them in one jax.shard_map that ends in one "
                "psum, or differentiate the weight once for all its uses there"
            )
            needed = sent([most])
            yield program.finding(
                "summed_apart", sentence, advice, *sites, needed_bytes=needed, write=_specs(program, most)
            )


def summed_into_sum(program: Program) -> Iterator[Finding]:
    """The result of an all-reduce that one device alone puts into what is summed over the same devices next: XLA's way
    to add the gradient of a lookup to a sum that it has already."""
    for site in program.inserted:
        if _is_sum(program, site) and site.transfer.payload_bytes >= _SMALLEST:
            uses = program.uses(site, _INTO_SUM)
            if uses and all(_is_summed_again_from_one(program, site, use) for use in uses):
                sentence = (
                    f"{shape_text(site.result)} is all-reduced over {site.transfer.span}, and one device alone adds "
                    f"the result to a value that is all-reduced over {site.transfer.span} next; added up on each "
                    f"device before, one all-reduce would do, and each would send {exact(sent([site]))} B less"
                )
                advice = (
                    "compute both in one jax.shard_map, add them up there and end in one psum (the gradients of a "
                    "table's two uses, for instance)"
                )
                yield program.finding(
                    "summed_apart", sentence, advice, site, needed_bytes=Fraction(0), write=_specs(program, site)
                )


def _specs(program: Program, site: Site) -> str:
    """Of what is differentiated, and of what the devices that sum have parts of."""
    return program.in_specs(program.gradient_of(site), *program.split_over(site.transfer.axes or ()))


def _is_summed_again_from_one(program: Program, site: Site, use: Use) -> bool:
    """It ends in another sum over the same axes, and on the way there all but one device put zeros in its place."""
    again = [s for s in program.sites if s.visit.instruction is use.instruction and s.key != site.key]
    is_over_the_same = any(program.between(s) == program.between(site) and _is_sum(program, s) for s in again)
    selects = [
        Place(step, c)
        for c in program.module.computations.values()
        for step in use.path
        if step.opcode == "select" and c.by_name.get(step.name) is step
    ]
    return is_over_the_same and any(depends_on_device(program.flow, c, i.operands[0]) for i, c in selects)


def _total(program: Program, site: Site) -> Instruction | None:
    """The last of the additions and subtractions that are all that is done with a result, none of them read by anything
    else."""
    uses, last = program.uses(site, _SCALED), None
    while len(uses) == 1 and uses[0].opcode in ("add", "subtract"):
        scales = [step for step in uses[0].path if step.opcode in SCALES]
        if not all(is_number_scale(program.flow, step, is_constant=_may_differ(step)) for step in scales):
            break
        last = known(uses[0].instruction)
        uses = program.flow.uses(last, uses[0].computation, _SCALED)
    return last


def _may_differ(step: Instruction) -> bool:
    """Numbers in a jax.shard_map, but for constants, may be others on each device."""
    return "shard_map" in (step.op_name or "shard_map")


@dataclass(frozen=True)
class _Product:
    """One into which a sum over devices goes, as each device computes it.

    Attributes:
      other: what the sum is multiplied with.
      is_own: that differs between the devices that sum.
      use: the product as a use of the sum.
    """

    result: Shape
    other: Shape
    is_own: bool
    use: Use


def summed_before_product(program: Program) -> Iterator[Finding]:
    """A sum over devices whose result goes into products alone, which are fewer bytes: a product of parts is a part of
    the product, so that the products can be summed instead. Rows that are looked up in a split table, for instance."""
    for site in program.sites:
        if _adds_up(program, site) and site.transfer.payload_bytes >= _SMALLEST:
            uses = list(_linear_uses(program, program.uses(site)))
            own = own_slices(program.flow, uses)
            cut = [after for use in own for after in _linear_uses(program, _uses_of(program, use))]
            is_scattered = site.kind == "reduce_scatter" or bool(own)
            products = _products(program, site, cut if own else uses, is_scattered)
            if products:
                yield from (_summed_scattered if is_scattered else _summed_whole)(program, site, products)


def _summed_whole(program: Program, site: Site, products: list[_Product]) -> Iterator[Finding]:
    before, after = site.transfer.payload_bytes, sum(product.result.bytes for product in products)
    often, now = site.transfer.executions or 1, sent([site])
    if 2 * after <= before:
        sentence = (
            f"{program.moved(site)}, {exact(before * often)} B a step, is summed over {site.transfer.span} only to "
            f"be multiplied: summed after the product, {_named(products)}, it would be {exact(after * often)} B, and "
            f"each device would send {exact(now * after / before)} B instead of {exact(now)}"
        )
        advice = (
            "multiply on each device first, in jax.shard_map, with jax.lax.psum behind the product instead of "
            "before it (attention over looked-up keys and values: sum scores and outputs)"
        )
        specs = program.in_specs(program.argument_behind(site))
        needed = now * after / before
        yield program.finding("summed_before_product", sentence, advice, site, needed_bytes=needed, write=specs)


def _summed_scattered(program: Program, site: Site, products: list[_Product]) -> Iterator[Finding]:
    """Of the sum each device has a part: it would multiply its addends of all parts, with what all multiply with."""
    devices, often, now = site.transfer.group_size or 1, site.transfer.executions or 1, sent([site])
    gathered = sum(product.other.bytes for product in products if product.is_own) * devices
    scattered = sum(product.result.bytes for product in products) * devices
    then = often * (
        wire_bytes(Kind.ALL_GATHER, gathered, devices) + wire_bytes(Kind.REDUCE_SCATTER, scattered, devices)
    )
    more = {dtype: (devices - 1) * flops for dtype, flops in _work(program, products).items()}
    link = site.transfer.link
    if 2 * then <= now and pays(Load({link: now}), Load({link: then}, more), rated(program).hardware):
        beside = f", {exact(gathered * often)} B of what it is multiplied with gathered for that" if gathered else ""
        sentence = (
            f"{program.moved(site)}, {exact(site.transfer.payload_bytes * often)} B a step, is summed over "
            f"{site.transfer.span}, and each device multiplies a part of the sum: summed after the product, "
            f"{_named(products)} a device{beside}, each would send {exact(then)} B instead of {exact(now)} and compute "
            f"{scaled(sum(more.values()), 'FLOP')} more"
        )
        advice = (
            "multiply on each device first, in jax.shard_map: jax.lax.all_gather what it is multiplied with, and "
            "jax.lax.psum_scatter the product (attention over looked-up keys and values: scores and outputs)"
        )
        specs = program.in_specs(program.argument_behind(site))
        yield program.finding(
            "summed_before_product",
            sentence,
            advice,
            site,
            needed_bytes=then,
            added_flops=sum(more.values()),
            write=specs,
        )


def _named(products: list[_Product]) -> str:
    return shape_text(products[0].result) if len(products) == 1 else count(len(products), "product")


def _linear_uses(program: Program, uses: Iterable[Use]) -> Iterator[Use]:
    """What is done with a value, or with what is left of it after numbers have scaled it, as a mean is."""
    for use in uses:
        if use.opcode in SCALES and is_number_scale(program.flow, known(use.instruction)):
            yield from _linear_uses(program, _uses_of(program, use))
        else:
            yield use


def _uses_of(program: Program, use: Use) -> list[Use]:
    return program.flow.uses(known(use.instruction), use.computation)


def _adds_up(program: Program, site: Site) -> bool:
    return site.kind in ("all_reduce", "reduce_scatter") and _adds(program, site.visit.instruction)


def _is_sum(program: Program, site: Site) -> bool:
    """An all-reduce that adds."""
    return site.kind == "all_reduce" and _adds_up(program, site)


def _products(program: Program, site: Site, uses: Iterable[Use], is_scattered: bool) -> list[_Product]:
    """The products that are all that is done with a sum, each linear in it and done as often; [] where anything else is
    done. Devices that all have the sum multiply with the same: with parts of their own, as in a layer that is split by
    columns, the sum of their products would be no product of the sum."""
    found, loops = dict[tuple[str, str], _Product](), program.flow.loops(site.visit.computation)
    axes = set(site.transfer.axes or ())
    for use in uses:
        product, i = _product(program, use), use.instruction
        other = None if i is None else program.operand(Place(i, use.computation), 1 - use.number)
        if product is None or i is None or other is None or (use.computation.name, i.name) in found or not axes:
            return []
        is_as_often = program.flow.loops(use.computation) == loops
        is_own = bool(program.variation.of_operands(*product) & axes)
        if not is_as_often or (is_own and not is_scattered) or _is_made_of(program, site, other):
            return []
        result, beside = _rounded(program, product, site.result.dtype), arrays(other.instruction.shape)[0]
        differs = is_own and _other_differs(program, use, axes)
        found[use.computation.name, i.name] = _Product(result, beside, differs, use)
    return list(found.values())


def _other_differs(program: Program, use: Use, axes: set[str]) -> bool:
    """What a sum is multiplied with is not known to be the same on the devices that sum."""
    at = program.variation.operands.get((use.computation.name, known(use.instruction).name), ())
    return len(at) <= 1 - use.number or bool(at[1 - use.number] & axes)


def _work(program: Program, products: list[_Product]) -> Counter[str]:
    """FLOPs of a step, by dtype."""
    found = Counter[str]()
    for visit, work in program.reading.products:
        if any(visit.instruction is product.use.instruction for product in products):
            found[dtype_of_product(visit)] += (work.flops or 0) * (visit.executions or 1)
    return found


def _product(program: Program, use: Use) -> Place | None:
    """A product, or what a GPU makes of one with few rows: elements multiplied, and then only added up. Of one that it
    makes in parts of the dim that is summed over, the sum of these."""
    i = use.instruction
    if i is None or use.number > 1:
        return None
    added = _added_up(program, Place(i, use.computation))
    if i.opcode in ("dot", "convolution") or _GEMM in i.tail:
        return added or Place(i, use.computation)
    return added if i.opcode == "multiply" else None


def _rounded(program: Program, product: Place, dtype: str) -> Shape:
    """What a product gives, in the dtype of its operand where compilers compute in a wider one and then round."""
    result = arrays(product.instruction.shape)[0]
    casts = [[step for step in use.path if step.opcode == "convert"][:1] for use in program.flow.uses(*product)]
    is_rounded = bool(casts) and all(cast and arrays(cast[0].shape)[0].dtype == dtype for cast in casts)
    return replace(result, dtype=dtype) if is_rounded and bits(dtype) < bits(result.dtype) else result


def _added_up(program: Program, place: Place) -> Place | None:
    """What adds up elements of a value, if nothing else is done with it."""
    uses = program.flow.uses(*place)
    if len(uses) != 1 or uses[0].opcode != "reduce" or uses[0].number != 0:
        return None
    reduce = Place(known(uses[0].instruction), uses[0].computation)
    return reduce if _adds(program, reduce.instruction) else None


def _adds(program: Program, i: Instruction) -> bool:
    combine = program.module.computations.get(i.attribute("to_apply") or "")
    return combine is not None and {inner.opcode for inner in combine.instructions} == _ADDITION


def _is_made_of(program: Program, site: Site, other: Place) -> bool:
    """Whether the other operand follows from the same sum, or that is not known: such a product is not linear in it."""
    pending, seen = [other], set[tuple[str, str]]()
    while pending:
        way = list(program.flow.back(*pending.pop()))
        place = way[-1]
        key = place.computation.name, place.instruction.name
        if place.instruction is site.visit.instruction:
            if site.number is None or any(_takes(step, site) for step in way):
                return True
        elif key not in seen and not _is_other_piece(program, site, place):
            seen.add(key)
            sides = [program.operand(place, number) for number in range(len(place.instruction.operands))]
            pending += [side for side in sides if side is not None]
        if len(seen) > _FARTHEST:
            return True
    return False


def _is_other_piece(program: Program, site: Site, place: Place) -> bool:
    """It cuts another array out of a sum that is packed into one."""
    if site.piece is None or place.instruction.opcode != "slice":
        return False
    packed = program.operand(place)
    is_cut_of_sum = packed is not None and program.flow.source(*packed).instruction is site.visit.instruction
    return is_cut_of_sum and place.instruction.braced("slice") != f"[{site.piece.start}:{site.piece.stop}]"


def _takes(step: Place, site: Site) -> bool:
    """It takes this operand's result out of what a combined sum gives."""
    i = step.instruction
    is_of_sum = i.opcode == "get-tuple-element" and i.operands[:1] == (site.visit.instruction.name,)
    return is_of_sum and i.attribute("index") == str(site.number)
