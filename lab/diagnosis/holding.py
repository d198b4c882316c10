"""What fills the memory of one device: state by kind, and the largest temporaries of the fullest moment."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lab.core.room import Room
from lab.diagnosis.program import Program
from lab.hlo.host_memory import HOST
from lab.hlo.names import scope
from lab.meshes.platforms import Platform

PARAMETERS, MOMENTS, BATCH, OTHERS = "parameters", "moments", "batch", "others"
SHOWN = 10
_WORDS = re.compile(r"[a-z]\w*")
_FIRST = {MOMENTS: {"m", "v"}, PARAMETERS: {"w", "ws", "p"}, BATCH: {"x", "y", "xs", "ys"}}
"""Letters that say it where they are an argument's whole name; inside one, `v` may be a weight of values."""
_ANYWHERE = {
    MOMENTS: {"mu", "nu", "moments", "momentum", "exp_avg", "exp_avg_sq", "opt_state", "optimizer", "opt", "trace"},
    PARAMETERS: {"params", "param", "parameters", "weights", "weight", "model", "master", "kernel", "embedding"},
    BATCH: {"batch", "inputs", "input", "tokens", "targets", "labels", "mask", "positions", "images", "cache"},
}


@dataclass(frozen=True)
class HeldBuffer:
    """A temporary that is held at the fullest moment: bytes, named scopes and line of what makes it."""

    bytes: int
    scope: str
    origin: str | None


def state(program: Program) -> Mapping[str, int]:
    """Bytes of the arguments in a device's memory, by what their names say that they are; the largest first."""
    found, kind_of = Counter[str](), kinds(program)
    for argument in program.arguments:
        if HOST not in argument.place.instruction.shape:
            found[kind_of[argument.number]] += argument.local.bytes
    return dict(found.most_common())


def kinds(program: Program) -> Mapping[int, str]:
    """What each argument is by its name, by its number."""
    words = {argument.number: _WORDS.findall(argument.name.lower()) for argument in program.arguments}
    # Beside `q` and `k`, `v` is no moment.
    has_both = _FIRST[MOMENTS] <= {each[0] for each in words.values() if each}
    return {number: _kind(each, has_both) for number, each in words.items()}


def _kind(words: list[str], has_both_moments: bool) -> str:
    for kind in (MOMENTS, PARAMETERS, BATCH):
        may_be_letter = kind != MOMENTS or has_both_moments
        if _ANYWHERE[kind] & set(words) or (may_be_letter and _FIRST[kind] & set(words[:1])):
            return kind
    return PARAMETERS if words and words[0].startswith("w_") else OTHERS


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
