"""Chapter 19: is the peak memory of a device the sum of state, activations, gradients and one layer in use?"""

from dataclasses import asdict, dataclass

from lab.book.memory import model_state_bytes
from lab.core.known import known
from lab.core.ledger import Memory
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.plans import planned_step
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count, resolve_attached
from lab.meshes.axes import DATA, Axes
from lab.meshes.targets import Target, parse_target
from lab.programs.memory.peak import peak_terms
from lab.programs.memory.terms import MemoryTerm, Terms, label
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL

STYLE, CLOSE = "explicit", 0.05
EXTREMES = {"all recomputed": "full", "nothing recomputed": "none"}


@dataclass(frozen=True)
class Assumed(DecoderShape):
    """Data parallelism, each device with sequences of its own."""

    target: str = "gpu:h100:2x8"

    def shape(self, remat: str) -> DecoderShape:
        return DecoderShape(
            **{name: value for name, value in asdict(self).items() if name != "target"} | {"remat": remat}
        )

    @property
    def place(self) -> Target:
        return resolve_attached(parse_target(self.target))

    @property
    def axes(self) -> Axes:
        return Axes.of({DATA: device_count(parse_target(self.target))})

    def terms(self, remat: str) -> Terms:
        return peak_terms(DATA_PARALLEL, STYLE, self.shape(remat), self.axes, self.place.memory_bytes)

    def measured(self, remat: str) -> Memory:
        return known(planned_step(DATA_PARALLEL, STYLE, self.shape(remat), self.target, self.axes).memory)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return tuple(
        row for name, remat in EXTREMES.items() for row in _sum(name, assumed.terms(remat), assumed.measured(remat))
    )


def _sum(name: str, terms: Terms, found: Memory) -> tuple[Row, ...]:
    parts = tuple(Row(f"{name}: {label(term)}", size, "bytes") for term, size in terms.items() if size)
    return parts if found.peak is None else (*parts, Row(f"{name}: peak", found.peak, "bytes", sum(terms.values())))


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (_state(assumed), *(_total(name, remat, assumed) for name, remat in EXTREMES.items()), _fullest(assumed))


def _state(assumed: Assumed) -> Claim:
    """Weights in use and gradients are temporary here, 2 bytes each of the book's 16."""
    found, terms = assumed.measured("full"), assumed.terms("full")
    book = int(model_state_bytes(assumed.parameters, weight_bytes=0, gradient_bytes=0))
    held = found.arguments - found.padding
    evidence = (
        f"a device stores {counted(held)} B between steps, {counted(book)} B of them master weights and moments; "
        "gradients and 16-bit weights are temporary"
    )
    return decided(
        "ch19.model_state",
        held == terms[MemoryTerm.ARGUMENTS],
        evidence,
        statement="12 of the 16 bytes a parameter are master weights and moments",
    )


def _total(name: str, remat: str, assumed: Assumed) -> Claim:
    peak, total = assumed.measured(remat).peak, sum(assumed.terms(remat).values())
    if peak is None or assumed.place.platform != "gpu":
        return calculated(
            "ch19.total", f"{name}: {counted(total)} B; copies into other layouts are those of XLA's GPU compiler"
        )
    evidence = (
        f"{name}: the terms sum to {counted(total)} B and XLA plans {counted(peak)} B, {peak / total - 1:+.1%}; no "
        "allocator, no fragments"
    )
    return decided(
        "ch19.total",
        abs(total / peak - 1) < CLOSE,
        evidence,
        statement=f"the sum of named terms is the peak within {CLOSE:.0%}",
    )


def _fullest(assumed: Assumed) -> Claim:
    largest = {
        name: [term for term in assumed.terms(remat) if term != "arguments" and assumed.terms(remat)[term]]
        for name, remat in EXTREMES.items()
    }
    return calculated(
        "ch19.peak_at_backward",
        "; ".join(f"{name}, a step is fullest with {', '.join(map(label, terms))}" for name, terms in largest.items()),
    )


EXPERIMENT = Question(
    name="ch19_memory",
    chapter=19,
    question="Is the peak memory of a device the sum of state, activations, gradients and one layer in use?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
