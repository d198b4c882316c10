"""Chapter 24: what does each strategy, and each pair of two, hold on a device and send in a step? `lab plot strategies`
draws the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.harness.question import Question, Row
from lab.programs.composed.lattice import Lattice, lattice
from lab.programs.models.shape import DecoderShape


@dataclass(frozen=True)
class Assumed:
    """`batch` sequences a step; each layer recomputed from its input; pairs as even as `devices` allow."""

    model: str = "llama3-8b"
    devices: int = 8
    batch: int = 64

    @property
    def lattice(self) -> Lattice:
        return lattice(replace(DecoderShape.preset(self.model), batch=self.batch), self.devices)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    found = assumed.lattice
    rows = [
        row
        for point in sorted(found.points, key=lambda point: point.held)
        for row in (
            Row(f"{point.name}: held by a device", point.held, "B"),
            Row(f"{point.name}: sent by a device a step", point.sent, "B"),
        )
    ]
    least = [Row("nothing holds and sends less than", point.name) for point in found.frontier]
    why: dict[str, list[str]] = {}
    for name, reason in found.refused.items():
        why.setdefault(reason, []).append(name)
    return (*rows, *least, *(Row(f"left out: {', '.join(names)}", reason) for reason, names in why.items()))


EXPERIMENT = Question(
    name="ch24_strategies",
    chapter=24,
    question="What does each strategy, and each pair of two, hold on a device and send in a step?",
    parameters=Assumed(),
    answer=answer,
    claims=lambda _assumed: (),
)
