"""Chapter 19: at the real size of a model, is the peak memory of a device the sum of named terms under every
layout?"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import NamedTuple

from lab.core.known import known
from lab.core.ledger import Memory
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.plans import planned_step
from lab.harness.evidence import counted
from lab.harness.experiment import STYLES, on_one_axis, on_two_axes, with_tensor_inside_host
from lab.harness.question import Question, Row
from lab.meshes.attached import resolve_attached
from lab.meshes.axes import DATA, FSDP, TENSOR, Axes
from lab.meshes.targets import Target, parse_target
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.terms import MemoryTerm, Terms
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_TENSOR
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1
from lab.programs.strategies.zero3 import ZERO3

CLOSE = 0.05
REMATS = ("full", "none")


class Layout(NamedTuple):
    strategy: Strategy
    axes: Callable[[Target], Axes]


LAYOUTS = {
    "data parallelism": Layout(DATA_PARALLEL, on_one_axis(DATA)),
    "ZeRO-1": Layout(ZERO1, on_one_axis(DATA)),
    "ZeRO-3": Layout(ZERO3, on_one_axis(FSDP)),
    "tensor parallelism": Layout(DATA_PARALLEL | TENSOR_PARALLEL, with_tensor_inside_host(DATA)),
    "tensor + sequence parallelism": Layout(DATA_PARALLEL | SEQUENCE_PARALLEL, with_tensor_inside_host(DATA)),
    "FSDP x tensor": Layout(FSDP_TENSOR, on_two_axes(FSDP, TENSOR)),
}


class Program(NamedTuple):
    """A layout by its name, the style it is written in, and what the backward pass computes again."""

    layout: str
    style: str
    remat: str

    def __str__(self) -> str:
        return f"{self.layout}, {self.style}, remat={self.remat}"


PROGRAMS = tuple(Program(*choices) for choices in product(LAYOUTS, STYLES, REMATS))


@dataclass(frozen=True)
class Assumed(DecoderShape):
    """Llama 3 8B, as many sequences a step as devices."""

    layers: int = 32
    batch: int = 16
    length: int = 8192
    embed: int = 4096
    kv_heads: int = 8
    queries: int = 4
    head_dim: int = 128
    mlp: int = 14336
    vocab: int = 128256
    target: str = "gpu:h100:2x8"

    @property
    def place(self) -> Target:
        return parse_target(self.target)

    def shape(self, remat: str) -> DecoderShape:
        return DecoderShape(
            **{name: value for name, value in asdict(self).items() if name != "target"} | {"remat": remat}
        )

    def terms(self, of: Program) -> Terms:
        strategy, axes = LAYOUTS[of.layout]
        return peak_terms(
            strategy, of.style, self.shape(of.remat), axes(self.place), resolve_attached(self.place).memory_bytes
        )

    def planned(self, of: Program) -> Memory:
        strategy, axes = LAYOUTS[of.layout]
        return known(planned_step(strategy, of.style, self.shape(of.remat), self.target, axes(self.place)).memory)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return tuple(row for of in PROGRAMS for row in _rows(assumed, of))


def _rows(assumed: Assumed, of: Program) -> Iterator[Row]:
    found, terms = assumed.planned(of), assumed.terms(of)
    yield Row(f"{of}: arguments", found.arguments - found.padding, "bytes", terms[MemoryTerm.ARGUMENTS])
    if found.peak is not None:
        yield Row(f"{of}: peak", found.peak, "bytes", sum(terms.values()))


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return tuple(_total(of, assumed) for of in PROGRAMS)


def _total(of: Program, assumed: Assumed) -> Claim:
    peak, total = assumed.planned(of).peak, sum(assumed.terms(of).values())
    if peak is None or resolve_attached(assumed.place).platform != "gpu":
        return calculated(
            "ch19.total", f"{of}: {counted(total)} B; copies into other layouts are those of XLA's GPU compiler"
        )
    evidence = f"{of}: the terms sum to {counted(total)} B and XLA plans {counted(peak)} B, {peak / total - 1:+.1%}"
    return decided(
        "ch19.total",
        abs(total / peak - 1) < CLOSE,
        evidence,
        statement=f"the sum of named terms is the peak within {CLOSE:.0%} at real size",
    )


EXPERIMENT = Question(
    name="ch19_real_sizes",
    chapter=19,
    question="At the real size of a model, is the peak memory of a device the sum of named terms under every layout?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
