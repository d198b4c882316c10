"""Chapter 37: which of the case studies' groups stay inside a domain of fast links?"""

from dataclasses import dataclass

from lab.book.device_mesh import domains_spanned
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.zoo import cluster

# Degrees from the innermost axis out. Experts are split over part of the data axis.
MESHES = {
    "llama3-405b": {"tensor": 8, "context": 1, "pipe": 16, "data": 128},
    "llama3-405b, 128K": {"tensor": 8, "context": 16, "pipe": 16, "data": 8},
    "deepseek-v3": {"expert": 64, "data": 2, "pipe": 16},
    "mixtral-8x22b": {"tensor": 4, "expert": 8, "data": 2},
}
"""Sources: Llama 3 report, Table 4; DeepSeek-V3 report, section 3.2 (TP 1, PP 16, EP 64 on 2,048 GPUs); the book's Ch.
36."""


@dataclass(frozen=True)
class Assumed:
    """The cluster whose domains count."""

    cluster: str = "dgx-h100"


def spans(cluster_name: str) -> dict[tuple[str, str], int]:
    """(model, axis) to the domains that one group of the axis lies in, axes of one rank left out."""
    chips, found = cluster(cluster_name).domain_chips, {}
    for name, mesh in MESHES.items():
        stride = 1
        for axis, size in mesh.items():
            if size > 1:
                found[name, axis] = int(domains_spanned(size, stride, chips))
            stride *= size
    return found


def answer(assumed: Assumed) -> tuple[Row, ...]:
    found = spans(assumed.cluster)
    return tuple(
        Row(f"{name}: {axis} of {MESHES[name][axis]} spans", count, "domain" if count == 1 else "domains")
        for (name, axis), count in found.items()
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    found = spans("dgx-h100")
    inside = {name: found.get((name, "tensor")) for name in MESHES}
    none = [name for name, domains in inside.items() if domains is None]
    return (
        decided(
            "ch37.exercises",
            not none,
            f"{', '.join(none)} has no tensor parallelism; its experts of 64 ranks lie in "
            f"{found['deepseek-v3', 'expert']} nodes of 8",
            statement="all three keep tensor parallelism inside NVLink",
            disputed="6-8:D-146",
        ),
    )


EXPERIMENT = Question(
    name="ch37_placement",
    chapter=37,
    question="Which of the case studies' groups stay inside a domain of fast links?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
