"""The second source's laws of networks: switches, cuts, tori, energy (ml.24, ml.27, ml.30, ml.43 to ml.45)."""

from collections.abc import Sequence
from fractions import Fraction

from lab.book.checks import Exact, at_least, count, finite, not_negative, positive, ratio, share
from lab.book.collectives import all_reduce_wire_bytes, rounds_up


def two_tier_hosts(ports: int) -> Fraction:
    """k^2 / 2 hosts of a two-tier fat tree of switches with k ports. Source: ml, `ml.43_fat_tree` (Al-Fares et al.
    2008)."""
    positive(ports=ports)
    return ratio(ports**2, 2)


def three_tier_hosts(ports: int) -> Fraction:
    """k^3 / 4. Source: ml, `ml.43_fat_tree`."""
    positive(ports=ports)
    return ratio(ports**3, 4)


def three_tier_switches(ports: int) -> Fraction:
    """5 k^2 / 4. Source: ml, `ml.43_fat_tree`."""
    positive(ports=ports)
    return ratio(5 * ports**2, 4)


def all_to_all_cut_bytes(payload_bytes: Exact, ranks: int) -> Fraction:
    """N n / 4 one way across the middle: each of N / 2 ranks sends n / N to N / 2 others. Source: ml,
    `ml.44_bisection_allreduce` (2nd:M56)."""
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes)
    return ratio(payload_bytes * ranks, 4)


def ring_cut_bytes(payload_bytes: Exact, ranks: int) -> Fraction:
    """2 (N - 1) / N n one way across the middle, on one edge, of an all_reduce by a ring in order. Source: ml,
    `ml.44_bisection_allreduce`."""
    return all_reduce_wire_bytes(payload_bytes, ranks)


def oversubscribed_loss(communication_share: float, oversubscription: float) -> float:
    """1 - 1 / (1 - c + c r): of a step's rate where all communication slows r times. Source: ml,
    `ml.44_bisection_allreduce`."""
    share(communication_share=communication_share)
    at_least(1, oversubscription=oversubscription)
    return 1 - 1 / (1 - communication_share + communication_share * oversubscription)


def axis_by_axis_wire_bytes(payload_bytes: Exact, sides: Sequence[int]) -> Exact:
    """2 n sum (d - 1) / d: a whole all_reduce along each axis in turn; a cascade of scatters sends 2 (N - 1) / N n.
    Source: ml, `ml.27_torus` (2nd:M41)."""
    return sum(all_reduce_wire_bytes(payload_bytes, side) for side in sides)


def torus_hops(sides: Sequence[int]) -> int:
    """2 sum (d - 1) steps of the cascade. Source: ml, `ml.27_torus`."""
    positive(sides=sides)
    return 2 * sum(side - 1 for side in sides)


def switch_all_reduce_s(payload_bytes: int, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """n / beta + ceil(log2 N) alpha: switches add, so a rank sends its buffer once. Source: ml, `ml.24_lower_bound`
    (2nd:M33)."""
    not_negative(alpha_s=alpha_s)
    positive(payload_bytes=payload_bytes, bytes_per_s=bytes_per_s)
    return payload_bytes / bytes_per_s + rounds_up(ranks) * alpha_s


def hops_saved_s(ranks: int, hop_s: float) -> float:
    """2 (N - 1) hop: of a ring all_reduce that crosses one switch instead of two. Source: ml, `ml.45_rail`
    (2nd:M57)."""
    finite(ranks=ranks)
    count(ranks=ranks)
    not_negative(hop_s=hop_s)
    return 2 * (ranks - 1) * hop_s


def all_reduce_j(payload_bytes: float, ranks: int, joules_per_bit: float) -> float:
    """16 N n e J: N ranks send 2 n bytes each. Source: ml, `ml.30_energy`."""
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes, joules_per_bit=joules_per_bit)
    return 16 * payload_bytes * ranks * joules_per_bit
