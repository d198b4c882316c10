"""A batch whose split is lost where it meets its first weight, or in the backward pass: layers then move activations
over the batch's axes, where each device could have multiplied its own sequences with gathered weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod

from lab.core.known import known
from lab.core.ledger import Kind, Phase, wire_bytes
from lab.core.units import exact
from lab.diagnosis.dims import followed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place
from lab.diagnosis.least import is_weight
from lab.diagnosis.program import PRODUCTS, Argument, Program, Site, operation, sent
from lab.diagnosis.remedy import PinOperand
from lab.diagnosis.slices import ELEMENTWISE, own_slices
from lab.diagnosis.specs import Dims, spec_text
from lab.diagnosis.splitting import letters_of
from lab.hlo.flops import operand_shapes
from lab.hlo.names import phase
from lab.hlo.shapes import Shape, arrays, bits

_SUMS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
_BOTH = (Phase.FORWARD, Phase.BACKWARD)
_NUMBERS = frozenset({"s32", "u32", "s64", "u64", "s16", "u16"})
"""Of words and other rows of tables; narrower integers are quantized weights."""
_MOVES = frozenset(f"{kind}{start}" for kind in ("all-gather", "collective-permute") for start in ("", "-start"))
_CUTS = frozenset({"slice", "dynamic-slice"})
_FILLED = frozenset({"pad"})
_JOINS = 'custom_call_target="ConcatBitcast"'
"""On TPUs, what comes into fast memory part by part."""
_FAR_LESS = 2
_FARTHEST = 100


@dataclass(frozen=True)
class _Meeting:
    """Where a batch meets its first weight: a lookup in a table, or a product with it as a one-hot."""

    batch: Argument
    weight: Argument
    place: Place


@dataclass(frozen=True)
class _Summed:
    """A sum over devices of a product with a split weight, and how many rows of activations that product has."""

    site: Site
    weight: Argument
    rows: int


def batch_made_whole(program: Program) -> Iterator[Finding]:
    """Forward sums over axes of the batch, of products with weights that these split, of all rows of the batch: no
    tensor parallelism sums over the axes along which devices have sequences of their own. Or a backward pass that
    gathers rows for weights that the forward pass gathers."""
    if program.axes is None:
        return
    batches: dict[frozenset[str], list[Argument]] = {}
    for argument in program.arguments:
        if _is_batch(program, argument):
            batches.setdefault(frozenset(_first_split(argument)), []).append(argument)
    for axes, arguments in batches.items():
        summed = [one for site in program.inserted if (one := _summed(program, site, axes)) is not None]
        whole = [one for one in summed if one.site.phase == Phase.FORWARD and not _is_cut_by_rows(program, one)]
        gathered = [] if whole else [rows for site in program.inserted if (rows := _gathered_rows(program, site, axes))]
        meetings = [*_meetings(program, arguments)] if whole or gathered else []
        if meetings:
            rows = min(gathered or [one.rows for one in whole])
            yield from _finding(program, axes, meetings, summed, rows, bool(whole))


def _is_batch(program: Program, argument: Argument) -> bool:
    """Words, or, in training, values of which no new ones are given back: weights and their state are."""
    if argument.local.dtype in _NUMBERS or not _first_split(argument):
        return bool(_first_split(argument))
    has_rows = len(argument.local.dims) > 2 and bool(known(argument.dims)[0])
    return program.is_differentiated and has_rows and argument.local not in _results(program)


def _finding(
    program: Program,
    axes: frozenset[str],
    meetings: list[_Meeting],
    summed: list[_Summed],
    rows: int,
    is_in_forward: bool,
) -> Iterator[Finding]:
    products = {one.site.key for one in summed}
    sites = [s for s in program.inserted if s.key in products or _is_of_rows(program, s, axes, rows)]
    passes = 2 if is_in_forward and program.is_differentiated else 1
    needed, now = _gathered_instead(program, axes, meetings, rows, passes), sent(sites)
    if _FAR_LESS * needed > now:
        return
    first, dims = meetings[0], _dims_of(program, meetings[0])
    over, line = ", ".join(sorted(axes)), program.origin(first.place.instruction)
    does, at = ("lookup in", "product with")[first.place.instruction.opcode != "gather"], f" at {line}" if line else ""
    met = f"its {does} {program.named(first.weight)}"
    what = (
        f"but no longer from {met} on: layers compute with the whole batch and sum or gather activations over {over}, "
        f"{exact(now)} B; kept split, they would gather weights instead"
        if is_in_forward
        else f"but gradients of what comes of {met} are not: the backward pass moves activations over {over}, "
        f"{exact(now)} B; with these kept split, it would gather weights instead, as the forward pass does"
    )
    sentence = f"{program.named(first.batch)} is split over {over}, {what}, and send at most {exact(needed)} B"
    advice = (
        f"constrain what the {does.split()[0]}{at} gives, x = jax.lax.with_sharding_constraint(x, {spec_text(dims)}): "
        "what is made of it follows, and its gradient"
    )
    yield program.finding(
        "batch_made_whole",
        sentence,
        advice,
        *sites,
        origin=line,
        value=f"the result of {operation(first.place.instruction.op_name)} with {program.named(first.weight)}",
        needed_bytes=needed,
        at_most=True,
        remedy=tuple(dict.fromkeys(_pins(program, meetings))),
    )


def _first_split(argument: Argument) -> tuple[str, ...]:
    """The axes of the outermost split dim: of sequences, and not of places in them."""
    return next((names for names in argument.dims or () if names), ())


def _summed(program: Program, site: Site, axes: frozenset[str]) -> _Summed | None:
    """A sum over axes of the batch of products with weights alone that they split: no weight's gradient is one."""
    over = set(site.transfer.axes or ())
    if site.transfer.kind not in _SUMS or not over or not over <= axes or site.phase not in _BOTH:
        return None
    operand = program.moving(site)
    products = [] if operand is None else _added(program, operand)
    sides = [side for product in products if (side := _weight_side(program, product, over)) is not None]
    if not products or len(sides) < len(products):
        return None
    number, weight = sides[0]
    columns, sizes = _columns(products[0], number), arrays(products[0].instruction.shape)[0].dims
    return None if columns is None else _Summed(site, weight, prod(sizes) // prod(sizes[dim] for dim in columns))


def _columns(product: Place, weight: int) -> list[int] | None:
    """The dims of a product that are those of the weight, its operand of this number; TPUs print a dim of rows as a
    window of 1 over the weight."""
    letters, shapes = letters_of(*product), operand_shapes(*product)
    if letters is None or len(shapes) <= weight:
        return None
    sizes = dict(zip(letters[weight], shapes[weight].dims, strict=False))
    result = zip(letters[2], arrays(product.instruction.shape)[0].dims, strict=False)
    return [dim for dim, (name, size) in enumerate(result) if sizes.get(name) == size]


def _added(program: Program, place: Place) -> list[Place]:
    """The products that a value is, or is the sum of; [] where anything else is added."""
    pending, found = [place], list[Place]()
    for _ in range(_FARTHEST):
        if not pending:
            return found
        source = program.flow.source(*pending.pop(), through=_FILLED)
        if source.instruction.opcode == "add":
            pending += [side for number in (0, 1) if (side := program.operand(source, number)) is not None]
        elif source.instruction.opcode in PRODUCTS:
            found.append(source)
        else:
            return []
    return []


def _weight_side(program: Program, product: Place, over: set[str]) -> tuple[int, Argument] | None:
    """Which operand is an argument that these axes split, or a part of one."""
    for number in (0, 1):
        for argument in _weights(program, product, number):
            if over <= {*chain.from_iterable(argument.dims or ())}:
                return number, argument
    return None


def _weights(program: Program, place: Place, number: int) -> list[Argument]:
    """The arguments that an operand is, or is made of element by element, as a quantized weight and its scales are; []
    of activations."""
    if (argument := _argument(program, place, number)) is not None:
        return [argument]
    operand, seen = program.operand(place, number), set[tuple[str, str]]()
    pending, found = [] if operand is None else [operand], list[Argument]()
    while pending and len(seen) < _FARTHEST:
        source = program.flow.source(*pending.pop(), through=_MOVES | _CUTS | {"broadcast"})
        key = source.computation.name, source.instruction.name
        if (argument := program.argument_at(source)) is not None:
            found.append(argument)
        elif source.instruction.opcode in ELEMENTWISE and key not in seen:
            sides = [program.operand(source, each) for each in range(len(source.instruction.operands))]
            pending += [side for side in sides if side is not None]
        elif source.instruction.opcode != "constant":
            return []
        seen.add(key)
    return [] if pending else found


def _is_cut_by_rows(program: Program, summed: _Summed) -> bool:
    """Each device keeps rows of its own of the sum, as where sequences are split between layers."""
    site = summed.site
    operand = known(program.moving(site))
    cut = _cut_dim(program, site)
    if cut is None:
        return False
    way = list(program.flow.back(*operand))
    product, steps = way[-1], [place.instruction for place in reversed(way[:-1])]
    side = _weight_side(program, product, set(site.transfer.axes or ()))
    columns = None if side is None else _columns(product, side[0])
    return columns is None or all(followed(dim, product.instruction.shape, steps) != cut for dim in columns)


def _cut_dim(program: Program, site: Site) -> int | None:
    """The dim along which the devices that sum divide the sum among them."""
    if site.transfer.kind == Kind.REDUCE_SCATTER:
        return site.gathered[0]
    cuts = [use.instruction for use in own_slices(program.flow, program.uses(site)) if use.instruction]
    kept = arrays(cuts[0].shape)[0].dims if cuts else site.result.dims
    return next((dim for dim, (a, b) in enumerate(zip(kept, site.result.dims, strict=False)) if a != b), None)


def _gathered_rows(program: Program, site: Site, axes: frozenset[str]) -> int | None:
    """Of a gather of the backward pass, for a product with a part of a weight that the forward pass gathers, how many
    rows that has."""
    over = set(site.transfer.axes or ())
    if site.kind != Kind.ALL_GATHER or site.phase != Phase.BACKWARD or not over or not over <= axes:
        return None
    for use in program.uses(site):
        if use.opcode not in PRODUCTS or use.number > 1:
            continue
        product = Place(known(use.instruction), use.computation)
        weight = _argument(program, product, 1 - use.number, through=_CUTS)
        columns, sizes = _columns(product, 1 - use.number), arrays(product.instruction.shape)[0].dims
        if weight is not None and columns is not None and _is_gathered_forward(program, weight, over):
            return prod(sizes) // prod(sizes[dim] for dim in columns)
    return None


def _is_gathered_forward(program: Program, weight: Argument, over: set[str]) -> bool:
    gathers = (s for s in program.inserted if s.kind == Kind.ALL_GATHER and s.phase == Phase.FORWARD)
    return any(
        over <= set(site.transfer.axes or ()) and program.argument_of(*operand, through=_MOVES | _CUTS) == weight
        for site in gathers
        if (operand := program.moving(site)) is not None
    )


def _is_of_rows(program: Program, site: Site, axes: frozenset[str], rows: int) -> bool:
    """It reduces, gathers or exchanges something of every row of the whole batch, such as the norms of rows."""
    over, operand = set(site.transfer.axes or ()), program.moving(site)
    is_in_pass = bool(over) and over <= axes and site.phase in _BOTH
    if not is_in_pass or operand is None or site.result.dtype in _NUMBERS or rows == 1:
        return False
    is_exchanged = site.kind == Kind.ALL_TO_ALL
    if site.result.elements * ((site.transfer.group_size or 1) if is_exchanged else 1) % rows:
        return False
    if is_exchanged or site.kind == Kind.ALL_GATHER:
        return program.argument_of(*operand, through=_MOVES | _CUTS) is None
    return site.transfer.kind in _SUMS and program.flow.source(*operand).instruction.opcode == "reduce"


def _forward(program: Program) -> Iterator[Place]:
    """Its lookups and products."""
    for computation in program.module.computations.values():
        for i in computation.instructions:
            is_one = i.opcode == "gather" or i.opcode in PRODUCTS
            if is_one and phase(i.op_name, program.is_differentiated) == Phase.FORWARD:
                yield Place(i, computation)


def _meetings(program: Program, batches: list[Argument]) -> Iterator[_Meeting]:
    for place in _forward(program):
        for number in (0,) if place.instruction.opcode == "gather" else (0, 1):
            weight, batch = _argument(program, place, number), _alone(program, place, 1 - number)
            if batch is None or batch not in batches or weight is None or weight in batches:
                continue
            if batch.local.dtype in _NUMBERS or not program.flow.loops(place.computation):
                yield _Meeting(batch, weight, place)


def _argument(
    program: Program, place: Place, number: int = 0, through: frozenset[str] = _MOVES | _CUTS
) -> Argument | None:
    """That an operand is, or is a part of."""
    operand = program.operand(place, number)
    source = None if operand is None else program.flow.source(*operand, through=through)
    if source is None or (source.instruction.opcode != "concatenate" and _JOINS not in source.instruction.tail):
        return None if source is None else program.argument_at(source)
    return _argument(program, source, through=through)


def _alone(program: Program, place: Place, number: int) -> Argument | None:
    """The only argument that an operand is made of."""
    operand = program.operand(place, number)
    pending, seen = [] if operand is None else [operand], set[tuple[str, str]]()
    found: dict[int, Argument] = {}
    while pending and len(seen) < _FARTHEST and len(found) < 2:
        source = program.flow.source(*pending.pop(), through=_MOVES)
        key = source.computation.name, source.instruction.name
        if (argument := program.argument_at(source)) is not None:
            found[argument.number] = argument
        elif key not in seen:
            seen.add(key)
            sides = [program.operand(source, n) for n in range(len(source.instruction.operands))]
            pending += [side for side in sides if side is not None]
    return next(iter(found.values())) if len(found) == 1 and not pending else None


def _dims_of(program: Program, meeting: _Meeting) -> Dims:
    """Of what it gives: those of the batch, without the outer ones that loops go through."""
    dims = known(meeting.batch.dims)
    for _ in program.flow.loops(meeting.place.computation):
        dims = dims if dims[0] else dims[1:]
    while dims and not dims[-1]:
        dims = dims[:-1]
    return dims


def _pins(program: Program, meetings: Iterable[_Meeting]) -> Iterator[PinOperand]:
    for meeting in meetings:
        if name := meeting.place.instruction.op_name:
            yield PinOperand(name, None, _dims_of(program, meeting), meeting.weight.whole(known(program.axes)))


def _gathered_instead(
    program: Program, axes: frozenset[str], meetings: list[_Meeting], rows: int, passes: int
) -> Fraction:
    """At most: each split weight gathered for each pass, gradients summed, and the rows that the batch first becomes
    moved to where they belong."""
    tables = {meeting.weight.number: meeting.weight for meeting in meetings}
    batches = [meeting.batch for meeting in meetings]
    gathered, width = dict[int, Argument](), dict[int, int]()
    for place in _forward(program):
        for number, shape in enumerate(operand_shapes(*place)[:2]):
            for weight in _weights(program, place, number):
                if weight not in batches and _parts(program, weight, axes) > 1:
                    # Compilers gather what is made of a narrower weight, too.
                    own, is_made = bits(weight.local.dtype), _argument(program, place, number) is None
                    width[weight.number] = max(width.get(weight.number, own), bits(shape.dtype) if is_made else own)
                    gathered[weight.number] = weight
    gathered |= tables
    trained = [a for a in program.arguments if program.is_differentiated and a.local in _results(program)]
    devices = prod(known(program.axes)[axis] for axis in axes)
    found = Fraction(0)
    for weight in gathered.values():
        parts = _parts(program, weight, axes)
        size = weight.local.elements * width.get(weight.number, bits(weight.local.dtype)) // 8
        found += passes * wire_bytes(Kind.ALL_GATHER, size * parts, parts)
    for weight in trained:
        is_read = weight.number in gathered or is_weight(program, weight)
        whole = weight.local.bytes * _parts(program, weight, axes)
        found += wire_bytes(Kind.ALL_REDUCE, whole, devices) if is_read else 0
    for table in tables.values():
        row = Fraction(table.local.bytes, table.local.dims[0] or 1)
        found += passes * rows * row * Fraction(devices - 1, devices)
    return found


def _parts(program: Program, argument: Argument, axes: frozenset[str]) -> int:
    """Over how many devices along these axes it is split."""
    return prod(known(program.axes)[axis] for axis in axes & {*chain.from_iterable(argument.dims or ())})


def _results(program: Program) -> tuple[Shape, ...]:
    root = known(program.module.entry).root
    return () if root is None else arrays(root.shape)
