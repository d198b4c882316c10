"""Chapter 30: is the wire of weights that ZeRO-3 gathers in float8 half of bf16's, and what do scales add?"""

from dataclasses import asdict, dataclass, fields
from functools import reduce
from operator import or_
from typing import ClassVar

from jax.sharding import Mesh

from lab.book.collectives import all_gather_wire_bytes
from lab.book.precision import scale_bytes
from lab.core.ledger import Kind, Ledger, Totals
from lab.core.units import share_text
from lab.harness.claim import Claim, decided
from lab.harness.decoder.step import SMALL
from lab.harness.decoder.zero_claims import stage_memory
from lab.harness.evidence import along, counted
from lab.harness.experiment import Experiment, on_one_axis
from lab.meshes.axes import FSDP, Axes
from lab.meshes.errors import UsageError
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import RECOMPUTING
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.precision import (
    AS_IT_IS,
    OF_MOMENTS,
    RECIPES,
    gathered_in,
    moments_in,
    multiplied_in,
    reduced_in,
)


@dataclass(frozen=True)
class NarrowShape(DecoderShape):
    """Sizes of a decoder and its batch, and the formats of what ZeRO-3 sends for its matrices.

    Attributes:
      recipe: in which weights are gathered: "tensor", "tile128", "mxfp8" or "int8"; "as_it_is": in `dtype`.
      gradients: in which their gradients travel, the same; "as_it_is": a reduce-scatter in `dtype`.
      products: in which a layer multiplies with them: "tensor" or "tile128"; "as_it_is": in `dtype`.
      moments: in which AdamW's moments of them are kept: "tile128"; "as_it_is": in float32.

    Raises:
      UsageError: as `DecoderShape`; an unknown recipe, or one that no compiler multiplies in.
    """

    recipe: str = "tile128"
    gradients: str = AS_IT_IS
    products: str = AS_IT_IS
    moments: str = AS_IT_IS

    CHOICES: ClassVar[tuple[str, ...]] = (*DecoderShape.CHOICES, "recipe", "gradients", "products", "moments")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {"recipe": RECIPES, "gradients": RECIPES, "moments": OF_MOMENTS}
        for name, recipes in known.items():
            if (found := getattr(self, name)) not in (AS_IT_IS, *recipes):
                raise UsageError(f"{name}={found}: expected one of {', '.join((*recipes, AS_IT_IS))}")
        if self.products != AS_IT_IS:
            multiplied_in(self.products)

    @property
    def strategy(self) -> Strategy:
        changes = (
            (self.recipe, lambda name: gathered_in(RECIPES[name])),
            (self.gradients, lambda name: reduced_in(RECIPES[name])),
            (self.products, multiplied_in),
            (self.moments, lambda name: moments_in(RECIPES[name])),
        )
        return reduce(or_, (change(name) for name, change in changes if name != AS_IT_IS), ZERO3)

    @property
    def rounds_micro_batches(self) -> bool:
        return (self.gradients, self.products) != (AS_IT_IS, AS_IT_IS)

    @property
    def plain(self) -> DecoderShape:
        return DecoderShape(**{each.name: getattr(self, each.name) for each in fields(DecoderShape)})


def build(style: str, shape: NarrowShape, mesh: Mesh) -> program.Program:
    return program.step(shape.strategy, style, shape.plain, mesh)


def predict(shape: NarrowShape, axes: Axes) -> Ledger:
    return shape.strategy.predict(shape.plain, axes)


def claims(shape: NarrowShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[FSDP] == 1:
        return ()
    formula = "12 Psi / P" if shape.moments == AS_IT_IS else "(4 + 2 (1 + 4 / 128)) Psi / P"
    held = stage_memory(shape.strategy, formula, shape.plain, axes, measured)
    return (held, *wire_claims(shape, axes, measured))


def wire_claims(shape: NarrowShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if shape.recipe == AS_IT_IS:
        return ()
    recipe, P = RECIPES[shape.recipe], axes[FSDP]
    rows = along(measured, FSDP, kind=Kind.ALL_GATHER)
    weights, scales = ([t for t in rows if t.scope.endswith("/scale") is is_scale] for is_scale in (False, True))
    sent = Totals.of(weights).wire_bytes
    passes = 2 if shape.remat in RECOMPUTING else 1
    ends = shape.parameters - shape.layer_matrices - shape.norms - shape.biases
    numbers = shape.accumulation * (passes * shape.layer_matrices + ends)
    narrow, wide = (all_gather_wire_bytes(numbers * e, P) for e in (1, shape.bytes_per_element))
    before, after = (ZERO3.predict(shape.plain, axes).totals().wire_bytes, measured.totals().wire_bytes)
    halved = decided(
        "ch30.comm_precision",
        sent == narrow,
        f"a device sends {counted(sent)} B of gathered weights, {share_text(float(sent / wide))} of the "
        f"{counted(wide)} B of {shape.dtype}; with scales, gradients and sums the step sends {counted(after)} B, "
        f"{share_text(float(after / before))} of {counted(before)}",
        statement="a number of a gathered weight is one byte on the wire",
    )
    if not recipe.block:
        return (halved,)
    beside = Totals.of(scales).wire_bytes
    book = all_gather_wire_bytes(scale_bytes(numbers, recipe.block, recipe.scale_bytes), P)
    return (
        halved,
        decided(
            "ch30.fp8_recipe",
            beside == book,
            f"scales of {recipe.block} values in {recipe.scale_bytes} B each add {counted(beside)} B, "
            f"{share_text(float(beside / sent))} of the weights' own",
            statement="scales of blocks add n / block of their bytes",
        ),
    )


EXPERIMENT = Experiment(
    name="ch30_fp8_step",
    chapter=30,
    question="Is the wire of gathered float8 weights half of bf16's, and what do scales add?",
    parameters=NarrowShape(),
    numeric_parameters=NarrowShape(**asdict(SMALL), recipe="tensor"),
    axes=on_one_axis(FSDP),
    build=build,
    predict=predict,
    claims=claims,
    state=lambda shape, mesh: program.arguments(program.PlacedStrategy(shape.strategy, shape.plain, mesh))[0],
    targets=("gpu:h100:2x8", "tpu:v5p:2x2x4"),
    styles=("explicit",),
    everyday=(("explicit", "gpu:h100:2x8"), ("explicit", "tpu:v5p:2x2x4")),
)
