"""Part III: what crosses the edges of a network (Ch. 12 and 13a). A host has G ranks, there are N hosts, and P = N
G."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from lab.book.checks import Exact, at_least, count, finite, not_negative, positive, ratio
from lab.book.collectives import (
    all_reduce_wire_bytes,
    levels_all_reduce_s,
    ring_all_gather_s,
    tree_all_reduce_s,
)


def two_level_all_reduce_s(
    payload_bytes: Exact,
    ranks_a_host: int,
    hosts: int,
    inside_alpha_s: float,
    inside_bytes_per_s: float,
    alpha_s: float,
    bytes_per_s: float,
) -> float:
    """2 (G - 1) a + 2 (G - 1) / G n / b inside, 2 (N - 1) alpha + 2 (N - 1) / N n / G / beta across, with a network
    card for each rank.

    Source: Ch. 12, `ch12.hier2d`; Ch. 13, `ch13.hier`; Ch. 13a, `ch13a.hier`.
    """
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host, inside_bytes_per_s=inside_bytes_per_s, bytes_per_s=bytes_per_s)
    not_negative(inside_alpha_s=inside_alpha_s, alpha_s=alpha_s)
    inside, across = (ranks_a_host, inside_alpha_s, inside_bytes_per_s), (hosts, alpha_s, bytes_per_s)
    return levels_all_reduce_s(payload_bytes, [inside, across])


def ring_tree_all_reduce_s(
    payload_bytes: Exact,
    ranks_a_host: int,
    hosts: int,
    inside_alpha_s: float,
    inside_bytes_per_s: float,
    alpha_s: float,
    bytes_per_s: float,
) -> float:
    """Rings inside, a tree of n / G between hosts: 2 ceil(log2 N) (alpha + n / G / beta) of it. Source: Ch. 12,
    `ch12.ring_tree`."""
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host, inside_bytes_per_s=inside_bytes_per_s, bytes_per_s=bytes_per_s)
    not_negative(inside_alpha_s=inside_alpha_s, alpha_s=alpha_s)
    inside_s = 2 * ring_all_gather_s(payload_bytes, ranks_a_host, inside_alpha_s, inside_bytes_per_s)
    return inside_s + tree_all_reduce_s(ratio(payload_bytes, ranks_a_host), hosts, alpha_s, bytes_per_s)


def flat_rings_all_reduce_s(
    payload_bytes: Exact,
    ranks_a_host: int,
    hosts: int,
    inside_alpha_s: float,
    inside_bytes_per_s: float,
    alpha_s: float,
    bytes_per_s: float,
) -> float:
    """G rings over all ranks, each with n / G and with the network card of another rank: the fuller of the two links,
    and 2 (P - 1) alpha.

    A network card carries one ring, a rank's link inside the host the G - 1 others; in every step some rank waits for
    the network. Source: Ch. 13a, `ch13a.case` (D-46): what a flat ring can do with all cards.
    """
    finite(hosts=hosts)
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host, inside_bytes_per_s=inside_bytes_per_s, bytes_per_s=bytes_per_s)
    not_negative(inside_alpha_s=inside_alpha_s, alpha_s=alpha_s)
    ranks = ranks_a_host * hosts
    wire = all_reduce_wire_bytes(ratio(payload_bytes, ranks_a_host), ranks)
    fullest_s = np.maximum(wire / bytes_per_s, wire * (ranks_a_host - 1) / inside_bytes_per_s)
    return fullest_s + 2 * (ranks - 1) * np.maximum(alpha_s, inside_alpha_s)


def ring_across_bytes(payload_bytes: Exact, ranks_a_host: int, hosts: int) -> Fraction:
    """2 (P - 1) / P n that each host sends to another one, in a ring that visits host after host: one edge leaves.
    Source: `ch13a.traffic` (D-44)."""
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host)
    return all_reduce_wire_bytes(payload_bytes, ranks_a_host * hosts)


def two_level_across_bytes(payload_bytes: Exact, ranks_a_host: int, hosts: int) -> Fraction:
    """2 (N - 1) / N n that each host sends to others, n / G of it by each of its G ranks. Source: `ch13a.traffic`
    (D-44)."""
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host)
    return all_reduce_wire_bytes(payload_bytes, hosts)


def ring_over_two_level_across(ranks_a_host: int, hosts: int) -> Fraction:
    """(P - 1) / P over (N - 1) / N: how much less leaves a host with two levels. Source: Ch. 13a, `ch13a.traffic`,
    `ch13a.toy` (D-44, D-45)."""
    count(hosts=hosts)
    at_least(2, infinite=True, hosts=hosts)
    positive(ranks_a_host=ranks_a_host)
    return ratio(ring_across_bytes(1, ranks_a_host, hosts), two_level_across_bytes(1, ranks_a_host, hosts))


def two_level_wire_ratio(ranks_a_host: int, hosts: int) -> Fraction:
    """2 (G - 1) / G + 2 (N - 1) / (N G) of the buffer that a rank sends: as much as in one ring. Source: Ch. 12,
    `ch12.volume_identity`."""
    count(hosts=hosts)
    positive(ranks_a_host=ranks_a_host)
    return all_reduce_wire_bytes(1, ranks_a_host) + ratio(all_reduce_wire_bytes(1, hosts), ranks_a_host)


def fullest_edge_s(edge_bytes: Sequence[float], edge_bytes_per_s: Sequence[float]) -> float:
    """max over edges of load / bandwidth: no schedule with these loads is faster. Source: Ch. 13a,
    `ch13a.graph_cost`."""
    loads, rates = np.asarray(edge_bytes), np.asarray(edge_bytes_per_s)
    not_negative(edge_bytes=loads)
    positive(edge_bytes_per_s=rates)
    return np.max(loads / rates)


def oversubscription(injected_bytes_per_s: float, bisection_bytes_per_s: float) -> float:
    """Half of what all ranks inject, over what crosses the middle in one direction: 1 where nothing blocks. Source:
    `ch13a.oversub` (D-68)."""
    positive(injected_bytes_per_s=injected_bytes_per_s, bisection_bytes_per_s=bisection_bytes_per_s)
    return injected_bytes_per_s / 2 / bisection_bytes_per_s
