"""Part V: what ZeRO sends and keeps (Ch. 20)."""

from fractions import Fraction

from lab.book.checks import positive, ratio
from lab.book.collectives import all_gather_wire_bytes, reduce_scatter_wire_bytes


def zero3_volume_bytes(parameters: int, bytes_per_element: int, ranks: int) -> Fraction:
    """3 (P - 1) / P Psi e bytes that one rank sends a step: two gathers, one for each pass, and a reduce_scatter.

    Source: Ch. 20, `ch20.comm`.
    """
    positive(parameters=parameters, bytes_per_element=bytes_per_element)
    whole = parameters * bytes_per_element
    return 2 * all_gather_wire_bytes(whole, ranks) + reduce_scatter_wire_bytes(whole, ranks)


def zero3_weight_bytes(parameters: int, bytes_per_element: int, ranks: int) -> Fraction:
    """Psi e / P bytes of weights on one rank: the first term of 16 Psi / P. Source: Ch. 20, `ch20.stage_memory`."""
    positive(parameters=parameters, bytes_per_element=bytes_per_element, ranks=ranks)
    return ratio(parameters * bytes_per_element, ranks)
