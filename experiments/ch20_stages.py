"""Chapter 20: what does each ZeRO stage store, and what does it send in exchange?"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from lab.core.known import known
from lab.core.ledger import Ledger, Memory
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.plans import planned_step
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count, resolve_attached
from lab.meshes.axes import DATA, FSDP, Axes
from lab.meshes.targets import parse_target
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.terms import MemoryTerm, Terms
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3

STYLE = "explicit"
NORM_BYTES = 4
LESS = "each stage holds less than the one before at its peak as well"
STAGES = {"data parallelism": DATA_PARALLEL, "ZeRO-1": ZERO1, "ZeRO-2": ZERO2, "ZeRO-3": ZERO3}


@dataclass(frozen=True)
class Assumed(DecoderShape):
    """A decoder's step, each sequence on one device, over all devices of the target."""

    target: str = "gpu:h100:2x8"

    @property
    def shape(self) -> DecoderShape:
        return DecoderShape(**{name: value for name, value in asdict(self).items() if name != "target"})

    def axes(self, strategy: Strategy) -> Axes:
        return Axes.of({FSDP if strategy is ZERO3 else DATA: device_count(parse_target(self.target))})

    def measured(self, strategy: Strategy) -> Ledger:
        return planned_step(strategy, STYLE, self.shape, self.target, self.axes(strategy))

    def memory(self, strategy: Strategy) -> Memory:
        return known(self.measured(strategy).memory)

    def terms(self, strategy: Strategy) -> Terms:
        return peak_terms(
            strategy, STYLE, self.shape, self.axes(strategy), resolve_attached(parse_target(self.target)).memory_bytes
        )


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return tuple(row for name, strategy in STAGES.items() for row in _stage(name, strategy, assumed))


def _stage(name: str, strategy: Strategy, assumed: Assumed) -> tuple[Row, ...]:
    terms, found, memory = assumed.terms(strategy), assumed.measured(strategy), assumed.memory(strategy)
    peak = () if memory.peak is None else (Row(f"{name}: peak", memory.peak, "bytes", sum(terms.values())),)
    volume = strategy.predict(assumed.shape, assumed.axes(strategy)).totals().wire_bytes
    return (
        Row(f"{name}: held between steps", memory.arguments - memory.padding, "bytes", terms[MemoryTerm.ARGUMENTS]),
        *peak,
        Row(f"{name}: sent a step", float(found.totals().wire_bytes), "bytes", float(volume)),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (_memory(assumed), *_volumes(assumed), _peaks(assumed))


def _memory(assumed: Assumed) -> Claim:
    plans = {name: assumed.memory(strategy) for name, strategy in STAGES.items()}
    held = {name: plan.arguments - plan.padding for name, plan in plans.items()}
    book = {name: assumed.terms(strategy)[MemoryTerm.ARGUMENTS] for name, strategy in STAGES.items()}
    evidence = (
        f"between steps a device stores {_listed(held)} B; 12 Psi, 2 Psi + 12 Psi / P twice and 12 Psi / P with "
        f"norms replicated, without gradients: {_listed(book)} B"
    )
    return decided("ch20.stage_memory", held == book, evidence)


def _volumes(assumed: Assumed) -> tuple[Claim, ...]:
    sent = {name: float(assumed.measured(strategy).totals().wire_bytes) for name, strategy in STAGES.items()}
    dp = sent["data parallelism"]
    if assumed.accumulation > 1:
        return (
            calculated(
                "ch20.comm", f"a device sends {_listed(sent)} B for {assumed.accumulation} micro-batches a step"
            ),
        )
    evidence = f"stages 0 to 3 send {_listed(sent)} B a device and step"
    # Beyond gradients and weights, the norm of split gradients takes a sum of one float32.
    alike = all(0 <= sent[stage] - dp < 2 * NORM_BYTES for stage in ("ZeRO-1", "ZeRO-2"))
    return (
        decided(
            "ch20.comm",
            alike,
            evidence,
            statement="stages 1 and 2 send what data parallelism does",
            structural=True,
        ),
        decided(
            "ch20.comm", sent["ZeRO-2"] >= 2 * dp, evidence, statement="ZeRO-2 sends twice as much", disputed="4-5:D-68"
        ),
    )


def _peaks(assumed: Assumed) -> Claim:
    peaks = {name: assumed.memory(strategy).peak for name, strategy in STAGES.items()}
    found = {name: peak for name, peak in peaks.items() if peak is not None}
    if len(found) < len(peaks):
        return calculated("ch20.stage_memory", "this backend reports no peak", statement=LESS)
    falls = list(found.values()) == sorted(found.values(), reverse=True)
    evidence = f"at most a device holds {_listed(found)} B"
    return decided("ch20.stage_memory", falls, evidence, statement=LESS, structural=True)


def _listed(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{size:,.0f}" for size in sizes.values())


EXPERIMENT = Question(
    name="ch20_stages",
    chapter=20,
    question="What does each ZeRO stage store, and what does it send in exchange?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
