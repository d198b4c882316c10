"""How long a compiled GPU step takes: its kernels one after the other at measured rates, its collectives beside them.

A collective is a kernel too, and begins between two others: one that is started while a kernel runs, or just before one
is launched, waits until that one ends. Every rate is a measurement of its own (`lab.measure.bench.rates`); none is
fitted to a step. Source: roofline (Ch. 8), alpha-beta (Ch. 13).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Transfer
from lab.core.units import count
from lab.hlo.kernels import Choice, Collective, Kernel, Loop, Step, steps
from lab.meshes.errors import UsageError

_UNKNOWN = "the time of the step is unknown"


@dataclass(frozen=True)
class Rate:
    """Seconds of any amount of work: alpha_s + work / per_s."""

    alpha_s: float
    per_s: float

    def seconds(self, work: float) -> float:
        return self.alpha_s + work / self.per_s


@dataclass(frozen=True)
class Curve:
    """Seconds of amounts that were measured, (bytes, seconds), the smallest first; a launch is part of each."""

    points: tuple[tuple[float, float], ...]

    def seconds(self, count: float) -> float:
        """Between two points on the line through them in logarithms; below the first its seconds, beyond the last at
        its rate."""
        sizes, seconds = np.array(self.points).T
        if count >= sizes[-1]:
            return float(count / sizes[-1] * seconds[-1])
        return float(np.exp(np.interp(np.log(max(count, 1)), np.log(sizes), np.log(seconds))))


@dataclass(frozen=True)
class Rates:
    """What one device was measured to do.

    Attributes:
      product: of FLOPs of a matrix product in bf16, its launch included.
      memory: of bytes read and written by kernels that add one to an array.
      scattered_bytes_per_s: of a kernel that transposes the last dim away, element by element.
      links: of wire bytes, by kind of collective.
      slowed_products, slowed_memory: seconds that such kernels lose for a second of communication beside them.
    """

    product: Rate
    memory: Curve
    scattered_bytes_per_s: float
    links: Mapping[Kind, Curve | Rate]
    slowed_products: float
    slowed_memory: float

    def kernel_s(self, kernel: Kernel) -> float:
        """The roofline: the slower of its product and its traffic."""
        if kernel.is_scattered:
            return max(self.memory.seconds(0), kernel.bytes / self.scattered_bytes_per_s)
        return max(self.product.seconds(kernel.flops) if kernel.flops else 0.0, self.memory.seconds(kernel.bytes))

    def transfer_s(self, transfer: Transfer) -> float:
        if transfer.kind not in self.links:
            raise UsageError(f"no measured rate of {transfer.kind}; measured are {', '.join(self.links)}")
        if transfer.wire_bytes is None:
            raise UsageError(f"{transfer.instruction}: its replica groups cannot be read, so that its time is unknown")
        return self.links[transfer.kind].seconds(float(transfer.wire_bytes))


@dataclass(frozen=True)
class MeasuredRates(Rates):
    """Those of links too, as `lab tour` records them."""

    links: Mapping[Kind, Curve]


@dataclass
class StepTime:
    """Seconds of a step: `total` is `products`, `memory`, `exposed` and `slowed` together.

    Attributes:
      communication: on the wire, hidden or not.
      exposed: what kernels wait for.
      slowed: what they lose to communication beside them.
    """

    total: float = 0.0
    products: float = 0.0
    memory: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0
    slowed: float = 0.0


def step_time(text: str, ledger: Ledger, rates: Rates, by_trip: Sequence[Collection[int]] = ()) -> StepTime:
    """Runs a scheduled text on two streams: kernels, and collectives one at a time.

    Args:
      ledger: of the same text, with its mesh.
      by_trip: the branches that some device takes, at each trip of the loop that runs so often and chooses; texts do
        not tell. By default any.
    Raises:
      UsageError: a loop of which it is not known how often it runs, none for `by_trip`, a collective without a measured
        rate, or that ends in another computation than it starts in; a ledger that is not complete, or of another text.
    """
    if not ledger.is_complete:
        raise UsageError(f"{ledger.source or 'the ledger'} is not complete: {_UNKNOWN}")
    found = steps(text)
    _check_met(found, ledger)
    run = _Run(rates, {known(t.instruction): rates.transfer_s(t) for t in ledger.transfers}, by_trip)
    if by_trip and not any(run.chooses(loop) for loop in _loops(found)):
        raise UsageError(
            f"branches of {len(by_trip)} trips were given, but no loop of the text has that many and a conditional"
        )
    run.through(found)
    if run.ends or run.waiting:
        raise UsageError(
            f"the text starts {', '.join((*run.ends, *run.waiting))} and does not wait for it in the same computation"
        )
    return run.spent


def _check_met(some: Iterable[Step], ledger: Ledger) -> None:
    """Every transfer of the ledger is met as often as it says, and no other."""
    met, listed = Counter[str](), Counter[str]()
    for name, times in _starts(some):
        met[name] += times
    for transfer in ledger.transfers:
        if transfer.executions is None:
            raise UsageError(f"the text does not say how often {transfer.instruction} runs: {_UNKNOWN}")
        listed[known(transfer.instruction)] += transfer.executions
    for name in sorted({*met, *listed}):
        if met[name] != listed[name]:
            raise UsageError(
                f"the ledger has {count(listed[name], 'execution')} of {name}, the kernels of the text {met[name]}: "
                f"{_UNKNOWN}; give the ledger of this text"
            )


def _starts(some: Iterable[Step], times: int = 1) -> Iterator[tuple[str, int]]:
    """Collectives and how often they start, those of every branch."""
    for step in some:
        if isinstance(step, Loop):
            if step.trips is None:
                raise UsageError(f"the text does not say how often a loop runs: {_UNKNOWN}")
            yield from _starts(step.body, times * step.trips)
        elif isinstance(step, Choice):
            for branch in step.branches:
                yield from _starts(branch, times)
        elif isinstance(step, Collective) and step.starts:
            yield step.name, times


def _loops(some: Iterable[Step]) -> Iterator[Loop]:
    for step in some:
        if isinstance(step, Loop):
            yield step
            yield from _loops(step.body)


@dataclass
class _Run:
    """A run so far: when the wire is free, which collectives wait for it, and when the others end."""

    rates: Rates
    wires: Mapping[str, float]
    by_trip: Sequence[Collection[int]] = ()
    spent: StepTime = field(default_factory=StepTime)
    wire_is_free: float = 0.0
    waiting: list[str] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=dict)

    def through(self, some: Iterable[Step], taken: Collection[int] = ()) -> None:
        for step in some:
            if isinstance(step, Kernel):
                self.launch(step)
            elif isinstance(step, Collective):
                self.communicate(step)
            elif isinstance(step, Choice):
                self.choose(step, taken)
            else:
                self.repeat(step)

    def launch(self, kernel: Kernel) -> None:
        seconds = self.rates.kernel_s(kernel)
        slows = self.rates.slowed_products if kernel.flops else self.rates.slowed_memory
        slowed = slows * min(seconds, max(0.0, self.wire_is_free - self.spent.total))
        self.spent.slowed += slowed
        self.spent.total += seconds + slowed
        if kernel.flops:
            self.spent.products += seconds
        else:
            self.spent.memory += seconds
        while self.waiting and self.wire_is_free <= self.spent.total:
            self.begin()

    def begin(self) -> None:
        name = self.waiting.pop(0)
        self.wire_is_free = max(self.wire_is_free, self.spent.total) + self.wires[name]
        self.ends[name] = self.wire_is_free

    def repeat(self, loop: Loop) -> None:
        for taken in self.by_trip if self.chooses(loop) else [()] * known(loop.trips):
            self.through(loop.body, taken)

    def chooses(self, loop: Loop) -> bool:
        """Whether it is told which branches its trips take."""
        taken = {number for numbers in self.by_trip for number in numbers}
        return loop.trips == len(self.by_trip) and any(
            isinstance(step, Choice) and taken <= set(range(len(step.branches))) for step in loop.body
        )

    def choose(self, choice: Choice, taken: Collection[int]) -> None:
        """The longest branch: devices that wait for one another's messages wait for who took it."""
        branches = [choice.branches[number] for number in taken] or choice.branches
        runs = [
            replace(self, spent=replace(self.spent), waiting=list(self.waiting), ends=dict(self.ends)) for _ in branches
        ]
        for run, branch in zip(runs, branches, strict=True):
            run.through(branch)
        vars(self).update(vars(max(runs, key=lambda run: run.spent.total)))

    def communicate(self, collective: Collective) -> None:
        if collective.starts:
            self.waiting.append(collective.name)
            self.spent.communication += self.wires[collective.name]
        if collective.awaits:
            while collective.name in self.waiting:
                self.begin()
            if collective.name not in self.ends:
                raise UsageError(f"the text waits for {collective.name}, which this computation does not start")
            exposed = max(0.0, self.ends.pop(collective.name) - self.spent.total)
            self.spent.exposed += exposed
            self.spent.total += exposed
