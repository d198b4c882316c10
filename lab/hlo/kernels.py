"""What a compiled program does, in its order: kernels with the bytes that they touch, the FLOPs of their products and
what else takes their time, copies to and from the host, collectives, loops, branches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import prod
from typing import NamedTuple

from lab.hlo import calls, collectives, names
from lab.hlo.flops import Work, operand_shapes, operand_types, products
from lab.hlo.host_memory import HostCopy, host_copies, laid_out
from lab.hlo.loops import Scope
from lab.hlo.multiplied import Product, arithmetic, product_of
from lab.hlo.shapes import Shape, arrays
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, Module, parse
from lab.hlo.walk import runs

FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier fusion-done
    async-done async-update""".split()
)
"""Opcodes without a kernel of their own."""
_SCRATCHPAD = "S(1)"
_ENTRY_BY_ENTRY = ("bitcast", "copy", "convert")
_SAME_PLACE = "output_to_operand_aliasing={{}: (0, {})}"
"""Of a fusion in a fusion, which only calls its operand otherwise."""
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")
"""In place."""
_KERNELS = ("fusion", "fusion-start", "custom-call", "custom-call-start")
_FREE_CALLS = re.compile(
    r"Sharding$|SPMD|xla\.sdy\.|annotate_device_placement|MoveTo|PinTo|Pin$|Unpin$|LayoutConstraint|AllocateBuffer"
    r"|CreateBuffer|__nop|.*Bitcast|AsyncCollective|PrepareAsync|AssumeGather"
)
_PLAIN_CALLS = re.compile(r"__cudnn\$norm|cu_threefry|RngBitGenerator|X64|PadToStatic|SliceToDynamic")
"""Passes over their operands and results."""
_SORTING, _SCANNING = re.compile(r".*cub.*sort|.*TopK", re.I), re.compile(r".*cub.*scan", re.I)
_OPERATIONS = {
    **dict.fromkeys(("tanh", "erf", "sine", "cosine", "cbrt", "tan", "atan2", "remainder", "power"), 20),
    **dict.fromkeys(("log", "log-plus-one", "exponential-minus-one", "logistic"), 10),
    **dict.fromkeys(("exponential", "divide", "sqrt", "rsqrt"), 5),
    **dict.fromkeys(
        """parameter constant broadcast bitcast reshape transpose slice copy get-tuple-element tuple iota fusion
        concatenate pad dynamic-slice dynamic-update-slice gather scatter bitcast-convert convert""".split(),
        0,
    ),
}
"""Additions that an element takes, about; one of any other opcode."""
_MOST_OPERATIONS = 16
"""For each byte: up to 14 a pass was measured to take as long as its traffic (`random` of `lab bench rates`)."""
_ONE_ROW = re.compile(r"batch_size = 1\b")
_ROW = 128
"""From so many bytes in a piece on, memory gives all that it reads [B]."""
_SHORT = 1024
"""Elements that are sorted without going through device memory again and again."""
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class Does(StrEnum):
    """What the time of a kernel depends on."""

    PASS = "pass over memory"
    TRANSPOSE = "transpose"
    PRODUCT = "product"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    SORT = "sort"
    SCAN = "scan"
    GATHER = "gather"
    SCATTER = "scatter"
    ARITHMETIC = "arithmetic element by element"
    UNKNOWN = "unknown"


_BY_OPCODE = {
    "sort": Does.SORT,
    "reduce-window": Does.SCAN,
    "scatter": Does.SCATTER,
    "gather": Does.GATHER,
}


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
      bytes: read and written in device memory; of a stack that it takes a slice of, or puts one into, the slice's
        alone.
      flops: of its products.
      elementwise_flops: of those that are multiplications and sums, and run on no matrix unit.
      does: what decides its time; a transpose moves the last dim away element by element, so that neighbours in a
        thread's order are none in memory.
      product: the largest of its products.
      variant: what else its time depends on: the dtype of a convolution's arithmetic, and whether it is the gradient of
        the filter; the mask of attention; whether rows or elements are gathered or scattered, narrow ones if they have
        fewer than 32 bits; who sorts, and how long rows.
      target: what a custom call calls.
      cycles: that XLA's own model for TPUs expects it to take.
      op_name: what JAX calls it.
      elements: that a pass writes, of its largest result: of narrow ones threads write fewer bytes than memory takes.
    """

    name: str
    bytes: int
    flops: int
    elementwise_flops: int = 0
    does: Does = Does.PASS
    product: Product | None = None
    variant: str = ""
    target: str = ""
    cycles: int | None = None
    op_name: str = ""
    elements: int = 0


@dataclass(frozen=True)
class Copy:
    """A copy beside the kernels: to or from the host, or of a TPU's memory into its scratchpad. Of a pair of start and
    done `name` is the start's."""

    name: str
    starts: bool
    awaits: bool
    bytes: int
    is_host: bool


@dataclass(frozen=True)
class Collective:
    """Of a pair of start and done `name` is the start's."""

    name: str
    starts: bool
    awaits: bool


@dataclass(frozen=True)
class Loop:
    """Attributes: trips: None where the text does not tell."""

    trips: int | None
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Choice:
    """Branches, of which a device takes one.

    Attributes:
      scopes: the named scopes that the kernels of each branch lie in.
    """

    branches: tuple[tuple[Step, ...], ...]
    scopes: tuple[tuple[str, ...], ...] = ()


Step = Kernel | Copy | Collective | Loop | Choice


def steps(text: str) -> tuple[Step, ...]:
    """A scheduled module's entry, loops nested; nothing of a text without an entry."""
    return steps_of(parse(text))


def steps_of(module: Module) -> tuple[Step, ...]:
    """The same of a parsed one."""
    work = _Work(products(module), host_copies(module), _starters(module))
    return tuple(_steps(Scope(module, module.entry), work)) if module.entry else ()


class _Work(NamedTuple):
    products: Mapping[Instruction, Work]
    host_copies: Mapping[Instruction, HostCopy]
    starters: Mapping[tuple[str, ...], str]


def _steps(scope: Scope, work: _Work) -> Iterator[Step]:
    for i in scope.computation.instructions:
        opcode = i.opcode
        if opcode == "while":
            yield from _loop(i, scope, work)
        elif opcode == "conditional":
            branches = tuple(tuple(_steps(run.scope, work)) for run in runs(i, scope))
            yield Choice(branches, tuple(tuple(sorted(set(_scopes(branch)))) for branch in branches))
        elif opcode in RUNS_CALLEE and opcode not in _KERNELS:
            for run in runs(i, scope):
                yield from _steps(run.scope, work)
        elif opcode in collectives.OPCODES or opcode.removesuffix("-done") + "-start" in collectives.OPCODES:
            done = opcode.endswith("-done")
            yield Collective(i.operands[0] if done else i.name, starts=not done, awaits=not opcode.endswith("-start"))
        elif fused := _fused_collective(i, scope, work.starters):
            yield fused
        elif copy := _copy(i, scope, work.host_copies):
            yield copy
        elif opcode not in FREE and not (opcode.startswith("custom-call") and _FREE_CALLS.match(calls.target(i))):
            yield _kernel(i, scope, work.products)


def _scopes(some: Iterable[Step]) -> Iterator[str]:
    for step in some:
        if isinstance(step, Kernel):
            yield from names.scope(step.op_name).split("/")
        elif isinstance(step, Loop):
            yield from _scopes(step.body)
        elif isinstance(step, Choice):
            yield from (name for branch in step.scopes for name in branch)


def _copy(i: Instruction, scope: Scope, to_host: Mapping[Instruction, HostCopy]) -> Copy | None:
    start = scope.computation.by_name.get(i.operands[0]) if i.opcode == "copy-done" else i
    if start is None or (start.opcode != "copy-start" and start not in to_host):
        return None
    size = to_host[start].bytes if start in to_host else arrays(start.shape)[0].bytes
    return Copy(start.name, i is start, i.opcode != "copy-start", size, is_host=start in to_host)


def _fused_collective(i: Instruction, scope: Scope, starters: Mapping[tuple[str, ...], str]) -> Collective | None:
    """The collective that a fusion is the kernel of, as XLA of jax 0.11.2 writes small reductions, or that it starts or
    ends, as TPUs write asynchronous ones; fusions between these carry it on, and are kernels."""
    if i.opcode == "fusion-done":
        start = scope.computation.by_name.get(i.operands[0])
        found = _fused_collective(start, scope, starters) if start else None
        return found and replace(found, starts=False, awaits=True)
    fused = scope.callee(i) if i.opcode in ("fusion", "fusion-start") else None
    inside = next((j for j in fused.computation.instructions.having(collectives.OPCODES)), None) if fused else None
    if fused is None or inside is None:
        return None
    begun = starters.get(collectives.chain(inside) or ())
    if begun is not None:
        is_done = any("AsyncCollectiveDone" in rest for rest in fused.computation.instructions.rests)
        is_start = begun == inside.name
        return Collective(begun, is_start, is_done) if is_start or is_done else None
    is_kernel = i.attribute("kind") == "kCustom"
    return Collective(inside.name, starts=True, awaits=i.opcode == "fusion") if is_kernel else None


def _starters(module: Module) -> dict[tuple[str, ...], str]:
    """By chain, the piece of an asynchronous collective that starts it."""
    pieces = ((i, collectives.chain(i), where) for i, where in module.having(collectives.OPCODES))
    return {chain: i.name for i, chain, where in pieces if chain and collectives.starts_chain(where)}


def _loop(i: Instruction, scope: Scope, work: _Work) -> Iterator[Step]:
    """The condition of a loop is no work of the device, unless it communicates."""
    body, *conditions = [(run.times, tuple(_steps(run.scope, work))) for run in runs(i, scope)] or [(0, ())]
    condition = [step for _, tests in conditions if any(isinstance(s, Collective) for s in tests) for step in tests]
    yield from condition
    yield Loop(body[0], (*body[1], *condition))


def _kernel(i: Instruction, scope: Scope, work: Mapping[Instruction, Work]) -> Kernel:
    operands = operand_shapes(i, scope.computation)
    results: Sequence[Shape] = arrays(i.shape)
    # The second result of a library's product is its workspace.
    written = results[0].bytes if i.opcode == "custom-call" and results else in_memory(i.shape)
    moved, inside = sum(map(in_memory, operand_types(i, scope.computation))) + written, [(i, scope.computation)]
    if i.opcode in ("fusion", "fusion-start") and (fused := scope.callee(i)):
        root = fused.computation.root
        results = _results(fused, root, [_SCRATCHPAD in one for one in laid_out(i.shape)]) if root else []
        moved = _read(fused) + sum(shape.bytes for shape in results)
        inside = list(_all_inside(fused))
    elif i.opcode in SLICES:
        moved = 2 * written
    elif i.opcode == "dynamic-update-slice":
        moved, results = 2 * operands[1].bytes, [operands[1]]
    elif i.opcode == "scatter":
        moved = sum(shape.bytes for shape in (*operands[1:], *_scattered(operands)))
    found = [(j, where, work[j]) for j, where in inside if j in work]
    flops, elementwise = (
        sum(one.flops or 0 for _, _, one in found if one.is_elementwise is alone) for alone in (False, True)
    )
    multiplying = [product_of(j, where, one) for j, where, one in found if one.flops and not one.is_elementwise]
    cycles, target = _CYCLES.search(i.extras), calls.target(i) if i.opcode.startswith("custom-call") else ""
    does = _does(i, [j for j, _ in inside], found_unknown=any(one.flops is None for _, _, one in found), flops=flops)
    if does is Does.PASS and len(inside) > _MOST_OPERATIONS and _operations(inside) > _MOST_OPERATIONS * moved:
        does = Does.ARITHMETIC
    return Kernel(
        i.name,
        moved,
        flops,
        elementwise,
        does,
        max((one for one in multiplying if one), key=lambda one: one.flops, default=None),
        _variant(does, i, inside, work),
        target,
        int(cycles[1]) if cycles else None,
        i.op_name or "",
        max((shape.elements for shape in results), default=0) if does is Does.PASS and not target else 0,
    )


def _does(i: Instruction, inside: list[Instruction], found_unknown: bool, flops: int) -> Does:
    """Of several the one that takes longest, mostly."""
    if i.opcode.startswith("custom-call"):
        return _called(calls.target(i), flops)
    opcodes = {j.opcode for j in inside}
    if found_unknown:
        return Does.UNKNOWN
    if flops:
        return Does.PRODUCT
    if i.attribute("kind") in (None, "kLoop") and any(_moves_last_dim(j) for j in inside):
        return Does.TRANSPOSE if i.opcode != "transpose" or i.attribute("kind") else Does.PASS
    return next((does for opcode, does in _BY_OPCODE.items() if opcode in opcodes), Does.PASS)


def _called(target: str, flops: int) -> Does:
    if target.startswith("__cudnn$fmha"):
        return Does.ATTENTION_BACKWARD if "Backward" in target else Does.ATTENTION
    if "conv" in target.lower() and flops:
        return Does.CONVOLUTION
    if flops:
        return Does.PRODUCT
    if _SORTING.match(target):
        return Does.SORT
    if _SCANNING.match(target):
        return Does.SCAN
    return Does.PASS if _PLAIN_CALLS.match(target) else Does.UNKNOWN


def _operations(inside: list[tuple[Instruction, Computation]]) -> int:
    return sum(
        times * max((shape.elements for shape in (*arrays(i.shape), *_summed(i, where))), default=0)
        for i, where in inside
        if (times := _OPERATIONS.get(i.opcode, 1))
    )


def _summed(i: Instruction, where: Computation) -> Sequence[Shape]:
    return operand_shapes(i, where) if i.opcode == "reduce" else ()


def _variant(
    does: Does, i: Instruction, inside: list[tuple[Instruction, Computation]], work: Mapping[Instruction, Work]
) -> str:
    target = calls.target(i) if i.opcode.startswith("custom-call") else ""
    if does is Does.CONVOLUTION:
        some = [site for site in inside if work.get(site[0])]
        dtype = arithmetic(*max(some, key=lambda site: work[site[0]].flops or 0)) if some else ""
        return f"{dtype} to filter" if "BackwardFilter" in target else dtype
    if does in (Does.ATTENTION, Does.ATTENTION_BACKWARD):
        return work[i].mask if i in work else ""
    if does in (Does.GATHER, Does.SCATTER):
        pieces = [_piece(*site) for site in inside if site[0].opcode == str(does)]
        if max((size for size, _ in pieces), default=0) < _ROW:
            return "elements"
        return "narrow rows" if does is Does.SCATTER and min(width for _, width in pieces) < 4 else "rows"
    if does is Does.SORT:
        if "cub" in target:
            return "library" if _ONE_ROW.search(i.extras) else "library, rows"
        return "top_k" if target else _rows(inside)
    if does is Does.SCAN:
        return "narrow" if any(shape.bytes < 4 * shape.elements for shape in arrays(i.shape)) else ""
    return ""


def _piece(i: Instruction, where: Computation) -> tuple[int, int]:
    """Bytes that a gather reads, or a scatter writes, in one place; and of one element."""
    operands = operand_shapes(i, where)
    if not operands:
        return 0, 0
    width = operands[0].bytes // max(1, operands[0].elements)
    if i.opcode == "gather":
        sizes = [int(size) for size in re.findall(r"\d+", i.braced("slice_sizes") or "")]
    else:
        window = [int(dim) for dim in re.findall(r"\d+", i.braced("update_window_dims") or "")]
        sizes = [operands[-1].dims[dim] for dim in window if dim < len(operands[-1].dims)]
    return prod(sizes) * width, width


def _rows(inside: list[tuple[Instruction, Computation]]) -> str:
    """Whether what is sorted fits into a multiprocessor's own memory."""
    for i, _ in inside:
        if i.opcode == "sort" and (dims := re.findall(r"\d+", i.braced("dimensions") or "")):
            return "long rows" if arrays(i.shape)[0].dims[int(dims[0])] > _SHORT else "short rows"
    return ""


def _all_inside(scope: Scope) -> Iterator[tuple[Instruction, Computation]]:
    """The instructions of a fused computation, and of those fused into it."""
    for i in scope.computation.instructions:
        yield i, scope.computation
        for run in runs(i, scope):
            yield from _all_inside(run.scope)


def _moves_last_dim(i: Instruction) -> bool:
    dims = [int(dim) for dim in re.findall(r"\d+", i.braced("dimensions") or "")] if i.opcode == "transpose" else []
    return bool(dims) and dims[-1] != len(dims) - 1


def _read(inside: Scope) -> int:
    return sum(_read_of(i, inside) for i in inside.computation.instructions if i.opcode == "parameter")


def _read_of(parameter: Instruction, inside: Scope) -> int:
    """All of it, or what is sliced out of it; nothing of what a slice is put into, or elements are scattered to."""
    whole, part = in_memory(parameter.shape), 0
    for user, via in _users(parameter, inside.computation):
        if user.opcode in SLICES and user.operands[0] == via.name:
            part += sum(shape.bytes for shape in arrays(user.shape))
        elif user.opcode == "fusion" and (fused := inside.callee(user)):
            numbers = [number for number, operand in enumerate(user.operands) if operand == via.name]
            part += sum(
                _read_of(fused.computation.by_name[name], fused)
                for name, number in fused.computation.parameters.items()
                if number in numbers
            )
        elif user.opcode not in UPDATES or user.operands[0] != via.name or not _is_in_place(user, inside.computation):
            return whole
    return min(part, whole)


def _is_in_place(update: Instruction, inside: Computation) -> bool:
    """A slice that is put into an operand of the kernel, which is then a result: what is put into a value that the
    kernel makes, or of which it makes another, moves all of it."""
    if update.opcode == "scatter":
        return True
    into = _past_bitcasts(update.operands[0], inside)
    is_operand = into is not None and (into.opcode == "parameter" or _SAME_PLACE in into.tail)
    return is_operand and update in _made(inside)


def _made(inside: Computation) -> list[Instruction | None]:
    """Its results."""
    root = inside.root
    if root is None or root.opcode != "tuple":
        return [root and _past_bitcasts(root.name, inside)]
    return [_past_bitcasts(operand, inside) for operand in root.operands]


def _past_bitcasts(name: str, inside: Computation) -> Instruction | None:
    found = inside.by_name.get(name)
    while found is not None and found.opcode == "bitcast":
        found = inside.by_name.get(found.operands[0])
    return found


def _users(i: Instruction, inside: Computation) -> Iterator[tuple[Instruction, Instruction]]:
    """Past what a kernel makes entry by entry, and so of those alone that are read of it."""
    for user in inside.users.get(i.name, ()):
        is_passed_on = user.opcode in _ENTRY_BY_ENTRY or (user.opcode == "fusion" and _SAME_PLACE in user.tail)
        if is_passed_on and user is not inside.root:
            yield from _users(user, inside)
        else:
            yield user, i


def _results(inside: Scope, i: Instruction, in_scratchpad: Sequence[bool]) -> list[Shape]:
    """That are written in memory; of an update in place what is new.

    Args:
      in_scratchpad: whether each result is.
    """
    by_name = inside.computation.by_name
    if i.opcode == "tuple" and len(i.operands) == len(in_scratchpad):
        each = zip((by_name[operand] for operand in i.operands), in_scratchpad, strict=True)
        return [shape for one, near in each for shape in _results(inside, one, [near])]
    if i.opcode == "bitcast" and i.operands[0] in by_name:
        return _results(inside, by_name[i.operands[0]], in_scratchpad)
    if i.opcode == "fusion" and (fused := inside.callee(i)) and fused.computation.root:
        return _results(fused, fused.computation.root, in_scratchpad)
    if all(in_scratchpad):
        return []
    if i.opcode == "scatter":
        return _scattered(operand_shapes(i, inside.computation))
    is_update = i.opcode == "dynamic-update-slice" and _is_in_place(i, inside.computation)
    return list(arrays(by_name[i.operands[1]].shape if is_update else i.shape))


@lru_cache(maxsize=1 << 14)
def in_memory(type_: str) -> int:
    """Bytes of a type that lie in a device's memory, not in a TPU's scratchpad."""
    return sum(arrays(one)[0].bytes for one in laid_out(type_) if _SCRATCHPAD not in one)


def _scattered(operands: Sequence[Shape]) -> list[Shape]:
    """Read and written where a scatter puts its updates, the last third of its operands."""
    return 2 * list(operands[-(len(operands) // 2) :])
