"""Part IV: what data and tensor parallelism send (Ch. 14 and 15)."""

from fractions import Fraction

from lab.book.checks import positive
from lab.book.collectives import all_reduce_wire_bytes

TP_ALL_REDUCES_FORWARD = 1
"""Of a column-parallel then row-parallel block, where it leaves. Source: Ch. 15, `ch15.megatron_mlp`."""

TP_ALL_REDUCES_BACKWARD = 1
"""Of the same block, where its input's gradient leaves. Source: Ch. 15, `ch15.tp_backward_table`."""


def gradient_bytes(parameters: int, bytes_per_element: int) -> int:
    """Psi e bytes: the gradient, and so the payload of its reduction. Source: Ch. 14, `ch14.partition_theorem`."""
    positive(parameters=parameters, bytes_per_element=bytes_per_element)
    return parameters * bytes_per_element


def dp_volume_bytes(parameters: int, bytes_per_element: int, ranks: int) -> Fraction:
    """2 (P - 1) / P Psi e bytes that one rank sends a step. Source: Ch. 14, `ch14.dp_allreduce_volume`."""
    return all_reduce_wire_bytes(gradient_bytes(parameters, bytes_per_element), ranks)


def activation_bytes(tokens: int, embed: int, bytes_per_element: int) -> int:
    """b s d e bytes for b s = `tokens` of one rank: the payload of one tensor-parallel all_reduce, whatever the number
    of ranks.

    Source: Ch. 15, `ch15.tp_allreduce_volume`; Ch. 24, `ch24.tp_scaling_claim` as corrected.
    """
    positive(tokens=tokens, embed=embed, bytes_per_element=bytes_per_element)
    return tokens * embed * bytes_per_element


def tp_volume_bytes(tokens: int, embed: int, bytes_per_element: int, ranks: int, blocks: int) -> Fraction:
    """What one rank sends a step for `blocks` blocks (MLPs or attentions), forward and backward: 4 (P - 1) / P b s d e
    bytes each.

    Source: Ch. 15, `ch15.tp_allreduce_volume` (a layer of two blocks: 8 (P - 1) / P b s d e).
    """
    positive(blocks=blocks)
    one = all_reduce_wire_bytes(activation_bytes(tokens, embed, bytes_per_element), ranks)
    return blocks * (TP_ALL_REDUCES_FORWARD + TP_ALL_REDUCES_BACKWARD) * one
