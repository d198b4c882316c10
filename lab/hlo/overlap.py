"""What a schedule has to hide a transfer behind: products between its start and where it is awaited."""

from __future__ import annotations

from collections.abc import Collection

from lab.hlo.text import RUNS_CALLEE, Instruction, Module
from lab.hlo.walk import Visit, computations_that_hold, outermost

_OF_GPUS = '"collective_backend_config"'
_SYNC = '"is_sync":true'


def is_gpu_schedule(module: Module, transfers: Collection[Visit]) -> bool:
    """Whether the order of instructions is that in which a GPU runs them; other compilers' texts do not tell."""
    return "is_scheduled=true" in module.first_line and any(_OF_GPUS in _tails(visit) for visit in transfers)


def over_products(module: Module, products: Collection[Instruction]) -> frozenset[Instruction]:
    """The starts of pairs between which some product runs, or a loop or branch that has one."""
    holds, found = computations_that_hold(module, frozenset(products)), set[Instruction]()
    starts, dones = (frozenset(code for code in module.opcodes if code.endswith(end)) for end in ("-start", "-done"))
    told = starts | dones | RUNS_CALLEE | {i.opcode for i in products}
    for computation in {where.name: where for _, where in module.having(starts)}.values():
        running: dict[str, Instruction] = {}
        for i in computation.instructions.having(told):
            if i.opcode in starts:
                running[i.name] = i
            elif i.opcode in dones:
                running = {name: start for name, start in running.items() if name not in i.operands}
            elif i in products or not holds.isdisjoint(i.callees):
                found.update(running.values())
    return frozenset(found)


def is_over_products(visit: Visit, starts: Collection[Instruction]) -> bool:
    """Whether a transfer is of one of these pairs, and does not block where it starts."""
    return outermost(visit).instruction in starts and _SYNC not in _tails(visit)


def _tails(visit: Visit) -> str:
    """Of the instruction, and of a call of it alone."""
    return visit.instruction.tail + outermost(visit).instruction.tail
