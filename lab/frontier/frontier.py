"""A step under every intervention, each compiled: what each changes, which are on the front, and which to take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from lab.core.codec import Count
from lab.core.known import known
from lab.core.units import bytes_text, seconds_text, share_text
from lab.diagnosis.remedy import CompilerOption, Donate
from lab.frontier.intervention import Intervention, Lever, Variant, Wrap, goes_with, text
from lab.frontier.outcome import Outcome
from lab.measure.prediction import SecondsJson
from lab.measure.rates.table import Basis

SCHEMA: Final = "sharding-lab/frontier/1"
MOST_JOINED, MOST_ROUNDS = 4, 4
"""Interventions that are tried at once beside the best variant so far, and how often."""
_DIGITS = 3
"""Of seconds and of bytes of memory: less is no difference."""


@dataclass(frozen=True)
class Refusal:
    """Why a variant was not compiled; `is_none`: there is nothing in the step that it could change."""

    why: str
    is_none: bool = False


Compile = Callable[[Sequence[Variant]], Sequence[Outcome | Refusal]]


@dataclass(frozen=True)
class Row:
    """One variant.

    Attributes:
      found: what it comes to, or why it was not compiled.
      same_as: the first variant that compiles to the same transfers, schedule, products and memory, and takes as long.
    """

    variant: Variant
    found: Outcome | Refusal
    same_as: Variant | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self.found if isinstance(self.found, Outcome) else None

    @property
    def mathematics(self) -> str:
        return ", ".join(one.mathematics for one in self.variant if one.mathematics)


@dataclass(frozen=True)
class Frontier:
    """Attributes: rows: the step as it is, then what was tried, in that order; seconds: that it took."""

    source: str
    target: str
    mesh: Mapping[str, int] | None
    usable_bytes: int | None
    rows: tuple[Row, ...]
    seconds: float

    @property
    def asked(self) -> Outcome:
        return known(self.rows[0].outcome)

    @property
    def front(self) -> tuple[Row, ...]:
        """Distinct variants that no other beats in wire bytes, seconds or memory without losing in another, the fastest
        first; seconds and memory to three digits. Of those that fit, where one does."""
        every = [row for row in self.rows if is_ranked(row) and row.same_as is None]
        some = [row for row in every if is_open(row)] or every
        points = {id(row): _objectives(row.outcome) for row in some if row.outcome}
        kept = [row for row in some if not any(_beats(points[id(one)], points[id(row)]) for one in some)]
        firsts = {points[id(row)]: row for row in reversed(kept)}  # Of those that come to the same, the first.
        return tuple(sorted(firsts.values(), key=lambda row: points[id(row)][::-1]))

    @property
    def pick(self) -> Row | None:
        """The fastest that fits and leaves the mathematics as it is; None where none does."""
        some = [row for row in self.rows if row.outcome and is_open(row)]
        return min(some, key=lambda row: (preference(row.found), len(row.variant)), default=None)

    def why(self) -> str:
        """The reason for the pick."""
        return _why(self)

    def json_object(self) -> FrontierJson:
        front, pick = self.front, self.pick
        return FrontierJson(
            SCHEMA,
            self.source,
            self.target,
            self.mesh,
            self.usable_bytes,
            tuple(_row_json(row, row in front, row is pick) for row in self.rows),
            PickJson(text(pick.variant), how(pick.variant), self.why()) if pick else None,
            self.seconds,
        )


def is_open(row: Row) -> bool:
    """It may be picked: it fits, or nobody knows what fits, and its mathematics are those of the step."""
    return row.outcome is not None and row.outcome.fits is not False and not row.mathematics


def preference(found: Outcome | Refusal) -> tuple[float, ...]:
    """Less is better: what fits, then seconds, memory and bytes; of what does not fit, memory. Without seconds bytes
    come first."""
    if isinstance(found, Refusal):
        return (2.0,)
    peak, sent = rounded(found.peak or 0), float(found.wire_bytes)
    if found.fits is False:
        return (1.0, peak)
    return (0.0, rounded(found.step), peak, sent) if found.step is not None else (0.0, sent, peak)


def rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")


def _objectives(found: Outcome) -> tuple[float, float, float]:
    return float(found.wire_bytes), rounded(found.peak or 0), rounded(found.step or 0.0)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))


def explored(asked: Outcome, interventions: Sequence[Intervention], compiled: Compile) -> tuple[Row, ...]:
    """The step as it is, each intervention by itself, then the best of them together: one after the other joins the
    best variant so far, as long as one makes it better."""
    rows = [Row((), asked)]

    def tried(variants: Sequence[Variant]) -> list[Row]:
        for variant, found in zip(variants, compiled(variants), strict=True):
            rows.append(Row(variant, found, _same(rows, found)))
        return rows[len(rows) - len(variants) :]

    singles = tried([(one,) for one in interventions])
    better = _ranked(row for row in singles if row.same_as is None and _is_gain(row, asked))
    best = min((row for row in rows if is_ranked(row)), key=lambda row: preference(row.found))
    for _ in range(MOST_ROUNDS):
        joined = [(*best.variant, *row.variant) for row in better if goes_with(best.variant, row.variant[0])]
        if not best.variant or not joined:
            break
        found = _ranked(tried(joined[:MOST_JOINED]))
        if not found or preference(found[0].found) >= preference(best.found):
            break
        best = found[0]
    return tuple(rows)


def is_ranked(row: Row) -> bool:
    return row.outcome is not None and not row.mathematics


def _ranked(rows: Iterable[Row]) -> list[Row]:
    return sorted(filter(is_ranked, rows), key=lambda row: preference(row.found))


def _is_gain(row: Row, asked: Outcome) -> bool:
    """Something of it is less than of the step as it is."""
    found = row.outcome
    return found is not None and any(a < b for a, b in zip(_objectives(found), _objectives(asked), strict=True))


def _same(rows: Sequence[Row], found: Outcome | Refusal) -> Variant | None:
    if isinstance(found, Refusal):
        return None
    return next((row.variant for row in rows if row.outcome and row.outcome.is_same(found)), None)


def how(variant: Variant) -> str:
    """What makes it: options of commands, of `jax.jit`, and changes of the program."""
    options = {name: value for one in variant for name, value in one.options.items()}
    changes = [change for one in variant for change in one.remedy if not isinstance(change, CompilerOption)]
    parts = [
        *(f"--mesh {one.mesh}" for one in variant if one.mesh),
        *(f"--set {name}={value}" for one in variant for name, value in one.settings),
        *(_checkpointed(one.policy) for one in variant if one.policy),
        *dict.fromkeys(_given_up(change) if isinstance(change, Donate) else str(change) for change in changes),
        *([f"jax.jit(..., compiler_options={options})"] if options else []),
    ]
    return "; ".join(parts)


def _checkpointed(policy: str) -> str:
    match policy:
        case Wrap.REMOVED:
            return "no jax.checkpoint"
        case Wrap.AROUND_SCANS:
            return "jax.checkpoint(..., prevent_cse=False) around the body of each jax.lax.scan"
        case _:
            return f"jax.checkpoint(..., policy=jax.checkpoint_policies.{policy})"


def _given_up(change: Donate) -> str:
    """`params, opt_state donated`: arguments by the names that the function has for them."""
    names = dict.fromkeys(re.split(r"\W", name)[0] for name in change.names)
    return f"{', '.join(names)} donated" if names else str(change)


def _why(frontier: Frontier) -> str:
    pick, asked = frontier.pick, frontier.asked
    if pick is None or pick.outcome is None:
        return "no variant that was compiled fits the memory of a device"
    found = pick.outcome
    parts = []
    if pick.variant and asked.fits is False:
        parts.append(f"as it is the step does not fit: its peak is {bytes_text(asked.peak or 0)}")
    if found.step is not None and asked.step is not None:
        gain = 1 - found.step / asked.step
        told = f"{seconds_text(found.step)} a step"
        if pick.variant and abs(gain) >= 0.001:
            than = "less" if gain > 0 else "more"
            told += f", {share_text(abs(gain))} {than} than the {seconds_text(asked.step)} as it is"
        parts.append(told)
        waits = [one.seconds.exposed for one in (asked, found) if one.seconds]
        if pick.variant:
            parts.append(f"waiting for communication {seconds_text(waits[0])} -> {seconds_text(waits[1])}")
    parts.append(
        f"{found.bound}{bytes_text(found.wire_bytes)} sent a device" + _before(asked.wire_bytes, found.wire_bytes)
    )
    if found.peak is not None:
        told = f"peak {bytes_text(found.peak)}" + _before(asked.peak, found.peak)
        if frontier.usable_bytes and found.fits:
            told += f" of {bytes_text(frontier.usable_bytes)} that JAX takes"
        parts.append(told)
    return "; ".join(parts)


def _before(asked: Fraction | int | None, found: Fraction | int) -> str:
    return "" if asked in (None, found) else f" ({bytes_text(asked)} as it is)"


def certainty(found: Outcome) -> str:
    """What the seconds rest on; "" where there are none."""
    if found.seconds is None:
        return ""
    shares = [f"{share_text(share)} {basis}" for basis, share in found.coverage.items() if share >= 0.0005]
    at_least = "" if found.is_known else "; rates cover too little of it: a lower bound"
    low, high = seconds_text(found.seconds.low), seconds_text(found.seconds.high)
    return f"{low} to {high}, by rates that are {', '.join(shares)}{at_least}"


@dataclass(frozen=True)
class InterventionJson:
    """`options`: of the compiler, by name; `mathematics`: what it makes of the result beyond another order of sums; ""
    where that is all."""

    lever: Lever
    change: str
    options: Mapping[str, str]
    mathematics: str


@dataclass(frozen=True)
class RowJson:
    """A variant: the step as it is where there are no interventions. Of one that was not compiled `refused` says why,
    and `applies` is false where there is nothing in the step that it could change; of one that compiles to what an
    earlier variant does, `same_as` says to which. Seconds are a lower bound where `is_known` is false; bytes sent are
    one where some executions are unknown, and the most that may be sent where data decide."""

    interventions: tuple[InterventionJson, ...]
    refused: str | None
    applies: bool
    same_as: str | None
    is_on_front: bool
    is_pick: bool
    wire_bytes: Fraction | None
    wire_bytes_by_axes: Mapping[str, Fraction]
    flops: Count | None
    peak: Count | None
    fits: bool | None
    is_known: bool
    coverage: Mapping[Basis, float]
    seconds: SecondsJson | UnsetType = UNSET
    lower_bound: bool | UnsetType = UNSET
    upper_bound: bool | UnsetType = UNSET


@dataclass(frozen=True)
class PickJson:
    """`how`: options of commands and of `jax.jit`, and changes of the program, that make it."""

    variant: str
    how: str
    why: str


@dataclass(frozen=True)
class FrontierJson:
    """What `lab frontier --json` prints: the first row is the step as it is; `seconds`: that it took to find."""

    schema: Literal["sharding-lab/frontier/1"]
    source: str
    target: str
    mesh: Mapping[str, int] | None
    usable_bytes: Count | None
    rows: tuple[RowJson, ...]
    pick: PickJson | None
    seconds: float


def _row_json(row: Row, is_on_front: bool, is_pick: bool) -> RowJson:
    found = row.outcome
    refusal = row.found if isinstance(row.found, Refusal) else None
    return RowJson(
        tuple(InterventionJson(one.lever, str(one), one.options, one.mathematics) for one in row.variant),
        refusal.why if refusal else None,
        not (refusal and refusal.is_none),
        None if row.same_as is None else text(row.same_as),
        is_on_front,
        is_pick,
        found.wire_bytes if found else None,
        found.wire if found else {},
        found.flops if found else None,
        found.peak if found else None,
        found.fits if found else None,
        found is not None and found.is_known,
        found.coverage if found else {},
        found.seconds if found and found.seconds else UNSET,
        True if found and found.lower_bound else UNSET,
        True if found and found.upper_bound else UNSET,
    )
