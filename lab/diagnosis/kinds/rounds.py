"""What a loop sends in every round and need not: a ring's last message, sums that one gather before it would spare,
and a condition that all devices agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

from lab.core.known import known
from lab.core.units import bytes_text, exact, scaled
from lab.diagnosis.cost import Load, pays, rated
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Place, Use
from lab.diagnosis.invariant import is_invariant
from lab.diagnosis.kinds.accumulation import trips
from lab.diagnosis.numbers import number_on
from lab.diagnosis.program import Program, Site, dtype_of_product, largest, operation, sent
from lab.diagnosis.slices import ELEMENTWISE
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import Computation, Instruction

_SMALLEST = 1024
_FARTHEST = 1000
_LAST = " for the next one, and nothing reads what the last sends"
_FIRST = ", of which the first is a constant with which the loop begins"
_MOVED = " for the next one, where the compiler sends it, and nothing reads the first"
_ALLOCATED = 'custom_call_target="AllocateBuffer"'
_AS_IT_IS = frozenset({"copy", "bitcast", "collective-permute-done", "async-done", "copy-start", "copy-done"})


def last_message_unused(program: Program) -> Iterator[Finding]:
    """Permutes whose results only the next iteration reads: nothing reads what the last iteration sends. Compilers for
    GPUs move some to the start of the next iteration, and the backward pass has them there: then nothing reads what the
    first sends, or that is the constant with which the loop begins."""
    ways: dict[tuple[str, str], list[Site]] = {}
    bodies: dict[str, Computation] = {}
    for site in program.sites:
        body = site.visit.computation
        if site.kind == "collective_permute" and (end := _needless_end(program, site)):
            ways.setdefault((body.name, end), []).append(site)
            bodies[body.name] = body
    for (name, end), sites in ways.items():
        every, copies = _with_copies(program, sites)
        often, now, once = copies * (trips(program, bodies[name]) or 0), sent(every), sent(sites)
        needed = now - once * copies / often if often else now
        if often > 1 and now >= _SMALLEST:
            hand = "a permute hands" if len(sites) == 1 else f"{len(sites)} permutes hand"
            most = largest(sites)
            what = _carried_on(program, most) if end == _FIRST else program.moved(most)
            sentence = (
                f"{hand} {what} on in each of {often} iterations{end}: {often - 1} "
                f"would do, and each device would send {exact(needed)} B instead of {exact(now)}"
            )
            beside = "after it" if end == _LAST else "after it (before it, if it begins with the permute)"
            advice = (
                f"let the loop run {often - 1} times, and do {beside}, without the permute, what an "
                "iteration does with the value"
            )
            yield program.finding("last_message_unused", sentence, advice, *every, needed_bytes=needed)


def _with_copies(program: Program, sites: list[Site]) -> tuple[list[Site], int]:
    """These and the permutes of the same names that hand on to them or get from them, where a compiler has made one
    iteration of several; and of how many."""
    names = {(site.visit.computation.name, site.op_name) for site in sites}
    alike = [s for s in program.sites if s.kind == sites[0].kind and (s.visit.computation.name, s.op_name) in names]
    if len(alike) == len(sites):
        return sites, 1
    own = {_name(site.place) for site in sites}
    before = set[tuple[str, str]]().union(*(_needs(program, site) for site in sites))
    every = [s for s in alike if s in sites or _name(s.place) in before or own & _needs(program, s)]
    copies, rest = divmod(len(every), len(sites))
    return (sites, 1) if rest else (every, copies)


def _needs(program: Program, site: Site) -> set[tuple[str, str]]:
    """All that is computed for what it sends."""
    pending, seen = [program.moving(site)], set[tuple[str, str]]()
    while pending and len(seen) < _FARTHEST:
        place = pending.pop()
        source = None if place is None else program.flow.source(*place)
        if source is not None and _name(source) not in seen:
            seen.add(_name(source))
            pending += [program.operand(source, number) for number in range(len(source.instruction.operands))]
    return seen


def _name(place: Place) -> tuple[str, str]:
    return place.computation.name, place.instruction.name


def _needless_end(program: Program, site: Site) -> str:
    """Which of a permute's messages no iteration needs, for people; "" where each is needed."""
    if _is_for_next_alone(program, site):
        return _LAST
    if site.is_written and _begins_constant(program, site):
        return _FIRST
    return _MOVED if _is_first_unread(program, site) else ""


def _begins_constant(program: Program, site: Site) -> bool:
    """It sends an element of a loop's state that is constant before the first iteration."""
    body = site.visit.computation
    loops = [place for place in program.flow.callers(body) if place.instruction.attribute("body") == body.name]
    element = _state_sent(program, site)
    if len(loops) != 1 or element is None:
        return False
    state = program.operand(loops[0])
    first = program.operand(state, element) if state is not None and state.instruction.opcode == "tuple" else None
    return first is not None and (_is_constant(program, first) or _ALLOCATED in program.flow.source(*first)[0].tail)


def _is_first_unread(program: Program, site: Site) -> bool:
    """All that is done with it is to select it, in all iterations but the first, which goes on with another value."""
    uses = program.uses(site)
    return bool(uses) and all(
        use.opcode == "select" and use.number in (1, 2) and _is_selected_later(program, use) for use in uses
    )


def _is_selected_later(program: Program, use: Use) -> bool:
    select = Place(known(use.instruction), use.computation)
    condition = program.operand(select)
    source = None if condition is None else program.flow.source(*condition)
    asked = program.operand(source) if source is not None and source.instruction.opcode == "broadcast" else condition
    chosen = [None if asked is None else number_on(program.flow, asked, None, iteration) for iteration in (0, 1)]
    return chosen == ([0, 1] if use.number == 1 else [1, 0])


def _is_constant(program: Program, place: Place) -> bool:
    return program.flow.source(*place, through=frozenset({"broadcast"})).instruction.opcode == "constant"


def _state_sent(program: Program, site: Site) -> int | None:
    """Which element of the state a permute sends; compilers for TPUs begin with memory as it is, and select a constant
    in its place in the first iteration."""
    operand, body = program.moving(site), site.visit.computation
    if operand is None:
        return None
    source = program.flow.source(*operand)
    if source.instruction.opcode != "select":
        return _state_element(program, operand, body)
    sides = [side for number in (1, 2) if (side := program.operand(source, number))]
    others = [side for side in sides if not _is_constant(program, side)]
    return _state_element(program, others[0], body) if len(others) == 1 else None


def _carried_on(program: Program, site: Site) -> str:
    """What a permute hands on, for people: of an element of a loop's state, what an iteration makes of it."""
    body, element = site.visit.computation, _state_sent(program, site)
    after = program.operand(Place(body.root, body), element) if body.root and element is not None else None
    made = None if after is None else operation(program.flow.source(*after).instruction.op_name)
    return f"the result of {made}" if made else program.moved(site)


def _state_element(program: Program, value: Place, body: Computation) -> int | None:
    """Which element of the state an iteration begins with a value is, laid out anew; None where it is none."""
    for i, c in program.flow.back(*value):
        if c is body and i.opcode == "get-tuple-element" and i.operands[0] in body.parameters:
            index = i.attribute("index")
            return int(index) if index and index.isdecimal() else None
    return None


def _is_for_next_alone(program: Program, site: Site) -> bool:
    """All that an iteration does with it is to carry it on, as elements of the state that nothing reads in the end."""
    body = site.visit.computation
    loops = [place for place in program.flow.callers(body) if place.instruction.attribute("body") == body.name]
    carried = _carried_as(program, site, lambda user: user.opcode in _AS_IT_IS)
    return len(loops) == 1 and bool(carried) and not any(_is_read_after(program, loops[0], one) for one in carried)


def _carried_as(program: Program, site: Site, passes: Callable[[Instruction], bool]) -> list[int]:
    """The elements of a loop's state that a value becomes by instructions that pass it on; [] where anything else is
    done with it."""
    body, found, pending, seen = site.visit.computation, list[int](), [site.visit.instruction.name], set[str]()
    several = {site.visit.instruction.name}  # What gives all that one instruction sends.
    if body.root is None or body.root.opcode != "tuple":
        return []
    while pending:
        name = pending.pop()
        seen.add(name)
        for user, number in program.flow.users(body, name):
            if user is body.root:
                found.append(number)
            elif user.opcode == "get-tuple-element" and name in several:
                pending += [user.name] if user.attribute("index") == str(site.number) else []
            elif not passes(user):
                return []
            elif user.name not in seen:
                pending.append(user.name)
                several |= {user.name} if name in several and user.opcode.endswith("-done") else set()
    return found


def _is_read_after(program: Program, loop: Place, element: int) -> bool:
    for user, _ in program.flow.users(loop.computation, loop.instruction.name):
        if user.opcode != "get-tuple-element":
            return True
        if user.attribute("index") == str(element) and (user.is_root or program.flow.uses(user, loop.computation)):
            return True
    return loop.instruction.is_root


def summed_every_round(program: Program) -> Iterator[Finding]:
    """Sums in each iteration of products of what the loop carries split, which cost more than to gather that once,
    before the loop, and to have every device compute all of it: Newton-Schulz iterations of a matrix, for instance."""
    by_loop: dict[str, list[Site]] = {}
    for site in program.inserted:
        by_loop.setdefault(site.visit.computation.name, []).append(site)
    for name, sites in by_loop.items():
        body = program.module.computations[name]
        is_of_sums = all(site.kind == "all_reduce" and site.transfer.axes == sites[0].transfer.axes for site in sites)
        often = trips(program, body) or 0
        if (
            is_of_sums
            and often > 1
            and sites[0].transfer.executions
            and not all(_is_only_stacked(program, site) for site in sites)
            and sent(sites) >= _SMALLEST
            and not any(i.opcode == "while" for i in body.instructions)
        ):
            yield from _instead_gathered(program, body, sites, often)


def _instead_gathered(program: Program, body: Computation, sites: list[Site], often: int) -> Iterator[Finding]:
    """The finding, if a gather pays in seconds at the chip's full rates, or at those of the reference."""
    axes, group = set(sites[0].transfer.axes or ()), sites[0].transfer.group_size or 1
    carried = _arrays_carried(program, body, axes)
    entered = Fraction(known(sites[0].transfer.executions), often)
    gathered = entered * sum(shape.bytes for shape in carried) * (group - 1)
    more = Counter[str]()
    for visit, work in program.reading.products:
        if body.name in program.flow.loops(visit.computation) and program.variation.along(visit) & axes:
            more[dtype_of_product(visit)] += (work.flops or 0) * (visit.executions or often) * (group - 1)
    now, then = sent(sites), Load({sites[0].transfer.link: gathered}, more)
    saved = Load({sites[0].transfer.link: now})
    if carried and more and pays(saved, then, rated(program).hardware):
        each = f" each of {exact(entered)} times" if entered > 1 else ""
        sentence = (
            f"a loop sums products of what it carries over {sites[0].transfer.span} in each of {often} iterations; "
            f"gathered once before the loop{each}, {bytes_text(sum(s.bytes for s in carried) * group)}, it would send "
            f"{exact(gathered)} B instead of {exact(now)}, and each device compute "
            f"{scaled(sum(more.values()), 'FLOP')} more"
        )
        advice = (
            "put the loop into jax.shard_map, behind jax.lax.all_gather(x, axis, tiled=True), and cut each device's "
            "part out after it; with sharding constraints on what the loop carries the compiler still splits it"
        )
        start = program.argument_behind(largest(sites))
        yield program.finding(
            "summed_every_round",
            sentence,
            advice,
            *sites,
            needed_bytes=gathered,
            added_flops=sum(more.values()),
            value=program.named(start) if start else "",
            write=program.in_specs(start),
        )


def _arrays_carried(program: Program, body: Computation, axes: set[str]) -> list[Shape]:
    """The arrays of the loop's state that an iteration reads and that differ along axes, as a device has them; [] where
    it changes none of these, as in a loop over batches that devices split."""
    elements = {
        index: Place(i, body)
        for i in body.instructions
        if i.opcode == "get-tuple-element"
        and i.operands[0] in body.parameters
        and (index := i.attribute("index")) is not None
        and _is_read(program, Place(i, body))
    }
    differing = [place for at, place in elements.items() if program.variation.of_state(body, int(at)) & axes]
    shapes = [arrays(place.instruction.shape)[0] for place in differing]
    is_changed = any(not is_invariant(program.flow, place, body) for place in differing)
    return [shape for shape in shapes if shape.elements > 1] if is_changed else []


def _is_only_stacked(program: Program, site: Site) -> bool:
    """No iteration goes on with it: gradients of layers, for instance."""
    uses = program.uses(site, ELEMENTWISE)
    return all(use.opcode == "dynamic-update-slice" and use.number == 1 for use in uses)


def _is_read(program: Program, place: Place) -> bool:
    """Something else is done with it than to write an iteration's results into it."""
    uses = program.flow.uses(*place)
    return any(use.opcode != "dynamic-update-slice" or use.number > 0 for use in uses)


def condition_reduced(program: Program) -> Iterator[Finding]:
    """A number that the condition of a while loop is made of, reduced over devices in every round."""
    for site in program.sites:
        loop = _loop_that_asks(program, site) if site.kind == "all_reduce" and site.result.elements == 1 else None
        if loop is not None and trips(program, loop) is None:
            sentence = (
                f"whether a while loop goes on is agreed on over {site.transfer.span} in every round, by an all-reduce "
                f"of {exact(site.transfer.payload_bytes)} B: each round waits for a message of all devices"
            )
            advice = (
                "ask every few rounds: let the body do several (jax.lax.fori_loop, or an unrolled step), and reduce "
                "once for them"
            )
            yield program.finding("condition_reduced", sentence, advice, site)


def _loop_that_asks(program: Program, site: Site) -> Computation | None:
    """The body of the loop whose condition is all that a number is for."""
    here = site.visit.computation
    for caller, around in program.flow.callers(here):
        body = program.module.called(around, caller.attribute("body"))
        condition = program.module.called(around, caller.attribute("condition"))
        if caller.opcode == "while" and body is not None and condition is not None:
            if here is condition:
                return body
            carried = _carried_as(program, site, _is_of_a_number)
            if carried and not any(_is_read_in(program, body, element) for element in carried):
                return body if any(_is_read_in(program, condition, element) for element in carried) else None
    return None


def _is_of_a_number(user: Instruction) -> bool:
    shapes = arrays(user.shape)
    is_number = len(shapes) == 1 and shapes[0].elements == 1
    return is_number and (user.opcode in _AS_IT_IS | ELEMENTWISE | {"fusion", "convert", "all-reduce-done"})


def _is_read_in(program: Program, computation: Computation, element: int) -> bool:
    taken = [
        i
        for i in computation.instructions
        if i.opcode == "get-tuple-element"
        and i.attribute("index") == str(element)
        and i.operands[0] in computation.parameters
    ]
    return any(program.flow.users(computation, i.name) for i in taken)
