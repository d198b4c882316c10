"""What the tests of the decoder's strategies share: every layout with a mesh of 8 devices, and a case as one value."""

from dataclasses import dataclass, replace
from itertools import product

from lab.meshes.axes import Axes
from lab.programs.models.shape import REMATS, DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_SEQUENCE, FSDP_TENSOR
from lab.programs.strategies.hybrid import HYBRID
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3

LAYOUTS: dict[str, tuple[Strategy, str]] = {
    "data": (DATA_PARALLEL, "data=8"),
    "zero1": (ZERO1, "data=8"),
    "zero2": (ZERO2, "data=8"),
    "zero3": (ZERO3, "fsdp=8"),
    "hybrid": (HYBRID, "data=2,fsdp=4"),
    "data x tensor": (DATA_PARALLEL | TENSOR_PARALLEL, "data=2,tensor=4"),
    "data x sequence": (DATA_PARALLEL | SEQUENCE_PARALLEL, "data=2,tensor=4"),
    "fsdp x tensor": (FSDP_TENSOR, "fsdp=2,tensor=4"),
    "fsdp x sequence": (FSDP_SEQUENCE, "fsdp=2,tensor=4"),
}
STYLES = ("declared", "explicit")
ACCUMULATIONS = (1, 2, 4)
SHAPE = DecoderShape(
    layers=3, batch=32, length=8, embed=24, kv_heads=4, queries=2, head_dim=6, mlp=40, vocab=48, dtype="f32"
)
"""Every dim splits over what any layout splits it over, four micro-batches too."""
UNEVEN = replace(SHAPE, kv_heads=3, queries=3, mlp=41, vocab=47)
"""Heads, hidden dims and words split over no axis: where none is to split them, that is nobody's matter."""


@dataclass(frozen=True)
class Case:
    layout: str
    style: str
    remat: str
    accumulation: int
    tied: bool

    def __str__(self) -> str:
        return f"{self.layout}, {self.style}, {self.remat}, {self.accumulation} at once{', tied' if self.tied else ''}"

    @property
    def strategy(self) -> Strategy:
        return LAYOUTS[self.layout][0]

    @property
    def axes(self) -> Axes:
        return Axes.parse(LAYOUTS[self.layout][1])

    @property
    def shape(self) -> DecoderShape:
        shape = SHAPE if "tensor" in self.axes.names else UNEVEN
        return replace(shape, remat=self.remat, accumulation=self.accumulation, tied=self.tied)


EVERY_CASE = tuple(Case(*choice) for choice in product(LAYOUTS, STYLES, REMATS, ACCUMULATIONS, (False, True)))


def covering() -> tuple[Case, ...]:
    """One case for each layout with each recomputation; the other choices run through them, so that any two choices
    meet."""
    return tuple(
        Case(layout, STYLES[(i + j) % 2], remat, ACCUMULATIONS[(i + j) % 3], (5 * i + j) % 3 == 0)
        for (i, layout), (j, remat) in product(enumerate(LAYOUTS), enumerate(REMATS))
    )
