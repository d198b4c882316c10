"""What another release of JAX, or other flags of XLA, make of a program, and from which flags each difference comes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from lab.compile.xla_flags import Flag, flags, set_back
from lab.core import changes
from lab.core.changes import DifferenceJson
from lab.core.ledger import Ledger, Memory, TotalsJson
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import CompilerOption, NotApplicable
from lab.guard.causes import causes, usable
from lab.guard.differences import About, Difference, Sites, differences
from lab.laws.comparison import Comparison
from lab.measure.prediction import Prediction, SecondsJson, predicted
from lab.meshes.errors import UsageError

SCHEMA: Final = "sharding-lab/upgrade/1"
Flags = Mapping[str, str]
Sets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Compiled:
    """A program as one release of JAX compiles it.

    Attributes:
      flags: that it was given, by name.
      time: None where the target's chip has no rates, or the text does not tell how often a loop runs.
      defaults: those of the release.
    """

    release: str
    flags: Flags
    sites: Sites
    time: Prediction | None
    defaults: Mapping[str, Flag]

    @classmethod
    def of(cls, program: Program, given: Flags) -> Compiled:
        try:
            time = replace(predicted(program), events=())
        except UsageError:
            time = None
        return cls(version("jax"), given, Sites.of(program, is_held_told=True), time, flags())

    def json_object(self) -> CompiledJson:
        ledger, time = self.sites.ledger, self.time
        return CompiledJson(
            self.release,
            self.flags,
            ledger.totals().json_object(),
            self.sites.schedule,
            ledger.flops,
            ledger.memory,
            SecondsJson(**vars(time.time), low=time.low, high=time.high) if time else UNSET,
        )


@dataclass(frozen=True)
class Upgrade:
    """Attributes:
    flags: of each difference, sets of flags, each of which makes it where it is set, or, of another release, undoes it
      where it is set back.
    tried: flags that were tried one by one, with their values.
    refused: why others could not be, by name.
    is_set_back: they were set back, of another release, instead of set.
    laws: None where they were not asked for.
    """

    before: Compiled
    after: Compiled
    differences: tuple[Difference, ...]
    flags: tuple[Sets, ...]
    tried: Flags = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    is_set_back: bool = False
    laws: Comparison | None = None

    @property
    def is_same(self) -> bool:
        return not (self.differences or (self.laws and self.laws.differences))

    def exceeds(self, share: Fraction) -> bool:
        """Along some axes, or of all FLOPs or the memory, more changed than this share of what there was; when
        transfers start and are awaited is none of it."""
        old, new = self.before.sites.ledger, self.after.sites.ledger
        amounts = (old.flops or 0, new.flops or 0), (_most_held(old), _most_held(new))
        return any(row.exceeds(share) for row in changes.by_axes(old, new)) or any(
            abs(after - before) > share * before for before, after in amounts
        )

    def json_object(self) -> UpgradeJson:
        ledgers = self.before.sites.ledger, self.after.sites.ledger
        return UpgradeJson(
            SCHEMA,
            ledgers[0].source,
            ledgers[0].target,
            ledgers[0].mesh,
            self.is_same,
            self.before.json_object(),
            self.after.json_object(),
            changes.Difference(*ledgers).json_object(),
            tuple(
                FoundJson(one.about, one.what, one.places, one.before, one.after, one.lines, *one.instructions, of)
                for one, of in zip(self.differences, self.flags, strict=True)
            ),
            self.tried,
            self.refused,
            self.laws or UNSET,
        )


@dataclass(frozen=True)
class CompiledJson:
    """`schedule` counts executions of transfers in a step: blocking ones, and those that are awaited later, hidden
    where products run beside them, else exposed; `async` where the text does not tell."""

    jax: str
    flags: Flags
    totals: TotalsJson
    schedule: Mapping[str, int]
    flops: int | None
    memory: Memory | None
    seconds: SecondsJson | UnsetType = UNSET


@dataclass(frozen=True)
class FoundJson:
    """One difference; each list in `flags` is a set of flags that makes it where it is set or, of another release,
    undoes it where it is set back."""

    about: About
    what: str
    places: tuple[str, ...]
    before: str
    after: str
    lines: tuple[str, ...]
    instructions_before: tuple[str, ...]
    instructions_after: tuple[str, ...]
    flags: Sets


@dataclass(frozen=True)
class UpgradeJson:
    """What `lab upgrade --json` prints."""

    schema: Literal["sharding-lab/upgrade/1"]
    source: str
    target: str | None
    mesh: Mapping[str, int] | None
    is_same: bool
    before: CompiledJson
    after: CompiledJson
    communication: DifferenceJson
    differences: tuple[FoundJson, ...]
    tried: Flags
    refused: Mapping[str, str]
    laws: Comparison | UnsetType = UNSET


def _most_held(ledger: Ledger) -> int:
    """Bytes at the peak or, where the backend gives none, all of them; 0 where nothing is known."""
    memory = ledger.memory
    if memory is None:
        return 0
    return memory.stays + memory.temporaries if memory.peak is None else memory.peak


def under_flags(program: Program, given: Flags) -> Upgrade:
    """Compare a program with flags of XLA and without them.

    Raises:
      UsageError: XLA does not know one of them, or does not compile the program with them.
    """
    before, after = Compiled.of(program, {}), Compiled.of(_with(program, given), given)

    def made(some: frozenset[str]) -> tuple[Difference, ...]:
        return differences(before.sites, _sites(program, {name: given[name] for name in some}))

    return _explained(before, after, given, made, lambda each, found: each in found)


def under_release(program: Program, before: Compiled, given: Flags, is_tried: bool = True) -> Upgrade:
    """A program as this release compiles it, with flags, beside what another release made of it.

    Args:
      is_tried: flags are set back, to find what differences come from.
    Raises:
      UsageError: as `under_flags`.
    """
    after = Compiled.of(_with(program, given), given)
    back = set_back(before.defaults, after.defaults, program.platform) if is_tried else {}
    options = dict(given) | {name: value for name, value in back.items() if name not in given}

    def left(some: frozenset[str]) -> tuple[Difference, ...]:
        kept = {name: value for name, value in options.items() if (name in given) != (name in some)}
        return differences(before.sites, _sites(program, kept))

    found = _explained(before, after, options if is_tried else {}, left, Difference.is_undone)
    return replace(found, is_set_back=True)


def _explained(
    before: Compiled,
    after: Compiled,
    options: Flags,
    trial: Callable[[frozenset[str]], tuple[Difference, ...]],
    counts: Callable[[Difference, Iterable[Difference]], bool],
) -> Upgrade:
    """With the sets of options that count, each compiled once.

    Args:
      trial: the differences that a set leaves or makes.
      counts: whether they explain a difference.
    """
    found = differences(before.sites, after.sites)
    known: dict[frozenset[str], tuple[Difference, ...] | str] = {}

    def tried(some: frozenset[str]) -> tuple[Difference, ...] | str:
        if some not in known:
            try:
                known[some] = trial(some)
            except NotApplicable as why:
                known[some] = str(why)
        return known[some]

    def refusal(some: frozenset[str]) -> str | None:
        why = tried(some)
        return why if isinstance(why, str) else None

    def shows(each: Difference, some: frozenset[str]) -> bool:
        those = tried(some)
        return not isinstance(those, str) and counts(each, those)

    names, refused = usable(options if found else (), refusal)
    sets = tuple(causes(names, partial(shows, each)) for each in found)
    told = tuple(tuple(tuple(setting(name, options[name]) for name in some) for some in each) for each in sets)
    return Upgrade(before, after, found, told, {name: options[name] for name in names}, refused)


def setting(name: str, value: str) -> str:
    """As a shell takes it."""
    return f"{name}={shlex.quote(value)}"


def _sites(program: Program, given: Flags) -> Sites:
    """Raises NotApplicable."""
    return Sites.of(_changed(program, given), is_held_told=False)


def _with(program: Program, given: Flags) -> Program:
    try:
        return _changed(program, given)
    except NotApplicable as why:
        told = " ".join(f"--{setting(name, value)}" for name, value in given.items())
        raise UsageError(f"{program.ledger.source}: XLA does not compile it with {told} ({why})") from None


def _changed(program: Program, given: Flags) -> Program:
    if not given:
        return program
    if program.attempt is None:
        raise NotApplicable("it was compiled before")
    return program.attempt(tuple(CompilerOption(name, value) for name, value in given.items()))
