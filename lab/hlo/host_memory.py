"""What lies in the host's memory and what is copied to it and back, by the memory space in layouts: `S(5)`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lab.core.ledger import HostCopies
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction, Module
from lab.hlo.walk import Visit

HOST = "S(5)"
OPCODES = frozenset({"copy", "copy-start", "dynamic-slice", "dynamic-update-slice"})
_LAID_OUT = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?")


@dataclass(frozen=True)
class HostCopy:
    """One execution; `to_host` or else to the device."""

    bytes: int
    to_host: bool


def host_copies(module: Module) -> dict[Instruction, HostCopy]:
    """The instructions that move bytes between the memories of a device and its host."""
    found = ((i, _copy(i, computation)) for i, computation in module.having(OPCODES))
    return {i: copy for i, copy in found if copy is not None}


def total(visits: Iterable[Visit], copies: dict[Instruction, HostCopy]) -> HostCopies | None:
    """Of a step; None where nothing is copied."""
    sums, is_bound = [0, 0], False
    for visit in visits:
        if copy := copies.get(visit.instruction):
            sums[copy.to_host] += copy.bytes * (1 if visit.executions is None else visit.executions)
            is_bound = is_bound or visit.executions is None
    return HostCopies(to_host=sums[True], to_device=sums[False], lower_bound=is_bound) if any(sums) else None


def _copy(i: Instruction, where: Computation) -> HostCopy | None:
    if i.opcode == "copy-start":
        ends = laid_out(i.shape)[:2]
        is_host = [HOST in end for end in ends]
        return HostCopy(arrays(ends[0])[0].bytes, is_host[0]) if is_host in ([True, False], [False, True]) else None
    if not i.operands:
        return None
    result, source = HOST in i.shape, HOST in _type(i.operands[0], where)
    if i.opcode == "dynamic-update-slice":
        update = _type(i.operands[1], where)
        return HostCopy(arrays(update)[0].bytes, True) if result and HOST not in update else None
    return HostCopy(arrays(i.shape)[0].bytes, result) if result != source else None


def laid_out(type_: str) -> list[str]:
    """The arrays of a type, each with its layout."""
    return [one for one in _LAID_OUT.findall(type_) if not one.startswith(("token[", "opaque["))]


def _type(name: str, where: Computation) -> str:
    found = where.by_name.get(name)
    return "" if found is None else found.shape
