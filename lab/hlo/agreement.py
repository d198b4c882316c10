"""What the line of a collective says twice, and has to say alike: the types of its operands and of its result, with the
size of its groups."""

from __future__ import annotations

import re
from functools import lru_cache

from lab.core.ledger import Kind
from lab.hlo.shapes import Shape, arrays, shapes_of
from lab.hlo.text import Instruction

_NAME = re.compile(r"(?:^|, )([^\s,{}'=]*)=")
_CONTRACTED = re.compile(r"\b[lr]hs_contracting_dims=\{[\d,]*\}")
_WINDOW = re.compile(r"(?:size|stride|pad|lhs_dilate|rhs_dilate|rhs_reversal)=[\dx_\-]+")
_CONTEXT = Shape("u32", ())
"""What the start of a permute gives besides."""
_KNOWN = frozenset(
    """async_execution_thread backend_config calls channel_id constrain_layout control-predecessors device_ids
    dimensions frontend_attributes is_host_transfer metadata origin original_value output_to_operand_aliasing
    parameter_replication replica_groups sharding slice_sizes source_target_pairs split_dimension statistics
    to_apply use_global_device_ids""".split()
)
_OF_CONVOLUTION = _KNOWN | frozenset(
    "algorithm batch_group_count dim_labels feature_group_count operand_precision sparsity window".split()
)


def unknown_attributes(instruction: Instruction) -> list[str]:
    """Names of attributes that no collective, or no convolution, has in the versions of XLA that were read."""
    attributes = instruction.attributes
    if instruction.opcode != "convolution":
        return _unknown_names(instruction.wording)
    window = attributes.partition("window=")[2].partition("}")[0]
    unknown = [name for name in _NAME.findall(attributes) if name not in _OF_CONVOLUTION]
    return unknown + [field for field in window.strip("{").split() if not _WINDOW.fullmatch(field)]


@lru_cache(maxsize=1 << 12)
def _unknown_names(wording: str) -> list[str]:
    return [name for name in _NAME.findall(wording) if name not in _KNOWN]


def _is_converted(taken: tuple[Shape, ...], given: tuple[Shape, ...]) -> bool:
    """TPUs reduce values of 16 bits and give float32: the same arrays, of another type."""
    types = {("bf16", "f32"), ("f32", "bf16"), ("bf16", "bf16"), ("f32", "f32")}
    return [s.dims for s in taken] == [s.dims for s in given] and all(
        (one.dtype, other.dtype) in types for one, other in zip(taken, given, strict=True)
    )


def lacks_dims(product: Instruction) -> bool:
    """Whether a matrix product does not say which dims it contracts."""
    return len(_CONTRACTED.findall(product.tail)) < 2


@lru_cache(maxsize=1 << 12)
def types_disagree(kind: Kind, opcode: str, result: str, operands: tuple[str, ...], group_size: int) -> bool:
    """Whether the result is of other bytes than the operands make it; False where that is not known.

    A start gives its operands as well as its result, or the result alone.
    """
    taken_shapes, shapes, is_start = shapes_of(operands), arrays(result), opcode.endswith("-start")
    taken, given = (sum(shape.bytes for shape in some) for some in (taken_shapes, shapes))
    pieces = group_size if kind is Kind.REDUCE_SCATTER else 1
    # An all-gather's is of as many pieces, of which one is taken; of a reduce-scatter's one is given.
    whole = taken * group_size if kind is Kind.ALL_GATHER else taken
    if given * pieces == whole or (kind is Kind.ALL_REDUCE and _is_converted(taken_shapes, shapes)):
        return False
    contexts = sum(shape.bytes for shape in shapes if shape == _CONTEXT)
    return not (is_start and whole in ((given - taken) * pieces, (given - taken - contexts) * pieces))
