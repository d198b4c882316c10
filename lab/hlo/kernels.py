"""What a compiled GPU program does, in its order: kernels with the bytes that they touch and the FLOPs of their
products, collectives, loops, branches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lab.hlo import collectives
from lab.hlo.flops import flops, operand_shapes
from lab.hlo.loops import Scope, trip_count
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction, parse

FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier fusion-done
    copy-done async-done async-update""".split()
)
"""Opcodes without a kernel of their own."""
PRODUCTS = ("dot", "convolution")
SLICES = ("dynamic-slice", "slice", "gather")


@dataclass(frozen=True)
class Kernel:
    """One launch.

    Attributes:
      bytes: read and written in device memory; of a stack that it takes a slice of, or puts one into, the slice's
        alone.
      is_scattered: it transposes the last dim away element by element, so that neighbours in a thread's order are none
        in memory.
    """

    name: str
    bytes: int
    flops: int
    is_scattered: bool = False


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
    return tuple(_steps(Scope(module, module.entry))) if module.entry else ()


def _steps(scope: Scope | None) -> Iterator[Step]:
    """Nothing of a computation that a cut text lacks."""
    if scope is None:
        return
    for i in scope.computation.instructions:
        opcode = i.opcode
        if opcode == "while":
            yield Loop(trip_count(i, scope), tuple(_steps(scope.body(i))))
        elif opcode == "conditional":
            yield Choice(tuple(tuple(_steps(branch)) for branch in scope.branches(i)))
        elif opcode in ("call", "async-start") and (callee := scope.callee(i)):
            yield from _steps(callee)
        elif opcode in collectives.OPCODES or opcode.removesuffix("-done") + "-start" in collectives.OPCODES:
            done = opcode.endswith("-done")
            yield Collective(i.operands[0] if done else i.name, starts=not done, awaits=not opcode.endswith("-start"))
        elif opcode not in FREE:
            yield _kernel(i, scope)


def _kernel(i: Instruction, scope: Scope) -> Kernel:
    if i.opcode in ("fusion", "fusion-start") and (inside := scope.callee(i)):
        return _fusion(i, inside.computation)
    operands, results = operand_shapes(i, scope.computation), arrays(i.shape)
    # The second result of a library's product is its workspace.
    written = results[0].bytes if i.opcode == "custom-call" and results else sum(shape.bytes for shape in results)
    if i.opcode in SLICES:
        return Kernel(i.name, 2 * written, 0)
    if i.opcode == "dynamic-update-slice":
        return Kernel(i.name, 2 * operands[1].bytes, 0)
    is_product = i.opcode in (*PRODUCTS, "custom-call")
    return Kernel(
        i.name,
        sum(shape.bytes for shape in operands) + written,
        (flops(i, scope.computation) or 0) if is_product else 0,
    )


def _fusion(i: Instruction, inside: Computation) -> Kernel:
    products = sum(flops(j, inside) or 0 for j in inside.instructions if j.opcode in PRODUCTS)
    scattered = i.attribute("kind") == "kLoop" and any(_moves_last_dim(j) for j in inside.instructions)
    return Kernel(i.name, _read(inside) + (_written(inside, inside.root) if inside.root else 0), products, scattered)


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
