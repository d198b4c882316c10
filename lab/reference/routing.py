"""Which experts each token of one sequence visits, and which of them have a slot for it: by plain loops over tokens
and experts.

Source: Ch. 18 and 35; Fedus et al. 2021 (Switch), Zhou et al. 2022 (expert choice), DeepSeek-AI 2024
(arXiv:2412.19437).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from lab.programs.models.shape import DecoderShape
from lab.reference.layers import Array

Pairs = list[tuple[int, int]]
"""(token, expert)."""


@dataclass(frozen=True)
class Routing:
    """
    Attributes:
      chosen: the pairs that a router wants.
      served: those for which the expert, and its node, has a slot; all others are dropped.
      margin: by how much the closest choice was decided, relative to what was chosen: where that is less than rounding,
        another order of sums may choose otherwise.
    """

    chosen: Pairs
    served: Pairs
    margin: float


def routing(gates_SE: Array, bias_E: Array | None, shape: DecoderShape) -> Routing:
    """Of one sequence, by what a router makes of each token and expert."""
    gates = [[float(gate) for gate in row] for row in gates_SE]
    if shape.router == "expert_choice":
        return _chosen_by_experts(gates, shape)
    bias = [0.0] * shape.experts if bias_E is None else [float(b) for b in bias_E]
    rows = [_chosen_by_token(row, bias, shape) for row in gates]
    chosen = [(token, expert) for token, (experts, _) in enumerate(rows) for expert in experts]
    served = chosen if shape.dispatch != "slots" else _served(chosen, shape)
    return Routing(chosen, served, min(margin for _, margin in rows))


def _chosen_by_experts(gates: list[list[float]], shape: DecoderShape) -> Routing:
    """Each expert takes the tokens of its largest gates, as many as it has slots."""
    pairs, margin = [], inf
    for expert in range(shape.experts):
        tokens, by = largest([row[expert] for row in gates], _slots(shape))
        pairs += [(token, expert) for token in tokens]
        margin = min(margin, by)
    return Routing(pairs, pairs, margin)


def _chosen_by_token(gates: list[float], bias: list[float], shape: DecoderShape) -> tuple[list[int], float]:
    """The experts of the largest gates with their bias, on no more than `node_limit` nodes: those with the largest sums
    of their best, of which each has as many as it would give experts."""
    scores = [gate + bias[expert] for expert, gate in enumerate(gates)]
    per_node = shape.experts // shape.nodes
    is_open, margin = [True] * shape.nodes, inf
    if shape.node_limit < shape.nodes:
        best = shape.top_k // shape.node_limit
        sums = [
            sum(sorted(scores[node * per_node : (node + 1) * per_node], reverse=True)[:best])
            for node in range(shape.nodes)
        ]
        nodes, margin = largest(sums, shape.node_limit)
        is_open = [node in nodes for node in range(shape.nodes)]
    reachable = [score if is_open[expert // per_node] else -inf for expert, score in enumerate(scores)]
    experts, by = largest(reachable, shape.top_k)
    return experts, min(margin, by)


def largest(scores: Sequence[float], count: int) -> tuple[list[int], float]:
    """Where the `count` largest stand, the largest first and the earlier of equal ones; and by how much the last of
    them is larger than the next, relative to the largest."""
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    if count == len(scores):
        return order, inf
    return order[:count], (scores[order[count - 1]] - scores[order[count]]) / abs(scores[order[0]])


def _served(chosen: Pairs, shape: DecoderShape) -> Pairs:
    """First come, first served: token by token. With nodes a token first needs a slot of the node, one for all of its
    experts there."""
    per_node, node_slots = shape.experts // shape.nodes, _node_slots(shape)
    on_node: list[list[int]] = [[] for _ in range(shape.nodes)]
    with_expert = [0] * shape.experts
    served = []
    for token, expert in chosen:
        there = on_node[expert // per_node]
        if token not in there and len(there) < node_slots:
            there.append(token)
        if token in there and with_expert[expert] < _slots(shape):
            with_expert[expert] += 1
            served.append((token, expert))
    return served


def _slots(shape: DecoderShape) -> int:
    """Of an expert for the tokens of one sequence."""
    return ceil(shape.capacity_factor * shape.length * shape.top_k / shape.experts)


def _node_slots(shape: DecoderShape) -> float:
    """Of a node for the tokens of one sequence."""
    if shape.nodes == 1:
        return inf
    return min(shape.length, ceil(shape.capacity_factor * shape.length * shape.node_limit / shape.nodes))
