"""The sizes and the arithmetic of one matrix product, as its time depends on them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod

from lab.hlo.flops import Work, operand_shapes
from lab.hlo.shapes import arrays
from lab.hlo.text import Computation, Instruction

_NUMBERS = re.compile(r'"dot_dimension_numbers":(\{[^{}]*\})')
_PRECISION = re.compile(r'operand_precision"?[=:][{\[]"?(\w+)', re.IGNORECASE)
_ALGORITHM = re.compile(r'algorithm"?[=:]"?(?:ALG_)?((?:dot_)?[a-z]\w+_\w+)', re.IGNORECASE)


@dataclass(frozen=True)
class Product:
    """`batch` products of [m, k] with [k, n].

    Attributes:
      dtype: of the arithmetic: float32 operands are multiplied as `tf32`, unless they ask for more.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def product_of(i: Instruction, where: Computation, work: Work) -> Product | None:
    """None of what is no product of two matrices, as a library's convolution is."""
    operands = operand_shapes(i, where)
    if len(operands) < 2 or not work.flops:
        return None
    lhs, rhs = operands[:2]
    dtype = arithmetic(i, where)
    if i.opcode == "dot" or i.opcode.startswith("custom-call"):
        batch_dims, contracted = _dims(i)
        if contracted and all(dim < len(lhs.dims) for dim in (*batch_dims, *contracted)):
            batch, k = prod(lhs.dims[dim] for dim in batch_dims), prod(lhs.dims[dim] for dim in contracted)
            sizes = (lhs.elements // max(1, batch * k), rhs.elements // max(1, batch * k))
            return Product(batch, *sizes, k, dtype)
    labels = re.search(r"->(\w+)", i.attributes) if i.opcode == "convolution" else None
    result = arrays(i.shape)
    if labels and result and len(result[0].dims) == len(labels[1]):
        # So TPUs write products, and run convolutions as one: of all positions with the taps of all channels.
        n = result[0].dims[labels[1].index("f")]
        m = result[0].elements // max(1, n)
        return Product(1, m, n, max(1, work.flops // (2 * m * n)), dtype)
    return None


def _dims(i: Instruction) -> tuple[list[int], list[int]]:
    """(batch, contracted) of the first operand."""
    if i.opcode == "dot":
        found = [i.braced(name) for name in ("lhs_batch_dims", "lhs_contracting_dims")]
        batch, contracted = ([int(dim) for dim in re.findall(r"\d+", text or "")] for text in found)
        return batch, contracted
    numbers = _NUMBERS.search(i.extras.replace("\\", ""))
    given = json.loads(numbers[1]) if numbers else {}
    return (
        [int(dim) for dim in given.get("lhs_batch_dimensions", [])],
        [int(dim) for dim in given.get("lhs_contracting_dimensions", [])],
    )


def arithmetic(i: Instruction, where: Computation) -> str:
    """What GPUs multiply in; the narrower operand of two decides nothing: it is widened first."""
    lhs, rhs = (shape.dtype for shape in operand_shapes(i, where)[:2])
    dtype = lhs if lhs[:2] == rhs[:2] else max(lhs, rhs, key=_bits)
    if dtype.startswith("f8"):
        return "f8"
    if dtype != "f32":
        return dtype
    text = i.attributes + i.extras
    algorithm, precision = _ALGORITHM.search(text), _PRECISION.search(text)
    name = algorithm[1].lower().removeprefix("alg_").removeprefix("dot_") if algorithm else ""
    if name and name != "unset":
        return "bf16" if name == "bf16_bf16_f32" else name if "_x" in name else name.split("_")[0]
    return "f32" if precision and precision[1].lower() == "highest" else "tf32"


def _bits(dtype: str) -> int:
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 0
