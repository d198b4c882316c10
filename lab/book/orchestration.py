"""The second source's laws of scheduling: queues, placement, elastic and preemptible machines (ml.48 to ml.53)."""

import numpy as np

from lab.book.checks import below, count, finite, not_negative, positive, share


def one_server_wait(load: float, variation: float) -> float:
    """rho / (1 - rho) (1 + C^2) / 2 mean job lengths, for jobs that take the whole fleet. Source: ml, `ml.48_queue`
    (Pollaczek, Khinchine)."""
    not_negative(load=load, variation=variation)
    below(1, load=load)
    return load / (1 - load) * (1 + variation**2) / 2


def many_server_wait(load: float, servers: int, variation: float) -> float:
    """rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho)) (1 + C^2) / 2 mean job lengths with c places. Source: ml, `ml.48_queue`
    (Sakasegawa 1977)."""
    not_negative(load=load, variation=variation)
    below(1, load=load)
    positive(servers=servers)
    return load ** (np.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load)) * (1 + variation**2) / 2


def distance_score(nodes: int, ranks_a_node: int, weight: float) -> float:
    """w times the pairs of ranks on different nodes: a score, not a time. Source: ml, `ml.50_locality`."""
    finite(nodes=nodes, ranks_a_node=ranks_a_node)
    count(nodes=nodes, ranks_a_node=ranks_a_node)
    not_negative(weight=weight)
    return weight * ranks_a_node**2 * nodes * (nodes - 1) / 2


def break_even_rescale_h(waiting_h: float, small_speed: float, large_speed: float) -> float:
    """w s / l hours: the longest rescaling for which starting small while one waits still pays. Source: ml,
    `ml.51_elastic` (2nd:M60)."""
    positive(waiting_h=waiting_h, small_speed=small_speed, large_speed=large_speed)
    return waiting_h * small_speed / large_speed


def preemptible_usd_an_h(spot_usd_an_h: float, all_h: float, productive_h: float) -> float:
    """C T / T_productive: the price of an hour that counts. Source: ml, `ml.52_spot`."""
    positive(spot_usd_an_h=spot_usd_an_h, productive_h=productive_h, all_h=all_h)
    return spot_usd_an_h * all_h / productive_h


def idle_usd(devices: int, usd_an_h: float, hours: float, idle_share: float) -> float:
    """Price of what nobody uses. Source: ml, `ml.53_idle_cost`."""
    finite(devices=devices)
    count(devices=devices)
    positive(usd_an_h=usd_an_h, hours=hours)
    share(idle_share=idle_share)
    return devices * usd_an_h * hours * idle_share
