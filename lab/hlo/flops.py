"""Floating-point operations of matrix products and convolutions, as one device runs them: a multiply-add counts 2, one
of complex numbers 8.

A convolution counts no product with padding or holes, be they in its window or in an array that is padded before it.
Products that XLA writes as multiplications and sums, those with a vector above all, count as what they are. Every group
of a ragged product counts where XLA multiplies all rows with all groups. A library's attention counts all of its
scores, also those that a mask lets it leave out. Work of no such form (FFTs, factorizations, kernels in calls) is None,
which is not 0, unless the call states its FLOPs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import gcd, prod

from lab.hlo import calls
from lab.hlo.shapes import Shape, arrays, shapes_of
from lab.hlo.text import RUNS_CALLEE, Computation, Instruction, Module, braced

OPCODES = frozenset({"dot", "convolution", "custom-call", "custom-call-start", "ragged-dot", "scaled-dot"})
_UNKNOWN_OPCODES = frozenset({"fft", "cholesky", "triangular-solve"})
_SUMS = frozenset({"reduce", "reduce-window"})
_SELECT, _AND = frozenset({"select"}), frozenset({"and"})
_MAY_MULTIPLY = OPCODES | _UNKNOWN_OPCODES | _SUMS
_MULTIPLY = frozenset({"multiply"})
_PAD = frozenset({"pad"})
_MATMUL_TARGETS = re.compile(r"matmul|gemm|cutlass|onednn.*dot", re.IGNORECASE)
_CONVOLUTION_TARGETS = re.compile(r"cudnn\$conv|onednn\$convolution", re.IGNORECASE)
_NO_PRODUCT_TARGETS = re.compile(
    r"Sharding$|SPMD|xla\.sdy\.|annotate_device_placement|MoveTo|PinTo|Pin$|Unpin$|LayoutConstraint|AllocateBuffer|__nop"
    r"|CreateBuffer|X64|.*Bitcast|AsyncCollective|PrepareAsync|AssumeGather|GatherScatter|PadToStatic|SliceToDynamic"
    r"|.*TopK|__cub\$|__cudnn\$norm|.*callback|cu_threefry|cu_lu_pivots|SetDimensionSize|RngBitGenerator"
)
_BLOCK_SCALED_TARGETS = re.compile(r"__cudnn\$blockScaledDot|__op\$block_scaled_dot")
_ATTENTION = "__cudnn$fmha"
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{[^\[\]]*"dimensions":\s*\[([^\]]*)\]')
_MASK = re.compile(r'"mask_type":\s*"(\w+)"')
_STATED = re.compile(r'"cost_estimate":\s*\{\s*"flops":\s*"(\d{1,18})"')
_WRITTEN_BY_XLA = '"body":"bW9kdWxlI'  # A kernel as text, `module {`: those of Pallas are bytecode.
_DIM_NUMBERS = re.compile(r'"dot_dimension_numbers":(\{[^{}]*\})')
_GENERAL = "_general"
_NAMED_PRODUCT = re.compile(r"(?:^|/)(?:ragged_)?(?:dot_general|conv_general_dilated)$")
_SAME_VALUES = frozenset({"bitcast", "copy", "convert", "reshape", "transpose"})
_CONVERTED = frozenset({"convert", "bitcast"})
_LEADING_TO_PRODUCT = _CONVERTED | {"parameter", "multiply"}
_SAME_DIMS = frozenset({"copy", "convert", "transpose"})
_ZEROS = frozenset({"0", "-0", "0.0", "-0.0"})
_FARTHEST = 64
_LARGEST_WINDOW = 1 << 20


@dataclass(frozen=True)
class Work:
    """What one execution of an instruction multiplies.

    Attributes:
      flops: None where the text does not tell.
      what: the opcode, or the target of a call; unlike the name it says what was not counted.
      is_elementwise: a product that XLA writes as multiplications and sums: it runs on no matrix unit.
      groups: of a ragged product every row is multiplied with each of these, though it belongs to one.
      mask: of an attention kernel, which may leave out what it masks: `causal`.
      is_stated: by who wrote the kernel.
      padded: how many of them multiply zeros by which a compiler fills up an operand, as XLA does to split a long sum
        into equal parts.
    """

    flops: int | None
    what: str
    is_elementwise: bool = False
    groups: int = 1
    mask: str = ""
    is_stated: bool = False
    padded: int = 0


def products(module: Module) -> dict[Instruction, Work]:
    """Everything that multiplies, and of which the text does not tell whether it does."""
    values, found = _Values(module), dict[Instruction, Work]()
    for i, computation in [*module.having(_MAY_MULTIPLY), *module.having(_MULTIPLY, _GENERAL)]:
        if i.opcode in OPCODES:
            try:
                work = _work(i, computation, values)
            except (ArithmeticError, LookupError, ValueError, TypeError):  # Attributes of a damaged text.
                work = Work(None, i.opcode)
            if work.flops != 0:
                padded = _padded(i, computation, values, work.flops) if work.flops and values.has_pads else 0
                found[i] = replace(work, padded=padded) if padded else work
        elif i.opcode in _UNKNOWN_OPCODES:
            found[i] = Work(None, i.opcode)
        elif multiply := _written_out(i, computation, values):
            found[multiply] = _elementwise(multiply)
    return found


def operand_shapes(instruction: Instruction, computation: Computation) -> tuple[Shape, ...]:
    return shapes_of(operand_types(instruction, computation))


def operand_types(instruction: Instruction, computation: Computation) -> tuple[str, ...]:
    """As printed with the operands, all in one, else from the instructions that define them."""
    if not instruction.tail.startswith("%") and "[" in (literal := instruction.literal):
        return (literal,)
    return computation.by_name.shapes(instruction.operands)


@dataclass(frozen=True)
class _Values:
    """Where the values of a module come from."""

    module: Module

    @cached_property
    def fusions(self) -> dict[str, list[tuple[Instruction, Computation]]]:
        """The fusions that run each fused computation."""
        found: dict[str, list[tuple[Instruction, Computation]]] = {}
        for i, computation in self.module.having(RUNS_CALLEE):
            for name in i.callees if i.opcode == "fusion" else ():
                found.setdefault(name, []).append((i, computation))
        return found

    @cached_property
    def have_row_masks(self) -> bool:
        """Whether anything is selected between two bounds, as the rows of a ragged product's group are."""
        has_bounds = any(len(_compared(*site)) == 2 for site in self.module.having(_AND))
        return has_bounds and any(len(_bounds(*site)) == 2 for site in self.module.having(_SELECT))

    @cached_property
    def has_pads(self) -> bool:
        return next(iter(self.module.having(_PAD)), None) is not None

    def source(
        self, name: str, where: Computation, through: frozenset[str] = _SAME_VALUES
    ) -> tuple[Instruction, Computation] | None:
        """What makes a value, into and out of fusions, past instructions that only move it; None where the text does
        not show it."""
        for _ in range(_FARTHEST):
            i = where.by_name.get(name)
            if i is None:
                return None
            if i.opcode in through and i.operands:
                name = i.operands[0]
            elif i.opcode == "parameter" and len(callers := self.fusions.get(where.name, [])) == 1:
                (fusion, where), number = callers[0], where.parameters.get(i.name, -1)
                if not 0 <= number < len(fusion.operands):
                    return None
                name = fusion.operands[number]
            elif i.opcode == "fusion" and (fused := self.module.computations.get(i.attribute("calls") or "")):
                if fused.root is None:
                    return None
                name, where = fused.root.name, fused
            else:
                return i, where
        return None

    def is_zeros(self, name: str, where: Computation) -> bool:
        found = self.source(name, where, _SAME_VALUES | {"broadcast"})
        return found is not None and found[0].opcode == "constant" and found[0].literal in _ZEROS


def _work(instruction: Instruction, computation: Computation, values: _Values) -> Work:
    if instruction.opcode == "dot":
        work = _dot(operand_types(instruction, computation), instruction.shape, instruction.attributes)
        groups = _ragged_groups(instruction, computation, values)
        return work if groups == 1 else replace(work, groups=groups)
    operands, result = operand_shapes(instruction, computation), arrays(instruction.shape)
    if instruction.opcode.startswith("custom-call"):
        return _custom_call(calls.target(instruction), instruction, computation, values)
    if len(operands) < 2 or not result:
        return Work(None, instruction.opcode)
    if instruction.opcode == "convolution":
        taps = _padded_input(instruction, computation, values)
        return Work(_convolution(instruction.attributes, operands[0], operands[1], result[0], taps), "convolution")
    flops = _product(operands[0], _dims(instruction.braced("lhs_contracting_dims")), result[0])
    if instruction.opcode == "ragged-dot" and len(result[0].dims) == len(operands[1].dims) + 1:
        flops = _of_own_group(flops, result[0])
    return Work(flops, instruction.opcode, groups=_ragged_groups(instruction, computation, values))


def _padded(i: Instruction, computation: Computation, values: _Values, flops: int) -> int:
    """Of two operands that are filled up along the dims that are summed over, both by the same share."""
    shares = [_filled(name, computation, values) for name in i.operands[:2]]
    return int(flops * min(shares)) if len(shares) == 2 else 0


def _filled(name: str, computation: Computation, values: _Values) -> Fraction:
    """The share of a value that is zeros by which it was padded."""
    found = values.source(name, computation)
    if found is None or found[0].opcode != "pad" or not values.is_zeros(found[0].operands[-1], found[1]):
        return Fraction(0)
    before, after = operand_shapes(*found)[0].elements, arrays(found[0].shape)[0].elements
    return Fraction(after - before, after) if after else Fraction(0)


@lru_cache(maxsize=1 << 12)
def _dot(operands: tuple[str, ...], result: str, attributes: str) -> Work:
    """Most by far, and most alike."""
    shapes, given = shapes_of(operands), arrays(result)
    contracted = _dims(braced(attributes, "lhs_contracting_dims"))
    return Work(_product(shapes[0], contracted, given[0]) if len(shapes) > 1 and given else None, "dot")


def _custom_call(target: str, instruction: Instruction, computation: Computation, values: _Values) -> Work:
    """Products that a backend hands to a library."""
    operands, result = operand_shapes(instruction, computation), arrays(instruction.shape)
    if _CONVOLUTION_TARGETS.search(target):
        if len(operands) < 2 or not result:
            return Work(None, target)
        # A gradient's window and labels are those of its forward convolution: input, kernel -> output.
        shapes, taps = (operands[0], operands[1], result[0]), _padded_input(instruction, computation, values)
        if "BackwardFilter" in target:
            shapes = (operands[0], result[0], operands[1])
        elif "BackwardInput" in target:
            shapes, taps = (result[0], operands[1], operands[0]), None
        return Work(_convolution(instruction.attributes, *shapes, taps), target)
    if target.startswith(_ATTENTION):
        return _attention(target, instruction, operands)
    if _BLOCK_SCALED_TARGETS.match(target) and operands and result:
        return Work(_product(operands[0], [len(operands[0].dims) - 1], result[0]), target)
    if not _MATMUL_TARGETS.search(target):
        if stated := _STATED.search(instruction.extras):
            return Work(int(stated[1]), target, is_stated=_WRITTEN_BY_XLA not in instruction.extras)
        return Work(0 if _NO_PRODUCT_TARGETS.match(target) else None, target)
    numbers = _DIM_NUMBERS.search(instruction.extras.replace("\\", ""))
    if numbers is None or not operands or not result:
        return Work(None, target)
    contracted = [int(dim) for dim in json.loads(numbers[1]).get("lhs_contracting_dimensions", [])]
    flops = _product(operands[0], contracted, result[0])
    if "grouped" in target and len(result[0].dims) == len(operands[1].dims) + 1:
        flops = _of_own_group(flops, result[0])
    return Work(flops, target, groups=_ragged_groups(instruction, computation, values))


def _attention(target: str, call: Instruction, operands: tuple[Shape, ...]) -> Work:
    """Products of scores [B, N, T, S] with keys (dims H) and values (dims V): forward one with each; backward the
    scores again and gradients of queries and keys, then those of values and scores."""
    found, mask = _SCORES.search(call.extras), _MASK.search(call.extras)
    if found is None or len(operands) < 3:
        return Work(None, target)
    with_keys, with_values = (3, 2) if "Backward" in target else (1, 1)
    width = with_keys * operands[0].dims[-1] + with_values * operands[2].dims[-1]
    masked = mask[1].lower() if mask and mask[1] != "NO_MASK" else ""
    return Work(2 * prod(_dims(found[1])) * width, target, mask=masked)


def _of_own_group(flops: int | None, result: Shape) -> int | None:
    """Each row is summed into the result of its own group alone."""
    return flops and flops // max(1, result.dims[0])


def _product(lhs: Shape, contracted: list[int], result: Shape) -> int | None:
    if any(dim >= len(lhs.dims) for dim in contracted):
        return None
    return _multiply_add(lhs) * result.elements * prod(lhs.dims[dim] for dim in contracted)


def _multiply_add(shape: Shape) -> int:
    """A complex one: four multiplications and as many additions."""
    return 8 if shape.dtype in ("c64", "c128") else 2


def _written_out(i: Instruction, computation: Computation, values: _Values) -> Instruction | None:
    """The multiplication of a product that is written as one, seen from itself or from the sum over it: by the name
    that JAX gave the product or, where no name tells, by its form, an array times a smaller one that is repeated."""
    if _is_named_product(i):
        if i.opcode == "multiply":
            return i if _is_of_arrays(i, computation) else None
        found = values.source(i.operands[0], computation, _SAME_VALUES | {"pad"} | _SUMS) if i.operands else None
        return found[0] if found and found[0].opcode == "multiply" and _is_of_arrays(*found) else None
    if i.opcode == "multiply" or _has_name(i) or not i.operands:
        return None
    if computation.by_name.opcode(i.operands[0]) not in _LEADING_TO_PRODUCT:
        return None
    summed, where = _unconverted(i.operands[0], computation), computation
    if summed is not None and summed.opcode == "parameter":
        summed, where = values.source(summed.name, computation) or (None, computation)
    if summed is None or summed.opcode != "multiply" or _has_name(summed):
        return None
    is_form = any(_is_broadcast(name, where) for name in {*summed.operands})
    return summed if is_form and _is_of_arrays(summed, where) and _adds(i, values.module) else None


def _unconverted(name: str, where: Computation) -> Instruction | None:
    found = where.by_name.get(name)
    for _ in range(4):
        if found is None or found.opcode not in _CONVERTED or not found.operands:
            break
        found = where.by_name.get(found.operands[0])
    return found


def _is_broadcast(name: str, where: Computation) -> bool:
    opcode = where.by_name.opcode(name)
    if opcode not in _CONVERTED:
        return opcode == "broadcast"
    made = _unconverted(name, where)
    return made is not None and made.opcode == "broadcast"


def _is_named_product(i: Instruction) -> bool:
    return _GENERAL in i.tail and _NAMED_PRODUCT.search(i.op_name or "") is not None


def _has_name(i: Instruction) -> bool:
    """JAX's own: those that XLA gives have no levels."""
    return "op_name=" in i.tail and "/" in (i.op_name or "")


def _is_of_arrays(multiply: Instruction, where: Computation) -> bool:
    """Not of indices, and not by one number."""
    result = arrays(multiply.shape)
    made = [where.by_name.get(name) for name in multiply.operands]
    is_scaled = any(
        one is not None and one.opcode == "broadcast" and not (one.braced("dimensions") or "").strip() for one in made
    )
    return bool(result) and bool(result[0].dims) and not is_scaled


def _adds(i: Instruction, module: Module) -> bool:
    combine = module.computations.get(i.attribute("to_apply") or "")
    return combine is not None and combine.root is not None and combine.root.opcode == "add"


def _elementwise(multiply: Instruction) -> Work:
    shape = arrays(multiply.shape)[0]
    return Work(_multiply_add(shape) * shape.elements, "multiply", is_elementwise=True)


def _ragged_groups(product: Instruction, computation: Computation, values: _Values) -> int:
    """Groups of a ragged product that XLA writes as one with every group, all rows but a group's own set to zero."""
    for name in product.operands[:2] if values.have_row_masks else ():
        found = values.source(name, computation)
        if found is None or found[0].opcode != "select" or len(_bounds(*found)) < 2:
            continue
        (select, where), (_, rows, zeros) = found, found[0].operands
        repeated = values.source(rows, where)
        own = operand_shapes(*repeated) if repeated is not None and repeated[0].opcode == "broadcast" else ()
        if own and values.is_zeros(zeros, where):
            return max(1, arrays(select.shape)[0].elements // max(1, own[0].elements))
    return 1


def _bounds(select: Instruction, where: Computation) -> list[Instruction]:
    """The comparisons that must both hold where the first of its values is selected."""
    mask = where.by_name.get(select.operands[0]) if len(select.operands) == 3 else None
    return [] if mask is None or mask.opcode != "and" else _compared(mask, where)


def _compared(both: Instruction, where: Computation) -> list[Instruction]:
    return [bound for name in both.operands if (bound := where.by_name.get(name)) and bound.opcode == "compare"]


_Taps = list[tuple[int, int, int]]
"""Of each dim of an array that is padded before it is convolved: elements, padding before the first, distance."""


def _padded_input(instruction: Instruction, computation: Computation, values: _Values) -> _Taps | None:
    """How the input of a convolution was filled up with zeros, None where it was not."""
    name, order = (instruction.operands or ("",))[0], list[int]()
    for _ in range(_FARTHEST):
        found = values.source(name, computation, frozenset())
        if found is None or not found[0].operands:
            return None
        i, computation = found
        order = order or list(range(len(arrays(i.shape)[0].dims if arrays(i.shape) else ())))
        if i.opcode == "pad":
            break
        if i.opcode == "transpose":
            dims = _dims(i.braced("dimensions"))
            order = [dims[dim] for dim in order]
        elif i.opcode not in _SAME_DIMS:
            return None
        name = i.operands[0]
    else:
        return None
    filled = re.search(r"\bpadding=([\dx_\-]+)", i.attributes)
    shapes = operand_shapes(i, computation)
    sides = [[int(side) for side in dim.split("_")] for dim in filled[1].split("x")] if filled else []
    is_plain = all(side >= 0 for dim in sides for side in dim) and len(i.operands) == 2
    if (
        not is_plain
        or not shapes
        or len(sides) != len(shapes[0].dims)
        or not values.is_zeros(i.operands[1], computation)
    ):
        return None
    return [(shapes[0].dims[dim], sides[dim][0], sides[dim][2] + 1 if len(sides[dim]) > 2 else 1) for dim in order]


def _convolution(attributes: str, lhs: Shape, rhs: Shape, result: Shape, padded: _Taps | None) -> int | None:
    """Counts, along each spatial dim, the pairs of output and kernel positions that meet an input element and no
    padding or hole."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)
    if labels is None:
        return None
    inputs, kernel, outputs = map(str, labels.groups())
    spatial = sorted(set(kernel) - {"i", "o"})
    window = _window(attributes, len(spatial))
    is_whole = sorted(inputs) == sorted(outputs) == [*spatial, "b", "f"] and sorted(kernel) == [*spatial, "i", "o"]
    if not is_whole or window is None or [len(s.dims) for s in (lhs, rhs, result)] != [len(inputs)] * 3:
        return None
    size, out = dict(zip(kernel, rhs.dims, strict=True)), dict(zip(outputs, result.dims, strict=True))
    bare = dict(zip(inputs, [(extent, 0, 1) for extent in lhs.dims], strict=True))
    seen = bare if padded is None else dict(zip(inputs, padded, strict=True))
    flops = _multiply_add(lhs) * out["b"] * out["f"] * size["i"]
    for dim, (stride, low, hole, spread) in zip(spatial, window, strict=True):
        extent, before, distance = seen[dim] if hole == 1 else bare[dim]
        taps = _valid_taps(extent, size[dim], out[dim], stride, low + before, hole * distance, spread)
        if taps is None:
            return None
        flops *= taps
    return flops


def _window(attributes: str, dims: int) -> list[tuple[int, int, int, int]] | None:
    """(stride, low padding, input dilation, kernel dilation) of every spatial dim."""
    found = re.search(r"window=\{([^}]*)\}", attributes)
    fields = dict(re.findall(r"(\w+)=([\dx_\-]+)", found[1])) if found else {}
    named = {"stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
    columns = [
        [int(low) for low in re.findall(r"(?:^|x)(-?\d+)", fields[name])] if name in fields else [default] * dims
        for name, default in named.items()
    ]
    return list(zip(*columns, strict=True)) if {len(column) for column in columns} == {dims} else None


def _valid_taps(extent: int, kernel: int, outputs: int, stride: int, low: int, hole: int, spread: int) -> int | None:
    """Pairs (output, kernel position) whose input position, output * stride + position * spread - low, holds an
    element, along one dim; None for a window that no convolution has."""
    if min(stride, hole, spread) < 1 or min(kernel, outputs) > _LARGEST_WINDOW:
        return None
    if stride == hole == spread and low == 0 and outputs + kernel - 1 == extent:
        return outputs * kernel
    (few, step), (many, stride) = sorted([(kernel, spread), (outputs, stride)])
    reach, common = (extent - 1) * hole, gcd(stride, hole)
    period, pairs = hole // common, 0
    for at in range(-low, few * step - low, step):
        first, last = max(0, -(at // stride)), min(many - 1, (reach - at) // stride)
        if at % common == 0 and first <= last:
            due = -at // common * pow(stride // common, -1, period) % period
            pairs += (last - due) // period - (first - 1 - due) // period
    return pairs


def _dims(text: str | None) -> list[int]:
    return [int(dim) for dim in re.findall(r"\d+", text or "")]
