"""Chapter 15: which formulas does the compiler follow for what tensor parallelism sends?"""

from dataclasses import dataclass
from functools import cache

from lab.core.ledger import Kind
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.laws import formula
from lab.laws.law import Law
from lab.laws.polynomial import Polynomial, collected, monomial
from lab.laws.question import Question as LawQuestion
from lab.laws.question import answered
from lab.meshes.axes import TENSOR, TypedAxes
from lab.meshes.targets import parse_target

F32 = 4
"""Bytes of an element: fake CPU devices widen what is narrower."""
SUMS = 4
"""Of a layer: of attention and MLP, forward and backward."""


@dataclass(frozen=True)
class Assumed:
    """Sizes that the search begins with; its mesh begins with two ranks along each axis."""

    layers: int = 3
    batch: int = 8
    length: int = 32
    embed: int = 64
    target: str = "cpu:4"


@cache
def law(s: Assumed) -> Law:
    sizes = {"layers": s.layers, "batch": s.batch, "length": s.length, "embed": s.embed}
    fixed = {"kv_heads": 8, "head_dim": 8, "mlp": 96, "vocab": 128, "dtype": "f32", "remat": "none"}
    asked = LawQuestion(
        "ch15_tensor_parallel",
        ("data", TENSOR, *sizes),
        TypedAxes.parse("data=2,tensor=2"),
        parse_target(s.target),
        "explicit",
        tuple((name, str(setting)) for name, setting in (sizes | fixed).items()),
    )
    return answered(asked)


def of_layers(found: Law) -> Polynomial:
    """Payload of a step, of the sums over the ranks of tensor parallelism in all layers."""
    terms = [t for t in found.terms if t.kind is Kind.ALL_REDUCE and t.axes == (TENSOR,)]
    return collected(m for term in terms if term.scope.startswith("layers/") for m in term.payload_of_step)


def book() -> Polynomial:
    """8 (P - 1) / P b s d e a layer, of which an all-reduce sends 2 (P - 1) / P of its payload."""
    powers = {"batch": 1, "length": 1, "embed": 1, "layers": 1, "data": -1}
    return (monomial(SUMS * F32, powers),)


def answer(s: Assumed) -> tuple[Row, ...]:
    found = law(s)
    terms: dict[str, list[Polynomial]] = {}
    for term in found.terms:
        terms.setdefault(f"{term.kind} over {'+'.join(term.axes)}", []).append(term.payload_of_step)
    checks = [f"{check.equal} of {check.terms}" for check in found.checks]
    settled = [each.verdict for each in found.theory.settled] if found.theory else []
    return (
        *(
            Row(f"payload of {what} a step", formula.text(collected(m for of in some for m in of)), "B")
            for what, some in terms.items()
        ),
        Row("terms that are equal at sizes never compiled before", ", ".join(checks)),
        Row("theory and law at these sizes and beyond", ", ".join(settled)),
    )


def claims(s: Assumed) -> tuple[Claim, ...]:
    found = law(s)
    is_right = of_layers(found) == book() and all(check.is_equal for check in found.checks)
    evidence = (
        f"{len(found.compiled)} compiles give {formula.text(of_layers(found))} B of sums over tensor in all layers, of "
        f"which a device sends 2 (P - 1) / P; 8 (P - 1) / P b s d e a layer is that of {formula.text(book())} B"
    )
    return (decided("ch15.tp_allreduce_volume", is_right, evidence),)


EXPERIMENT = Question(
    name="ch15_law",
    chapter=15,
    question="Which formulas does the compiler follow for what tensor parallelism sends?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
