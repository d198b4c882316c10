"""What the waste of findings costs: seconds at the full rates of a chip, and what share that is of the least that a
step takes.

A step, or a part of it, takes at least as long as the busiest of its wires, its products and its memory: at best these
work at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lab.core.ledger import Kind, Transfer
from lab.core.room import Room
from lab.diagnosis.account import Account
from lab.diagnosis.finding import OUT_OF_MEMORY, Cost, Finding
from lab.diagnosis.program import Argument, Program, dtype_of_product
from lab.hlo.host_memory import HOST
from lab.meshes.hardware import Chip
from lab.meshes.platforms import LinkName
from lab.meshes.targets import Target, parse_target

REFERENCE = parse_target("gpu:h100:1x8")
"""By whose rates findings are ordered where the target has none."""
PRODUCTS, MEMORY = "products", "memory"
_INSIDE: Mapping[LinkName | None, LinkName] = {LinkName.NETWORK: LinkName.HOST, LinkName.DCN: LinkName.ICI}
"""Of the link between hosts or slices, the one inside them."""
# The fastest way in which XLA multiplies a dtype by default, then what stands for it on chips without: GPUs round f32
# to tf32, TPUs to bf16.
_RATED_AS = {
    "bf16": ("bf16",),
    "f16": ("f16", "bf16"),
    **dict.fromkeys(("f64", "c128"), ("f32", "bf16")),
    **dict.fromkeys(("s8", "u8", "s4", "u4"), ("s8", "bf16")),
}
_FLOAT_8, _OTHERS = ("f8", "bf16"), ("tf32", "bf16")
_PAYS = 1.25
_TAKES_A_PART = frozenset({"gather", "scatter", "slice", "dynamic-slice", "dynamic-update-slice"})
"""Of its first operand."""


@dataclass(frozen=True)
class Load:
    """What one device does: bytes sent by link, FLOPs of products by dtype, bytes read and written in its memory."""

    sent: Mapping[LinkName | None, Fraction] = field(default_factory=dict)
    flops: Mapping[str, int] = field(default_factory=dict)
    accessed: int = 0


@dataclass(frozen=True)
class Step:
    """What a step takes at least at the full rates of a chip.

    Attributes:
      chip: its name, for people.
      is_reference: the target has no rates; these are another chip's, and say which of two takes longer, not how long.
      seconds: of what each part does alone: the chip's links by their names, `products` and `memory`.
      is_least: no branch, and no transfer whose bytes depend on the data, is counted as if it always did the most.
    """

    chip: str
    is_reference: bool
    seconds: Mapping[str, float]
    is_least: bool = True

    @property
    def least(self) -> float:
        return max(self.seconds.values(), default=0.0)

    @property
    def busiest(self) -> str:
        return max(self.seconds, key=lambda part: self.seconds[part], default=MEMORY)

    def json_object(self) -> StepJson:
        return StepJson(self.chip, self.is_reference, self.seconds, self.least, self.is_least)


@dataclass(frozen=True)
class StepJson:
    """What a step takes at the full rates of a chip: its links, products and memory each alone, and the largest of
    these; of a reference chip where the target has no rates."""

    chip: str
    is_reference: bool
    seconds: Mapping[str, float]
    least_seconds: float
    is_least: bool


def priced(program: Program, found: Iterable[Finding]) -> tuple[tuple[Finding, ...], Step]:
    """The findings with their costs, the worst first: what keeps the program from running, then by the larger of their
    shares of the step and of the memory; and what the step takes."""
    step, target, crossing = step_of(program), rated(program), _crossing(program)
    room, chip = Room.of(target), target.hardware
    pool = room.usable_bytes if room else 0
    sure = max(seconds(_load(program, crossing, with_branches=False), chip).values(), default=0.0)
    ranked = [(_cost(finding, step, sure, chip, pool, crossing), finding) for finding in found]
    ranked.sort(key=lambda each: _rank(*each), reverse=True)
    ranked = [(cost, replace(finding, account=_account(program, finding))) for cost, finding in ranked]
    if step.is_reference:
        return tuple(replace(finding, cost=_unrated(cost)) for cost, finding in ranked), step
    return tuple(
        replace(finding, cost=cost, seconds=_sending(finding, chip, crossing)) for cost, finding in ranked
    ), step


def _account(program: Program, finding: Finding) -> Account:
    return Account.of(
        program.ledger.transfers,
        finding.transfers,
        finding.needed_bytes,
        finding.added_bytes,
        at_most=finding.at_most,
        flops=finding.added_flops - sum(finding.flops.values()),
        memory=finding.added_memory - finding.memory_bytes,
    )


def step_of(program: Program) -> Step:
    """What a step takes, by the rates of its target or, where that has none, of the reference."""
    chip, transfers = rated(program).hardware, program.ledger.transfers
    return Step(
        chip.name,
        program.target is None or program.target.chip is None,
        seconds(_load(program, _crossing(program)), chip),
        not any(t.conditional or t.upper_bound for t in transfers) and not program.ledger.flops_in_branches,
    )


def rated(program: Program) -> Target:
    """By whose rates a program is judged."""
    return REFERENCE if program.target is None or program.target.chip is None else program.target


def _rank(cost: Cost, finding: Finding) -> tuple[bool, bool, float, Fraction, int]:
    share = max(cost.share_of_step or 0.0, cost.share_of_memory or 0.0)
    wire, stops = finding.totals.wire_bytes, finding.kind == OUT_OF_MEMORY
    return stops, not replace(finding, cost=cost).is_remark, share, wire, finding.memory_bytes


def _sending(finding: Finding, chip: Chip, crossing: Mapping[str | None, Fraction]) -> float | None:
    """What all of its transfers take at least."""
    sent = _by_link(finding.transfers, crossing)
    return max(seconds(Load(sent), chip).values(), default=0.0) if sent else None


def _cost(
    finding: Finding, step: Step, sure: float, chip: Chip, pool: int, crossing: Mapping[str | None, Fraction]
) -> Cost:
    """Args: sure: seconds of the step where no branch runs."""
    sent = _wasted(finding, crossing)
    taken = max(seconds(Load(sent, finding.flops, finding.accessed_bytes), chip).values(), default=0.0)
    is_known = all(t.executions is not None for t in finding.transfers)
    return Cost(
        sent,
        at_most=bool(finding.transfers) and finding.needed_bytes is None,
        seconds=taken,
        share_of_step=taken / step.least if is_known and step.least else None,
        share_of_memory=finding.memory_bytes / pool if pool and finding.memory_bytes else None,
        share_at_most=taken / (max(sure, taken) or 1) if is_known and step.least else None,
        at_least=bool(finding.transfers) and finding.at_most and finding.needed_bytes is not None,
    )


def _unrated(cost: Cost) -> Cost:
    return replace(cost, seconds=None, share_of_step=None, share_of_memory=None, share_at_most=None)


def _wasted(finding: Finding, crossing: Mapping[str | None, Fraction]) -> Mapping[LinkName | None, Fraction]:
    """What its transfers send and need not, by link; all of it where what is needed is not known."""
    sent = _by_link(finding.transfers, crossing)
    whole, needed = sum(sent.values(), Fraction(0)), finding.needed_bytes or Fraction(0)
    wasted = max(Fraction(0), 1 - needed / whole) if whole else Fraction(0)
    return {link: size * wasted for link, size in sent.items() if size * wasted}


def _by_link(transfers: Iterable[Transfer], crossing: Mapping[str | None, Fraction]) -> dict[LinkName | None, Fraction]:
    """Once where the text does not say how often."""
    found: dict[LinkName | None, Fraction] = {}
    for t in transfers:
        size = (t.wire_bytes or Fraction(0)) * (1 if t.executions is None else t.executions)
        across = size * (crossing.get(t.instruction, Fraction(1)) if t.link in _INSIDE else 1)
        for link, part in ((t.link, across), (_INSIDE.get(t.link), size - across)):
            if part:
                found[link] = found.get(link, Fraction(0)) + part
    return found


def _crossing(program: Program) -> Mapping[str | None, Fraction]:
    """By instruction, what share of its wire bytes has to leave a host or slice at least: where a group has several
    devices in each, these take a part of it each, and send the rest inside."""
    devices = program.reading.reader.placement.devices
    if devices is None:
        return {}
    found: dict[str | None, Fraction] = {}
    for site in program.sites:
        groups = program.members(site) if site.transfer.link in _INSIDE else None
        if groups is not None and site.transfer.instruction not in found:
            shares = (leaving(site.transfer.kind, [devices.domains[at] for at in row]) for row in groups.members)
            found[site.transfer.instruction] = max(shares, default=Fraction(1))
    return found


def leaving(kind: Kind, domains: Sequence[int]) -> Fraction:
    """Of what a member of a group sends, as its members lie in domains."""
    members, parts = len(domains), len(set(domains))
    if parts == 1:
        return Fraction(0)
    if kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER) and members > 1:
        return Fraction(parts - 1, members - 1)
    if kind == Kind.ALL_TO_ALL and members > 1:
        return Fraction(members * (parts - 1), parts * (members - 1))
    return Fraction(1)


def seconds(load: Load, chip: Chip) -> Mapping[str, float]:
    """What each part takes alone, at its full rate; the devices of a chip share its rates."""
    found = defaultdict[str, float](float)
    for link, size in load.sent.items():
        wire = chip.slow if link in _INSIDE else chip.fast
        found[wire.name] += float(size) / wire.value
    for dtype, flops in load.flops.items():
        found[PRODUCTS] += flops / flops_per_s(chip, dtype)
    found[MEMORY] += load.accessed / chip.memory_bytes_per_s.value
    return {part: taken * chip.devices_per_chip for part, taken in found.items() if taken}


def pays(saved: Load, spent: Load, chip: Chip) -> bool:
    """What is saved takes longer than what is done instead, by a quarter at least: of two ways to do the same, each
    sending what the other computes, one at most pays."""
    now, then = (sum(seconds(load, chip).values()) for load in (saved, spent))
    return then * _PAYS <= now and now > 0


def flops_per_s(chip: Chip, dtype: str) -> float:
    """The dense peak of products with operands of a dtype."""
    names = _RATED_AS.get(dtype, _FLOAT_8 if dtype.startswith(("f8", "f4")) else _OTHERS)
    return next(chip.flops_per_s[name].value for name in names if name in chip.flops_per_s)


def _load(program: Program, crossing: Mapping[str | None, Fraction], with_branches: bool = True) -> Load:
    """Of a whole step, or of one where no branch runs."""
    flops = Counter[str]()
    for visit, work in program.reading.products:
        if with_branches or not visit.conditional:
            flops[dtype_of_product(visit)] += (work.flops or 0) * (1 if visit.executions is None else visit.executions)
    transfers = [t for t in program.ledger.transfers if with_branches or not t.conditional]
    return Load(_by_link(transfers, crossing), flops, _accessed(program))


def _accessed(program: Program) -> int:
    """At least: arguments that are read whole, and results that are made in no argument's memory."""
    read = [a.local.bytes for a in program.arguments if HOST not in a.place.instruction.shape and _is_read(program, a)]
    memory = program.ledger.memory
    return sum(read) + (max(0, memory.outputs - memory.aliased) if memory else 0)


def _is_read(program: Program, argument: Argument) -> bool:
    """Whole: by something that takes no part of it, or a part in each iteration of a loop."""
    return any(
        use.number > 0
        or use.opcode not in _TAKES_A_PART
        or (use.opcode == "dynamic-slice" and bool(program.flow.loops(use.computation)))
        for use in program.flow.uses(*argument.place)
        if use.opcode is not None
    )
