"""Part VI: a first guess at a configuration, by the rules of Ch. 27 (`ch27.advisor`). A guess: what it gives need
neither fit nor be fast."""

from dataclasses import dataclass
from math import ceil, log2

from lab.book.checks import count, finite, positive


@dataclass(frozen=True)
class Guess:
    """Degrees, the ZeRO stage, sequences of a micro-batch and micro-batches a step."""

    data: int
    pipe: int
    tensor: int
    stage: int
    micro_batch: int
    micro_batches: int
    recompute: bool
    chunks: int


def first_guess(
    parameters: int, layers: int, embed: int, heads: int, devices: int, length: int, batch: int, memory_bytes: float
) -> Guess:
    """What the chapter's rules give for a model, a number of devices and a batch of sequences. Source: Ch. 27,
    `ch27.advisor` (6-8:D-53)."""
    count(devices=devices)
    positive(
        parameters=parameters,
        layers=layers,
        embed=embed,
        heads=heads,
        length=length,
        batch=batch,
        memory_bytes=memory_bytes,
    )
    finite(parameters=parameters, layers=layers, embed=embed, heads=heads, devices=devices, length=length, batch=batch)
    tensor = _dividing(min(_tensor(parameters, memory_bytes), devices), heads)
    pipe = _dividing(_pipe(layers, devices // tensor), layers)
    data = devices // (tensor * pipe)
    micro_batch = _micro_batch(2 * length * embed * layers / pipe, 0.2 * memory_bytes)
    stage = 1 if 14 * parameters / (tensor * pipe) <= 0.8 * memory_bytes or data < 4 else 2 if data < 8 else 3
    return Guess(
        data, pipe, tensor, stage, micro_batch, batch // data // micro_batch, parameters > 1e9, 2 if pipe >= 4 else 1
    )


def _tensor(parameters: int, memory_bytes: float) -> int:
    return (
        min(8, 2 ** ceil(log2(ceil(16 * parameters / (0.5 * memory_bytes))))) if 16 * parameters > memory_bytes else 1
    )


def _pipe(layers: int, ranks: int) -> int:
    if layers >= 64 and ranks >= 8:
        return min(8, layers // 8)
    return 4 if layers >= 32 and ranks >= 4 else 1


def _micro_batch(sequence_bytes: float, room_bytes: float) -> int:
    """Doubled while it has room, then halved."""
    size = 1
    while size * sequence_bytes < room_bytes and size < 32:
        size *= 2
    return max(1, size // 2)


def _dividing(degree: int, whole: int) -> int:
    while whole % degree:
        degree //= 2
    return degree
