"""How long a step of a compiled program takes on a chip, by the rates that ship with the lab: what it spends on
products, memory and communication, what of that rests on measurements, and what no rate covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import sqrt
from typing import Final, Literal

from lab.core import display
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Transfer
from lab.diagnosis.program import Program
from lab.hlo.kernels import Copy, Kernel, Step
from lab.hlo.names import phase
from lab.measure.rates.table import Basis, ChipRates, Priced, rates_of
from lab.measure.schedule import Schedule
from lab.measure.step_time import Event, Rates, Seconds, StepTime, Taken, seconds_of
from lab.meshes.attached import resolve_attached
from lab.meshes.errors import UsageError
from lab.meshes.hardware import Chip
from lab.meshes.targets import Target

SCHEMA: Final = "sharding-lab/time/1"
FULL_COVERAGE = 0.9
"""Below this share of the time on rates that somebody measured or estimated, the step's time is not known."""
DTYPE = "bf16"
"""To whose peak MFU and HFU relate, whatever a program multiplies."""
_REMATTED = "rematted_computation"
"""In the names of what `jax.checkpoint` computes once more."""


@dataclass(frozen=True)
class Part:
    """What rests on one rate: seconds that the step spends on it.

    Attributes:
      sites: kernels, transfers or copies of the text.
      spread: nine of ten of what was measured lie within this share.
    """

    by: str
    basis: Basis
    seconds: float
    spread: float
    sites: int


@dataclass(frozen=True)
class TransferTime:
    """Seconds of a transfer in a step: on the wire, and waited for."""

    transfer: Transfer
    basis: Basis
    wire: float
    exposed: float


@dataclass(frozen=True)
class AxisTime:
    """Seconds of the transfers along these axes: on the wire and waited for; and of the step without them."""

    axes: str
    wire: float
    exposed: float
    step_without: float


@dataclass(frozen=True)
class PhaseTime:
    """Kernels of the forward or backward pass or the update.

    Attributes:
      flops, bytes: that they multiply, read and write.
      floor: seconds at the full rates of the data sheet: of its FLOPs or of its bytes, whichever is longer.
    """

    phase: Phase | None
    seconds: float
    flops: int
    bytes: int
    floor: float


@dataclass(frozen=True, repr=False)
class Prediction:
    """Seconds of one step, `low` to `high` as far as the measured times lie from their rates.

    Attributes:
      mfu: FLOPs that the step needs, recomputation and padding left out, over what the chip multiplies in bf16 in
        this time; None where they are not known.
      hfu: the same of all that it multiplies.
      missing: what no rate covers: its traffic counts, at least.
    """

    ledger: Ledger
    chip: str
    time: StepTime
    low: float
    high: float
    mfu: float | None
    hfu: float | None
    parts: tuple[Part, ...]
    axes: tuple[AxisTime, ...]
    transfers: tuple[TransferTime, ...]
    phases: tuple[PhaseTime, ...]
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()

    def __repr__(self) -> str:
        return display.text(self)

    def _repr_html_(self) -> str | None:
        return display.html(self)

    @property
    def source(self) -> str:
        return self.ledger.source

    @property
    def target(self) -> str:
        return self.ledger.target or ""

    @property
    def missing(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.basis is Basis.NOTHING)

    @property
    def coverage(self) -> Mapping[Basis, float]:
        """Shares of the time."""
        found = dict.fromkeys(Basis, 0.0)
        for part in self.parts:
            found[part.basis] += part.seconds
        whole = sum(found.values()) or 1.0
        return {basis: seconds / whole for basis, seconds in found.items()}

    def json_object(self) -> PredictionJson:
        return PredictionJson(
            SCHEMA,
            self.source,
            self.target,
            self.chip,
            self.ledger.mesh,
            self.is_known,
            SecondsJson(**vars(self.time), low=self.low, high=self.high),
            self.mfu,
            self.hfu,
            self.coverage,
            self.parts,
            self.axes,
            tuple(_transfer_json(row) for row in self.transfers),
            self.phases,
            self.notes,
        )

    @property
    def is_known(self) -> bool:
        """Nine tenths of the time, and each of its transfers, rest on some rate."""
        return self.coverage[Basis.NOTHING] <= 1 - FULL_COVERAGE and all(
            one.basis is not Basis.NOTHING for one in self.transfers
        )


@dataclass(frozen=True)
class SecondsJson:
    """`total` is the rest but `communication`, which is hidden in part; `low` to `high`: as far as measured times lie
    from their rates."""

    total: float
    products: float
    memory: float
    communication: float
    exposed: float
    slowed: float
    copying: float
    low: float
    high: float


@dataclass(frozen=True)
class TransferTimeJson:
    """Seconds in a step; the other keys are those of the ledger."""

    kind: Kind
    axes: tuple[str, ...] | None
    executions: int | None
    wire_bytes: Fraction | None
    phase: Phase | None
    scope: str
    origin: str | None
    instruction: str | None
    basis: Basis
    wire: float
    exposed: float


@dataclass(frozen=True)
class PredictionJson:
    """What `lab time --json` prints of one program. Where `is_known` is false the time is a lower bound: what no rate
    covers stands among the parts with the basis `nothing`."""

    schema: Literal["sharding-lab/time/1"]
    source: str
    target: str
    chip: str
    mesh: Mapping[str, int] | None
    is_known: bool
    seconds: SecondsJson
    mfu: float | None
    hfu: float | None
    coverage: Mapping[Basis, float]
    parts: tuple[Part, ...]
    axes: tuple[AxisTime, ...]
    transfers: tuple[TransferTimeJson, ...]
    phases: tuple[PhaseTime, ...]
    notes: tuple[str, ...]


def _transfer_json(row: TransferTime) -> TransferTimeJson:
    t = row.transfer
    return TransferTimeJson(
        t.kind,
        t.axes,
        t.executions,
        t.wire_bytes,
        t.phase,
        t.scope,
        t.origin,
        t.instruction,
        row.basis,
        row.wire,
        row.exposed,
    )


def rates_at(target: Target | None) -> ChipRates:
    """Of the chip of a target; of attached devices JAX is asked.

    Raises:
      UsageError: it has no chip, or one without rates.
    """
    found = target and resolve_attached(target)
    if found is None or found.chip is None:
        raise UsageError(
            f"found {'no target' if target is None else f'the target {target}'}, expected one with a chip, such as "
            "--target gpu:h100:2x8 or tpu:v5p:2x2x4: seconds are those of a chip"
        )
    return rates_of(found.chip)


def predicted(program: Program, by_trip: Sequence[Collection[Taken]] = ()) -> Prediction:
    """The time of a step of a program on the chip of its target.

    Args:
      by_trip: see `lab.measure.step_time.seconds_of`.
    Raises:
      UsageError: the target has no chip, or one without rates; the text does not tell how often a loop runs, or could
        not be read whole.
    """
    rates = rates_at(program.target)
    target = resolve_attached(known(program.target))
    return of_schedule(Schedule.of(program, target, by_trip), rates, target.hardware)


def of_schedule(schedule: Schedule, rates: ChipRates, chip: Chip) -> Prediction:
    """The same of a schedule that is at hand."""
    found, ledger, by_trip, prices = schedule.steps, schedule.ledger, schedule.by_trip, schedule.prices(rates)
    seconds = seconds_of(found, ledger, prices, by_trip)
    parts = tuple(_parts(seconds, ledger, prices))
    half = sqrt(sum((part.spread * part.seconds) ** 2 for part in parts))
    multiplied = round(sum(kernel.flops * runs for kernel, runs in seconds.runs.items()))
    # Of branches the longest ran, which are no device's own.
    needed = None if ledger.flops is None or ledger.flops_in_branches else ledger.flops - _again(ledger, seconds.runs)
    return Prediction(
        ledger,
        chip.name,
        seconds.time,
        seconds.time.total - half,
        seconds.time.total + half,
        _share(needed, seconds.time.total, chip),
        _share(multiplied, seconds.time.total, chip),
        parts,
        tuple(_by_axes(found, ledger, prices, seconds, by_trip)),
        _transfers(ledger, prices, seconds),
        tuple(_phases(seconds, chip, schedule.differentiated)),
        events=seconds.events,
    )


def _again(ledger: Ledger, runs: Mapping[Kernel, float]) -> int:
    """FLOPs that XLA added, and those of what `jax.checkpoint` computes once more."""
    checkpointed = round(sum(kernel.flops * often for kernel, often in runs.items() if _REMATTED in kernel.op_name))
    return checkpointed + sum(ledger.flops_rematerialized.values()) + sum(ledger.flops_padded.values())


def _share(flops: int | None, seconds: float, chip: Chip) -> float | None:
    peak = chip.flops_per_s[DTYPE].value / chip.devices_per_chip
    return flops / seconds / peak if flops and seconds else None


def _parts(seconds: Seconds, ledger: Ledger, prices: Rates) -> Iterable[Part]:
    """Also of what no rate covers, though it may take no time that is known."""
    sites = defaultdict[Priced, int](int)
    for kernel in seconds.kernels:
        sites[replace(prices.kernel(kernel), seconds=0.0)] += 1
    for transfer in ledger.transfers:
        if transfer.executions and (transfer.group_size or 2) > 1:
            sites[replace(prices.transfer(transfer), seconds=0.0)] += 1
    for rate in sorted({*seconds.by_rate, *sites}, key=lambda rate: -seconds.by_rate.get(rate, 0.0)):
        spent = seconds.by_rate.get(rate, 0.0)
        if spent or (rate.basis is Basis.NOTHING and sites[rate]):
            yield Part(rate.by, rate.basis, spent, rate.spread, sites[rate])


@dataclass(frozen=True)
class _Without:
    """Rates under which what is sent along some axes takes no time."""

    rates: Rates
    axes: str

    @property
    def between_kernels(self) -> bool:
        return self.rates.between_kernels

    def kernel(self, kernel: Kernel) -> Priced:
        return self.rates.kernel(kernel)

    def transfer(self, transfer: Transfer) -> Priced:
        found = self.rates.transfer(transfer)
        return replace(found, seconds=0.0) if transfer.span == self.axes else found

    def copy(self, copy: Copy) -> Priced:
        return self.rates.copy(copy)

    def slowed(self, kernel: Kernel) -> float:
        return self.rates.slowed(kernel)


def _by_axes(
    found: Sequence[Step], ledger: Ledger, prices: Rates, seconds: Seconds, by_trip: Sequence[Collection[Taken]]
) -> Iterable[AxisTime]:
    along: dict[str, list[str]] = {}
    for transfer in ledger.transfers:
        if (transfer.group_size or 2) > 1:
            along.setdefault(transfer.span, []).append(known(transfer.instruction))
    rows = [
        AxisTime(
            axes,
            sum(seconds.wires.get(name, 0.0) for name in names),
            sum(seconds.exposed.get(name, 0.0) for name in names),
            seconds_of(found, ledger, _Without(prices, axes), by_trip).time.total,
        )
        for axes, names in along.items()
    ]
    return sorted(rows, key=lambda row: row.step_without)


def _transfers(ledger: Ledger, prices: Rates, seconds: Seconds) -> tuple[TransferTime, ...]:
    """Those that are waited for longest first."""
    rows = [
        TransferTime(
            transfer,
            prices.transfer(transfer).basis,
            seconds.wires.get(known(transfer.instruction), 0.0),
            seconds.exposed.get(known(transfer.instruction), 0.0),
        )
        for transfer in ledger.transfers
        if (transfer.group_size or 2) > 1
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed, -row.wire)))


def _phases(seconds: Seconds, chip: Chip, differentiated: bool) -> Iterable[PhaseTime]:
    kernels: dict[Phase | None, list[Kernel]] = {}
    for kernel in seconds.kernels:
        kernels.setdefault(phase(kernel.op_name or None, differentiated), []).append(kernel)
    peak, memory = chip.flops_per_s[DTYPE].value, chip.memory_bytes_per_s.value
    for at, those in kernels.items():
        flops, moved = (
            round(sum(getattr(one, part) * seconds.runs[one] for one in those)) for part in ("flops", "bytes")
        )
        yield PhaseTime(
            at,
            sum(seconds.kernels[one] for one in those),
            flops,
            moved,
            chip.devices_per_chip * max(flops / peak, moved / memory),
        )
