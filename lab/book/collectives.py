"""Part III: what one rank sends in a bandwidth-optimal collective (Ch. 4 and 11)."""

from fractions import Fraction

from lab.book.checks import positive


def all_gather_wire_bytes(payload_bytes: int, ranks: int) -> Fraction:
    """(P - 1) / P n bytes, n the gathered buffer. Source: Ch. 11, `ch11.volumes`."""
    positive(payload_bytes=payload_bytes, ranks=ranks)
    return Fraction((ranks - 1) * payload_bytes, ranks)


def reduce_scatter_wire_bytes(payload_bytes: int, ranks: int) -> Fraction:
    """(P - 1) / P n bytes, n the full input. Source: Ch. 11, `ch11.volumes`."""
    return all_gather_wire_bytes(payload_bytes, ranks)


def all_reduce_wire_bytes(payload_bytes: int, ranks: int) -> Fraction:
    """2 (P - 1) / P n bytes: a reduce-scatter, then an all-gather. Source: Ch. 4, `ch04.ring_allreduce`; Ch. 11, `ch11.volumes`."""
    return reduce_scatter_wire_bytes(payload_bytes, ranks) + all_gather_wire_bytes(payload_bytes, ranks)
