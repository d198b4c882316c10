"""What a compiled GPU program does, in its order: kernels with the bytes that they touch and the FLOPs of their
products, collectives, loops, branches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lab.hlo import collectives
from lab.hlo.flops import Work, operand_shapes, products
from lab.hlo.loops import Scope
from lab.hlo.shapes import arrays
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, parse
from lab.hlo.walk import runs

FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier fusion-done
    copy-done async-done async-update""".split()
)
"""Opcodes without a kernel of their own."""
SLICES = ("dynamic-slice", "slice", "gather")
_KERNELS = ("fusion", "fusion-start", "custom-call", "custom-call-start")


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
      bytes: read and written in device memory; of a stack that it takes a slice of, or puts one into, the slice's
        alone.
      flops: of its products.
      elementwise_flops: of those that are multiplications and sums, and run on no matrix unit.
      is_scattered: it transposes the last dim away element by element, so that neighbours in a thread's order are none
        in memory.
    """

    name: str
    bytes: int
    flops: int
    is_scattered: bool = False
    elementwise_flops: int = 0


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
    """Branches, of which a device takes one."""

    branches: tuple[tuple[Step, ...], ...]


Step = Kernel | Collective | Loop | Choice


def steps(text: str) -> tuple[Step, ...]:
    """A scheduled module's entry, loops nested; nothing of a text without an entry."""
    module = parse(text)
    return tuple(_steps(Scope(module, module.entry), products(module))) if module.entry else ()


def _steps(scope: Scope, work: Mapping[Instruction, Work]) -> Iterator[Step]:
    for i in scope.computation.instructions:
        opcode = i.opcode
        if opcode == "while":
            yield from _loop(i, scope, work)
        elif opcode == "conditional":
            yield Choice(tuple(tuple(_steps(run.scope, work)) for run in runs(i, scope)))
        elif opcode in RUNS_CALLEE and opcode not in _KERNELS:
            for run in runs(i, scope):
                yield from _steps(run.scope, work)
        elif opcode in collectives.OPCODES or opcode.removesuffix("-done") + "-start" in collectives.OPCODES:
            done = opcode.endswith("-done")
            yield Collective(i.operands[0] if done else i.name, starts=not done, awaits=not opcode.endswith("-start"))
        elif fused := _fused_collective(i, scope):
            yield Collective(fused, starts=opcode != "fusion-done", awaits=opcode != "fusion-start")
        elif opcode not in FREE:
            yield _kernel(i, scope, work)


def _fused_collective(i: Instruction, scope: Scope) -> str | None:
    """The collective that a custom fusion is the kernel of, as XLA of jax 0.11.2 writes small reductions."""
    if i.opcode == "fusion-done":
        start = scope.computation.by_name.get(i.operands[0])
        return _fused_collective(start, scope) if start else None
    is_custom = i.opcode in ("fusion", "fusion-start") and i.attribute("kind") == "kCustom"
    fused = scope.callee(i) if is_custom else None
    return next((j.name for j in fused.computation.instructions.having(collectives.OPCODES)), None) if fused else None


def _loop(i: Instruction, scope: Scope, work: Mapping[Instruction, Work]) -> Iterator[Step]:
    """The condition of a loop is no work of the device, unless it communicates."""
    body, *conditions = [(run.times, tuple(_steps(run.scope, work))) for run in runs(i, scope)] or [(0, ())]
    condition = [step for _, tests in conditions if any(isinstance(s, Collective) for s in tests) for step in tests]
    yield from condition
    yield Loop(body[0], (*body[1], *condition))


def _kernel(i: Instruction, scope: Scope, work: Mapping[Instruction, Work]) -> Kernel:
    operands, results = operand_shapes(i, scope.computation), arrays(i.shape)
    # The second result of a library's product is its workspace.
    written = results[0].bytes if i.opcode == "custom-call" and results else sum(shape.bytes for shape in results)
    moved, is_scattered, multiplying = sum(shape.bytes for shape in operands) + written, False, [i]
    if i.opcode in ("fusion", "fusion-start") and (fused := scope.callee(i)):
        inside = fused.computation
        moved = _read(inside) + (_written(inside, inside.root) if inside.root else 0)
        is_scattered = i.attribute("kind") == "kLoop" and any(_moves_last_dim(j) for j in inside.instructions)
        multiplying = list(_all_inside(fused))
    elif i.opcode in SLICES:
        moved = 2 * written
    elif i.opcode == "dynamic-update-slice":
        moved = 2 * operands[1].bytes
    found = [work[j] for j in multiplying if j in work]
    flops, elementwise = (
        sum(one.flops or 0 for one in found if one.is_elementwise is alone) for alone in (False, True)
    )
    return Kernel(i.name, moved, flops, is_scattered, elementwise)


def _all_inside(scope: Scope) -> Iterator[Instruction]:
    """The instructions of a fused computation, and of those fused into it."""
    for i in scope.computation.instructions:
        yield i
        for run in runs(i, scope):
            yield from _all_inside(run.scope)


def _moves_last_dim(i: Instruction) -> bool:
    dims = [int(dim) for dim in re.findall(r"\d+", i.braced("dimensions") or "")] if i.opcode == "transpose" else []
    return bool(dims) and dims[-1] != len(dims) - 1


def _read(inside: Computation) -> int:
    return sum(_read_of(i, inside) for i in inside.instructions if i.opcode == "parameter")


def _read_of(parameter: Instruction, inside: Computation) -> int:
    """All of it, or what is sliced out of it; nothing of a stack that a slice is put into."""
    whole, part = sum(shape.bytes for shape in arrays(parameter.shape)), 0
    for user, via in _users(parameter, inside):
        if user.opcode in SLICES and user.operands[0] == via.name:
            part += sum(shape.bytes for shape in arrays(user.shape))
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != via.name:
            return whole
    return min(part, whole)


def _users(i: Instruction, inside: Computation) -> Iterator[tuple[Instruction, Instruction]]:
    for user in inside.users.get(i.name, ()):
        if user.opcode == "bitcast":
            yield from _users(user, inside)
        else:
            yield user, i


def _written(inside: Computation, i: Instruction) -> int:
    if i.opcode == "bitcast" and i.operands[0] in inside.by_name:
        return _written(inside, inside.by_name[i.operands[0]])
    if i.opcode == "tuple":
        return sum(_written(inside, inside.by_name[operand]) for operand in i.operands)
    if i.opcode == "dynamic-update-slice":
        return sum(shape.bytes for shape in arrays(inside.by_name[i.operands[1]].shape))
    return sum(shape.bytes for shape in arrays(i.shape))
