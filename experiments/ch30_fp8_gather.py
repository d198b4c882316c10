"""Chapter 30: what does a matrix cost on the wire in 16 bits and in 8, gathered or summed, with every scale counted?"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.collectives import all_gather_wire_bytes
from lab.book.precision import scale_bytes
from lab.core.ledger import Kind, Ledger, Totals, Transfer
from lab.core.units import share_text
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted, in_scope, sent
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import FLOAT_BYTES, Array, Part, Sent, experiment
from lab.meshes.axes import FSDP, Axes
from lab.programs.models.collective_hooks import Dims
from lab.programs.strategies.wire import Narrow, Wire, on_wire, rounded, scattered
from lab.programs.transforms.precision import RECIPES

WIDE, SUMMED = "bf16", "summed"
"""Parts: gathered in 16 bits; summed in 8."""
SUM = RECIPES["int8"]


@dataclass(frozen=True)
class Sizes:
    """Rows of the matrix, which are split, and columns."""

    rows: int = 4096
    columns: int = 1024

    @property
    def elements(self) -> int:
        return self.rows * self.columns


def matrix(sizes: Sizes, axes: Axes) -> tuple[Array]:
    return (Array((sizes.rows, sizes.columns), P(FSDP)),)


def matrices(sizes: Sizes, axes: Axes) -> tuple[Array]:
    """One of each rank."""
    return (Array((axes[FSDP], sizes.rows, sizes.columns), P(FSDP)),)


def whole(w_DF: jax.Array, dims: Dims = ()) -> jax.Array:
    return jax.lax.all_gather(w_DF, FSDP, axis=w_DF.ndim - 2, tiled=True, to="invarying")


def in_16_bits(w_DF: jax.Array) -> jax.Array:
    return whole(w_DF.astype(jnp.bfloat16)).astype(jnp.float32)


def in_8_bits(recipe: Narrow, w_DF: jax.Array) -> jax.Array:
    return on_wire(whole, Wire(weights=recipe), (FSDP,), 0, (), w_DF)


def summed(g_1DF: jax.Array) -> jax.Array:
    """This rank's rows of the sum."""
    return scattered(g_1DF[0], SUM, (FSDP,), 0)


def rounded_whole(recipe: Narrow, w_DF: jax.Array) -> jax.Array:
    return rounded(w_DF[None], recipe)[0]


def summed_whole(g_PDF: jax.Array) -> jax.Array:
    return jnp.sum(rounded(g_PDF[:, None], SUM)[:, 0], 0)


def two_bytes(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_GATHER, (FSDP,), sizes.elements // 2, dtype=WIDE),)


def one_byte(recipe: Narrow, kind: Kind, sizes: Sizes, axes: Axes) -> tuple[Sent, Sent]:
    """Each number, and the scales of its blocks; or before it the largest magnitude."""
    numbers = Sent(kind, (FSDP,), sizes.elements // FLOAT_BYTES, dtype=recipe.dtype)
    if not recipe.block:
        return numbers, Sent(Kind.ALL_REDUCE, (FSDP,), 1)
    scales = sizes.elements // recipe.block * recipe.scale_bytes
    return numbers, Sent(kind, (FSDP,), scales // FLOAT_BYTES, dtype=recipe.scale, scope="scale")


def narrow(name: str, recipe: Narrow) -> Part:
    sends = partial(one_byte, recipe, Kind.ALL_GATHER)
    return Part(name, matrix, partial(in_8_bits, recipe), P(), partial(rounded_whole, recipe), sends)


PARTS = (
    Part(WIDE, matrix, in_16_bits, P(), lambda w_DF: w_DF.astype(jnp.bfloat16).astype(jnp.float32), two_bytes),
    *(narrow(name, recipe) for name, recipe in RECIPES.items()),
    Part(SUMMED, matrices, summed, P(FSDP), summed_whole, partial(one_byte, SUM, Kind.ALL_TO_ALL)),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes[FSDP]
    if ranks == 1:
        return ()
    wide = sent(measured, WIDE).wire_bytes
    found = {name: Totals.of(gathers(measured, name)).wire_bytes for name in RECIPES}
    half = all_gather_wire_bytes(sizes.elements, ranks)
    return (
        decided(
            "ch30.comm_precision",
            set(found.values()) == {half},
            f"a device sends {counted(wide)} B of {sizes.elements:,} numbers in {WIDE}, and "
            + ", ".join(f"{counted(n)} B as {name}" for name, n in found.items()),
            statement="a number in 8 bits takes half of the wire of one in 16, scales apart",
        ),
        *(scales(name, recipe, sizes, ranks, measured) for name, recipe in RECIPES.items() if recipe.block),
    )


def gathers(measured: Ledger, name: str) -> tuple[Transfer, ...]:
    return tuple(t for t in in_scope(measured, name) if t.kind is Kind.ALL_GATHER)


def scales(name: str, recipe: Narrow, sizes: Sizes, ranks: int, measured: Ledger) -> Claim:
    found = sent(measured, f"{name}/scale").wire_bytes
    book = all_gather_wire_bytes(scale_bytes(sizes.elements, recipe.block, recipe.scale_bytes), ranks)
    own = all_gather_wire_bytes(sizes.elements, ranks)
    return decided(
        "ch30.fp8_recipe",
        found == book,
        f"scales of {recipe.block} numbers in {recipe.scale_bytes} B each add {counted(found)} B, "
        f"{share_text(float(found / own))} of the numbers' own",
        statement=f"{name}: n / block scales are sent",
    )


EXPERIMENT = experiment(
    name="ch30_fp8_gather",
    chapter=30,
    question="What does a matrix cost on the wire in 16 bits and in 8, every scale counted?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(rows=64, columns=256),
    axes=on_one_axis(FSDP),
    claims=claims,
)
