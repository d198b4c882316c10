"""How long a compiled step takes: its kernels one after the other, its collectives and copies beside them, each at a
rate that says what it rests on.

A collective of a GPU is a kernel too, and begins between two others: one that is started while a kernel runs, or just
before one is launched, waits until that one ends. One of a TPU begins where it is started. No rate is fitted to a
step. Source: roofline (Ch. 8), alpha-beta (Ch. 13).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Transfer
from lab.core.units import count
from lab.hlo.kernels import Choice, Collective, Copy, Does, Kernel, Loop, Step, steps
from lab.measure.rates.curves import Curve, Rate
from lab.measure.rates.table import Basis, Priced
from lab.meshes.errors import UsageError

_UNKNOWN = "the time of the step is unknown"
_STEADY = 1e-9
"""Trips whose ends differ by less than this share of a trip go on alike."""
_DIGITS = 12
"""Of seconds, after the point: trips that begin alike to these are alike."""


class Rates(Protocol):
    """What kernels, transfers and copies take, and what a kernel loses for a second of communication beside it [s].

    Attributes:
      between_kernels: a collective begins between two kernels, as those of GPUs do, and not where it is started.
    """

    @property
    def between_kernels(self) -> bool: ...
    def kernel(self, kernel: Kernel) -> Priced: ...
    def transfer(self, transfer: Transfer) -> Priced: ...
    def copy(self, copy: Copy) -> Priced: ...
    def slowed(self, kernel: Kernel) -> float: ...


@dataclass(frozen=True)
class TourRates:
    """What one device was measured to do.

    Attributes:
      product: of FLOPs of a matrix product in bf16, its launch included.
      memory: of bytes read and written by kernels that add one to an array.
      scattered_bytes_per_s: of a kernel that transposes the last dim away, element by element.
      links: of wire bytes, by kind of collective.
      slowed_products, slowed_memory: seconds that such kernels lose for a second of communication beside them.
    """

    between_kernels: ClassVar[bool] = True

    product: Rate
    memory: Curve
    scattered_bytes_per_s: float
    links: Mapping[Kind, Curve | Rate]
    slowed_products: float
    slowed_memory: float

    def kernel(self, kernel: Kernel) -> Priced:
        """The roofline: the slower of its product and its traffic."""
        if kernel.does is Does.TRANSPOSE:
            return _measured(max(self.memory.seconds(0), kernel.bytes / self.scattered_bytes_per_s))
        product = self.product.seconds(kernel.flops) if kernel.flops else 0.0
        return _measured(max(product, self.memory.seconds(kernel.bytes)))

    def transfer(self, transfer: Transfer) -> Priced:
        if transfer.kind not in self.links:
            raise UsageError(f"no measured rate of {transfer.kind}; measured are {', '.join(self.links)}")
        if transfer.wire_bytes is None:
            raise UsageError(f"{transfer.instruction}: its replica groups cannot be read, so that its time is unknown")
        return _measured(self.links[transfer.kind].seconds(float(transfer.wire_bytes)))

    def copy(self, copy: Copy) -> Priced:
        return _measured(self.memory.seconds(2 * copy.bytes))

    def slowed(self, kernel: Kernel) -> float:
        return self.slowed_products if kernel.flops else self.slowed_memory


def _measured(seconds: float) -> Priced:
    return Priced(seconds, Basis.MEASURED, "tour")


@dataclass(frozen=True)
class MeasuredRates(TourRates):
    """Those of links too, as `lab tour` records them."""

    links: Mapping[Kind, Curve]


class Taken(NamedTuple):
    """What a device does at a trip of a loop.

    Attributes:
      branch: of the loop's conditional.
      without: named scopes that it leaves out: of conditionals inside the branch it takes one that has none of these.
    """

    branch: int
    without: tuple[str, ...] = ()


@dataclass
class StepTime:
    """Seconds of a step: `total` is all but `communication` together.

    Attributes:
      communication: on the wire, hidden or not.
      exposed: of it, what kernels wait for.
      slowed: what they lose to communication beside them.
      copying: what they wait for copies, to the host and back or into a scratchpad.
    """

    total: float = 0.0
    products: float = 0.0
    memory: float = 0.0
    communication: float = 0.0
    exposed: float = 0.0
    slowed: float = 0.0
    copying: float = 0.0


@dataclass(frozen=True)
class Event:
    """Something that ran.

    Attributes:
      track: `kernels`, `wires` or `copies`; `loop` of trips that went on like those before.
      start, end: seconds from the beginning of the step.
      name: the instruction.
    """

    track: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Seconds:
    """A step as it was run through.

    Attributes:
      by_rate: seconds that kernels ran and waited, by the rate that they rest on.
      wires, exposed: seconds on the wire, and waited for, by instruction of a transfer.
      kernels, runs: seconds of each kernel, and how often it runs.
      events: in order; of loops the first trips.
    """

    time: StepTime
    by_rate: Mapping[Priced, float]
    wires: Mapping[str, float]
    exposed: Mapping[str, float]
    kernels: Mapping[Kernel, float]
    runs: Mapping[Kernel, float]
    events: tuple[Event, ...]


def step_time(text: str, ledger: Ledger, rates: Rates, by_trip: Sequence[Collection[Taken]] = ()) -> StepTime:
    """Runs a scheduled text; see `seconds_of`."""
    return seconds_of(steps(text), ledger, rates, by_trip).time


def seconds_of(
    found: Sequence[Step], ledger: Ledger, rates: Rates, by_trip: Sequence[Collection[Taken]] = ()
) -> Seconds:
    """Runs a schedule on two streams: kernels, and collectives one at a time; copies beside both.

    Args:
      ledger: of the same text, with its mesh.
      by_trip: what some device does, at each trip of the loop that runs so often and chooses; texts do not tell. By
        default anything.
    Raises:
      UsageError: a loop of which it is not known how often it runs, none for `by_trip`, a collective without a measured
        rate, or that ends in another computation than it starts in; a ledger that is not complete, or of another text.
    """
    if not ledger.is_complete:
        raise UsageError(f"{ledger.source or 'the ledger'} is not complete: {_UNKNOWN}")
    _check_met(found, ledger)
    run = _Run(rates, {known(t.instruction): rates.transfer(t) for t in ledger.transfers}, by_trip)
    if by_trip and not any(run.chooses(loop) for loop in _loops(found)):
        raise UsageError(
            f"branches of {len(by_trip)} trips were given, but no loop of the text has that many and a conditional"
        )
    run.through(found)
    if run.ends or run.waiting:
        raise UsageError(
            f"the text starts {', '.join((*run.ends, *run.waiting))} and does not wait for it in the same computation"
        )
    return run.seconds()


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
                raise UsageError(
                    f"the text does not say how often a loop runs: {_UNKNOWN}; name a function of one of its rounds, "
                    "or loop a fixed number of times (jax.lax.scan, jax.lax.fori_loop)"
                )
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
    """A run so far: when the wire is free, which collectives wait for it, and when others and copies end."""

    rates: Rates
    wires: Mapping[str, Priced]
    by_trip: Sequence[Collection[Taken]] = ()
    now: float = 0.0
    spent: dict[tuple[str, object], float] = field(default_factory=lambda: defaultdict(float))
    wire_is_free: float = 0.0
    copier_is_free: float = 0.0
    waiting: list[str] = field(default_factory=list)
    ends: dict[str, float] = field(default_factory=dict)
    copies: dict[str, tuple[float, Priced]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    priced: dict[int, tuple[Kernel, Priced, float, float]] = field(default_factory=dict)
    without: frozenset[str] = frozenset()

    def through(self, some: Iterable[Step], taken: Collection[Taken] = ()) -> None:
        for step in some:
            if isinstance(step, Kernel):
                self.launch(step)
            elif isinstance(step, Collective):
                self.communicate(step)
            elif isinstance(step, Copy):
                self.copy(step)
            elif isinstance(step, Choice):
                self.choose(step, taken)
            else:
                self.repeat(step)

    def launch(self, kernel: Kernel) -> None:
        rate, seconds, slows = self.price(kernel)
        slowed = slows * min(seconds, max(0.0, self.wire_is_free - self.now))
        self.events.append(Event("kernels", kernel.name, self.now, self.now + seconds + slowed))
        self.now += seconds + slowed
        self.spent["slowed", None] += slowed
        self.spent["products" if kernel.flops else "memory", None] += seconds
        self.spent["by rate", rate] += seconds + slowed
        self.spent["kernels", id(kernel)] += seconds + slowed
        self.spent["runs", id(kernel)] += 1
        while self.waiting and self.wire_is_free <= self.now:
            self.begin()

    def price(self, kernel: Kernel) -> tuple[Priced, float, float]:
        """Its rate, its seconds, and what it loses for a second of communication beside it; worked out once."""
        if id(kernel) not in self.priced:
            found = self.rates.kernel(kernel)
            self.priced[id(kernel)] = kernel, replace(found, seconds=0.0), found.seconds, self.rates.slowed(kernel)
        return self.priced[id(kernel)][1:]

    def begin(self) -> None:
        name = self.waiting.pop(0)
        start = max(self.wire_is_free, self.now)
        self.ends[name] = self.wire_is_free = start + self.wires[name].seconds
        self.events.append(Event("wires", name, start, self.wire_is_free))

    def communicate(self, collective: Collective) -> None:
        name = collective.name
        if collective.starts:
            self.waiting.append(name)
            self.spent["wires", name] += self.wires[name].seconds
            if not self.rates.between_kernels:
                self.begin()
        if collective.awaits:
            while name in self.waiting:
                self.begin()
            if name not in self.ends:
                raise UsageError(f"the text waits for {name}, which this computation does not start")
            self.wait(self.ends.pop(name), ("exposed", name), self.wires[name])

    def copy(self, copy: Copy) -> None:
        if copy.starts:
            priced = self.rates.copy(copy)
            start = max(self.copier_is_free, self.now)
            self.copier_is_free = start + priced.seconds
            self.copies[copy.name] = self.copier_is_free, priced
            self.events.append(Event("copies", copy.name, start, self.copier_is_free))
        if copy.awaits and copy.name in self.copies:
            end, priced = self.copies.pop(copy.name)
            self.wait(end, ("copying", None), priced)

    def wait(self, end: float, what: tuple[str, str | None], priced: Priced) -> None:
        exposed = max(0.0, end - self.now)
        self.now += exposed
        self.spent[what] += exposed
        self.spent["by rate", replace(priced, seconds=0.0)] += exposed

    def repeat(self, loop: Loop) -> None:
        if self.chooses(loop):
            self.repeat_chosen(loop)
            return
        trips, before, length = known(loop.trips), None, -1.0
        for trip in range(trips):
            began, spent = self.now, dict(self.spent)
            self.through(loop.body)
            ahead, last, length = self.ahead(), length, self.now - began
            if before is not None and _same(before, ahead, length) and abs(length - last) <= _STEADY * length:
                self.go_on(trips - trip - 1, length, spent)
                return
            before = ahead

    def repeat_chosen(self, loop: Loop) -> None:
        """A trip that begins like one before, and takes the same branches, goes on like it."""
        known_trips: dict[object, tuple[float, dict[tuple[str, object], float], _Run]] = {}
        for taken in self.by_trip:
            ahead = tuple((name, round(seconds, _DIGITS)) for name, seconds in sorted(self.ahead().items()))
            key = frozenset(taken), tuple(self.waiting), ahead
            if key in known_trips:
                began, spent, after = known_trips[key]
                self.like(after, began, spent)
                continue
            fresh = replace(self, spent=defaultdict(float), events=[], waiting=list(self.waiting), ends=dict(self.ends))
            fresh.copies = dict(self.copies)
            fresh.through(loop.body, taken)
            known_trips[key] = self.now, fresh.spent, fresh
            self.events += fresh.events
            self.like(fresh, self.now, fresh.spent, is_told=False)

    def like(self, after: _Run, began: float, spent: Mapping[tuple[str, object], float], is_told: bool = True) -> None:
        """Goes on from now as another run did from `began`."""
        later = self.now - began
        if is_told:
            self.events.append(Event("loop", "a trip like one before", self.now, after.now + later))
        for key, seconds in spent.items():
            self.spent[key] += seconds
        self.now = after.now + later
        self.wire_is_free, self.copier_is_free = after.wire_is_free + later, after.copier_is_free + later
        self.waiting = list(after.waiting)
        self.ends = {name: end + later for name, end in after.ends.items()}
        self.copies = {name: (end + later, priced) for name, (end, priced) in after.copies.items()}

    def ahead(self) -> dict[str, float]:
        """What is still to come, from now: when that is the same after two trips, so are the trips after them."""
        free = {"": max(0.0, self.wire_is_free - self.now), "copies": max(0.0, self.copier_is_free - self.now)}
        ends = {name: end - self.now for name, end in self.ends.items()}
        return free | ends | {name: end - self.now for name, (end, _) in self.copies.items()}

    def go_on(self, trips: int, length: float, before: Mapping[tuple[str, object], float]) -> None:
        """As in the last trip."""
        if not trips:
            return
        for key, seconds in list(self.spent.items()):
            self.spent[key] = seconds + trips * (seconds - before.get(key, 0.0))
        later = trips * length
        self.events.append(Event("loop", f"{count(trips, 'trip')} like the last", self.now, self.now + later))
        self.now += later
        self.wire_is_free += later
        self.copier_is_free += later
        self.ends = {name: end + later for name, end in self.ends.items()}
        self.copies = {name: (end + later, priced) for name, (end, priced) in self.copies.items()}

    def chooses(self, loop: Loop) -> bool:
        """Whether it is told which branches its trips take."""
        taken = {each.branch for some in self.by_trip for each in some}
        return loop.trips == len(self.by_trip) and any(
            isinstance(step, Choice) and taken <= set(range(len(step.branches))) for step in loop.body
        )

    def choose(self, choice: Choice, taken: Collection[Taken]) -> None:
        """The longest branch: devices that wait for one another's messages wait for who took it."""
        told = [(choice.branches[each.branch], frozenset(each.without)) for each in taken]
        branches = told or [(branch, self.without) for branch in self.open(choice)]
        runs = [
            replace(
                self,
                without=without,
                spent=defaultdict(float),
                waiting=list(self.waiting),
                ends=dict(self.ends),
                copies=dict(self.copies),
                events=[],
            )
            for _, without in branches
        ]
        for run, (branch, _) in zip(runs, branches, strict=True):
            run.through(branch)
        longest = max(runs, key=lambda run: run.now)
        self.events += longest.events
        self.like(longest, self.now, longest.spent, is_told=False)

    def open(self, choice: Choice) -> Sequence[tuple[Step, ...]]:
        """The branches without what is left out; all of them where each has some of it."""
        scopes = zip(choice.branches, choice.scopes, strict=bool(choice.scopes))
        return [branch for branch, names in scopes if not self.without & set(names)] or choice.branches

    def seconds(self) -> Seconds:
        parts: dict[str, dict[object, float]] = defaultdict(dict)
        for (part, key), seconds in self.spent.items():
            parts[part][key] = seconds
        return Seconds(
            StepTime(
                self.now,
                parts["products"].get(None, 0.0),
                parts["memory"].get(None, 0.0),
                sum(parts["wires"].values()),
                sum(parts["exposed"].values()),
                parts["slowed"].get(None, 0.0),
                parts["copying"].get(None, 0.0),
            ),
            {key: spent for key, spent in parts["by rate"].items() if isinstance(key, Priced)},
            {str(key): spent for key, spent in parts["wires"].items()},
            {str(key): spent for key, spent in parts["exposed"].items()},
            self.by_kernel(parts["kernels"]),
            self.by_kernel(parts["runs"]),
            tuple(self.events),
        )

    def by_kernel(self, amounts: Mapping[object, float]) -> dict[Kernel, float]:
        """Of a computation that is reached on several ways together."""
        found: dict[Kernel, float] = defaultdict(float)
        for key, amount in amounts.items():
            if isinstance(key, int):
                found[self.priced[key][0]] += amount
        return dict(found)


def _same(before: Mapping[str, float], after: Mapping[str, float], length: float) -> bool:
    return before.keys() == after.keys() and all(abs(before[at] - after[at]) <= _STEADY * length for at in before)
