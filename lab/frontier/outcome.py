"""What one compiled variant of a step comes to, on one device."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lab.core.codec import Count
from lab.core.ledger import Ledger, Transfer
from lab.core.room import Room
from lab.diagnosis.program import Program
from lab.hlo.kernels import Choice, Collective, Copy, Kernel, Loop, Step, steps_of
from lab.measure.prediction import SecondsJson, predicted
from lab.measure.rates.table import Basis
from lab.measure.step_time import Taken
from lab.meshes.errors import UsageError


@dataclass(frozen=True)
class Outcome:
    """Of a step.

    Attributes:
      wire: bytes that a device sends, by the axes that they cross: `fsdp+tensor`.
      flops: of products; null where the text does not tell them.
      peak: bytes held at most; without a peak of the backend's, of arguments, results and temporaries together; null
        where nothing is known.
      fits: null where nobody knows the memory of the device.
      seconds: null where the target's chip has no rates, or the text does not tell how often a loop runs.
      coverage: shares of the seconds that rest on each basis.
      is_known: nine tenths of the seconds, and each of the transfers, rest on some rate; else they are a lower bound.
      ledger, schedule: digests: equal where the transfers, and all that runs in its order, are.
      lower_bound, upper_bound: of the bytes sent, as `Totals` has them.
    """

    wire: Mapping[str, Fraction]
    flops: Count | None
    peak: Count | None
    fits: bool | None
    seconds: SecondsJson | None
    coverage: Mapping[Basis, float]
    is_known: bool
    ledger: str
    schedule: str
    lower_bound: bool = False
    upper_bound: bool = False

    @classmethod
    def of(cls, program: Program, by_trip: Sequence[Collection[Taken]] = ()) -> Outcome:
        """Args: by_trip: see `lab.measure.prediction.predicted`.

        Raises:
          UsageError: its text could not be read whole.
        """
        ledger = program.ledger
        if not ledger.is_complete:
            raise UsageError(f"its text could not be read whole: {'; '.join(ledger.notes)}")
        sent = ledger.totals()
        try:
            time = predicted(program, by_trip)
        except UsageError:
            time = None
        peak, room = _peak(ledger), Room.of(program.target)
        return cls(
            {axes: total.wire_bytes for axes, total in ledger.totals_by(lambda t: t.span).items() if total.wire_bytes},
            ledger.flops,
            peak,
            room.fits(peak) if room and peak is not None else None,
            SecondsJson(**vars(time.time), low=time.low, high=time.high) if time else None,
            time.coverage if time else {},
            time is not None and time.is_known,
            _digest(sorted(Counter(map(_content, ledger.transfers)).items())),
            _digest(tuple(_unnamed(steps_of(program.module), {}))),
            sent.lower_bound,
            sent.upper_bound,
        )

    @property
    def wire_bytes(self) -> Fraction:
        return sum(self.wire.values(), Fraction(0))

    @property
    def bound(self) -> str:
        """What stands before the bytes sent."""
        if self.upper_bound:
            return "about " if self.lower_bound else "at most "
        return "at least " if self.lower_bound else ""

    @property
    def step(self) -> float | None:
        return self.seconds.total if self.seconds else None

    def is_same(self, other: Outcome) -> bool:
        """In transfers, schedule, products, memory, and seconds, which devices in another order change alone."""
        return (self.ledger, self.schedule, self.flops, self.peak, self.seconds) == (
            other.ledger,
            other.schedule,
            other.flops,
            other.peak,
            other.seconds,
        )


def _peak(ledger: Ledger) -> int | None:
    memory = ledger.memory
    if memory is None:
        return None
    return memory.stays + memory.temporaries if memory.peak is None else memory.peak


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _content(t: Transfer) -> str:
    """What is sent, where, and how it is started, whatever the instruction is called."""
    what = (t.kind, t.axes, t.sub_axes, t.group_size, t.executions, t.dtype, t.payload_bytes, t.shift)
    return repr((*what, t.link, t.overlap))


def _unnamed(some: Sequence[Step], numbers: dict[str, int]) -> Iterator[object]:
    """Steps in their order; starts and ends go by numbers in place of names, which differ where nothing else does."""
    for step in some:
        if isinstance(step, Kernel):
            yield repr(replace(step, name="", op_name=""))
        elif isinstance(step, Collective | Copy):
            number = numbers.setdefault(step.name, len(numbers))
            yield repr(replace(step, name=str(number)))
        elif isinstance(step, Loop):
            yield step.trips, tuple(_unnamed(step.body, numbers))
        elif isinstance(step, Choice):
            yield tuple(tuple(_unnamed(branch, numbers)) for branch in step.branches)
