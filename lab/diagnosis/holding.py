"""What fills the memory of one device: state by kind, and the largest temporaries of the fullest moment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from lab.core.room import Room
from lab.diagnosis.flow import Place
from lab.diagnosis.program import Program
from lab.hlo.flops import operand_shapes
from lab.hlo.host_memory import HOST
from lab.hlo.names import scope
from lab.hlo.shapes import arrays
from lab.meshes.platforms import Platform

PARAMETERS, MOMENTS, CACHE, BATCH, OTHERS = "parameters", "moments", "cache", "batch", "others"
SHOWN = 10
_WORDS = re.compile(r"[a-z]\w*")
_FIRST = {MOMENTS: {"m", "v"}, PARAMETERS: {"w", "ws", "p"}, BATCH: {"x", "y", "xs", "ys"}}
"""Letters that say it where they are an argument's whole name; inside one, `v` may be a weight of values."""
_ANYWHERE = {
    MOMENTS: {"mu", "nu", "moments", "momentum", "exp_avg", "exp_avg_sq", "opt_state", "optimizer", "opt", "trace"},
    PARAMETERS: {"params", "param", "parameters", "weights", "weight", "model", "master", "kernel", "embedding"},
    BATCH: {"batch", "inputs", "input", "tokens", "targets", "labels", "mask", "positions", "images"},
}
_WRITES = frozenset({"dynamic-update-slice", "scatter"})
_KEEPS = _WRITES | {"select"}
"""A device that a write does not fall to keeps what it has."""
_LAYER = frozenset({"dynamic-slice"})


@dataclass(frozen=True)
class HeldBuffer:
    """A temporary that is held at the fullest moment: bytes, named scopes and line of what makes it."""

    bytes: int
    scope: str
    origin: str | None


def state(program: Program) -> Mapping[str, int]:
    """Bytes of the arguments in a device's memory, by what their names say that they are, and those that say nothing of
    state by what is done with them; the largest first."""
    found, kind_of = Counter[str](), kinds(program)
    unsaid = {number for number, kind in kind_of.items() if kind in (BATCH, OTHERS)}
    kind_of |= dict.fromkeys(_written_in_part(program, unsaid), CACHE)
    for argument in program.arguments:
        if HOST not in argument.place.instruction.shape:
            found[kind_of[argument.number]] += argument.local.bytes
    return dict(found.most_common())


def kinds(program: Program) -> dict[int, str]:
    """What each argument is by its name, by its number."""
    words = {argument.number: _WORDS.findall(argument.name.lower()) for argument in program.arguments}
    # Beside `q` and `k`, `v` is no moment.
    has_both = _FIRST[MOMENTS] <= {each[0] for each in words.values() if each}
    return {number: _kind(each, has_both) for number, each in words.items()}


def _kind(words: list[str], has_both_moments: bool) -> str:
    for kind in (MOMENTS, PARAMETERS):
        may_be_letter = kind != MOMENTS or has_both_moments
        if _ANYWHERE[kind] & set(words) or (may_be_letter and _FIRST[kind] & set(words[:1])):
            return kind
    if words and words[0].startswith("w_"):
        return PARAMETERS
    if any("cache" in word for word in words):
        return CACHE
    return BATCH if _ANYWHERE[BATCH] & set(words) or _FIRST[BATCH] & set(words[:1]) else OTHERS


def _written_in_part(program: Program, among: Container[int]) -> Iterator[int]:
    """Arguments that a step gives back with at most half of them overwritten, at once or a layer at a time in a loop:
    what decoding keeps of the tokens before."""
    root = program.module.entry.root if program.module.entry else None
    shapes = arrays(root.shape) if root else ()
    for write in map(Place._make, program.module.having(_WRITES)):
        into = program.operand(write) if _overwrites_little(program, write) else None
        argument = None if into is None else program.argument_of(*into, through=_LAYER)
        if argument is not None and argument.number in among:
            ends = (use.number for use in program.flow.uses(*write, _KEEPS) if use.opcode is None)
            if any(shapes[end : end + 1] == (argument.local,) for end in ends):
                yield argument.number


def _overwrites_little(program: Program, write: Place) -> bool:
    """A scatter that adds is a sparse gradient's."""
    combine = program.module.computations.get(write.instruction.attribute("to_apply") or "")
    if combine is not None and combine.root is not None and combine.root.opcode != "parameter":
        return False
    whole, *rest = operand_shapes(*write) or (None,)
    written = rest[1:] if write.instruction.opcode == "scatter" else rest
    return whole is not None and bool(written) and 2 * written[0].elements <= whole.elements


def at_peak(program: Program) -> tuple[HeldBuffer, ...]:
    """The largest temporaries of the fullest moment. On GPUs XLA tells them in another compilation, which is made where
    the peak has no room."""
    room, memory = Room.of(program.target), program.ledger.memory
    fits = room is None or memory is None or memory.peak is None or room.fits(memory.peak)
    held = () if fits and program.platform == Platform.GPU else program.held()[:SHOWN]
    names = {buffer.op_name for buffer in held if buffer.op_name}
    made = {i.op_name: i for c in program.module.computations.values() for i in c.instructions if i.op_name in names}
    return tuple(
        HeldBuffer(
            buffer.size, scope(buffer.op_name), program.origin(made[buffer.op_name]) if buffer.op_name in made else None
        )
        for buffer in held
    )
