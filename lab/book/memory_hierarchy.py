"""Part I: links inside and across nodes (Ch. 3). Bandwidths are of one direction of one rank."""

from lab.book.checks import at_least, count, finite, not_negative, positive


def half_bandwidth_bytes(alpha_s: float, bytes_per_s: float) -> float:
    """alpha beta: a message of this size takes twice its transfer. Of one message; a ring balances at P alpha beta.

    Source: Ch. 3, `ch03.crossover`; Ch. 4, `ch04.crossover` (D-03).
    """
    not_negative(alpha_s=alpha_s)
    positive(bytes_per_s=bytes_per_s)
    return alpha_s * bytes_per_s


def ring_bytes_per_s(ranks: int, bytes_per_s: float) -> float:
    """beta P / (2 (P - 1)): buffer over time of a long ring all_reduce. Source: Ch. 3, `ch03.ring_algbw` (D-01)."""
    finite(ranks=ranks)
    positive(bytes_per_s=bytes_per_s)
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    return bytes_per_s * ranks / (2 * (ranks - 1))


def cards_bytes_per_s(nodes: int, cards: int, bytes_per_s: float) -> float:
    """C times `ring_bytes_per_s` of the nodes: C cards a node, each with a ring for its part of the buffer.

    Source: Ch. 3, `ch03.hier_single_rep` as corrected (D-15).
    """
    finite(nodes=nodes)
    positive(cards=cards)
    count(nodes=nodes)
    at_least(2, nodes=nodes)
    return cards * ring_bytes_per_s(nodes, bytes_per_s)
