"""Part V: what ZeRO sends and keeps (Ch. 20)."""

from fractions import Fraction

from lab.book.checks import Number, count, finite, not_negative, positive, ratio
from lab.book.collectives import (
    all_gather_wire_bytes,
    all_reduce_wire_bytes,
    reduce_scatter_wire_bytes,
)
from lab.book.data_parallel import compute_s
from lab.book.memory import check_stage, model_state_bytes


def zero3_volume_bytes(parameters: int, bytes_per_element: int, ranks: int) -> Fraction:
    """3 (P - 1) / P Psi e bytes that one rank sends a step: two gathers, one for each pass, and a reduce_scatter.

    Source: Ch. 20, `ch20.comm`.
    """
    positive(parameters=parameters, bytes_per_element=bytes_per_element)
    whole = parameters * bytes_per_element
    return 2 * all_gather_wire_bytes(whole, ranks) + reduce_scatter_wire_bytes(whole, ranks)


def zero3_weight_bytes(parameters: int, bytes_per_element: int, ranks: int) -> Fraction:
    """Psi e / P bytes of weights on one rank: the first term of 16 Psi / P. Source: Ch. 20, `ch20.stage_memory`."""
    count(ranks=ranks)
    positive(parameters=parameters, bytes_per_element=bytes_per_element)
    return ratio(parameters * bytes_per_element, ranks)


def zero_volume_bytes(
    parameters: int, bytes_per_element: int, ranks: int, stage: int, micro_batches: int = 1
) -> Fraction:
    """c (P - 1) / P Psi e bytes that one rank sends a step: c is 2 at stages 0 and 1, A + 1 at 2 and 3 A at 3, for A
    micro-batches.

    Stages 0 and 1 reduce once and stages 1 and 2 gather weights once; 2 scatters gradients after every micro-batch, 3
    gathers twice and scatters. Source: Ch. 20, `ch20.comm` as corrected (4-5:D-68).
    """
    finite(micro_batches=micro_batches, ranks=ranks)
    check_stage(stage)
    count(ranks=ranks)
    positive(parameters=parameters, bytes_per_element=bytes_per_element, micro_batches=micro_batches)
    passes = 2 * (stage < 2) + (micro_batches + 1) * (stage == 2) + 3 * micro_batches * (stage == 3)
    return ratio(passes * parameters * bytes_per_element * (ranks - 1), ranks)


def state_reduction(ranks: int, stage: int) -> Number:
    """16 Psi over `model_state_bytes`: 4 P / (P + 3), 8 P / (P + 7), P at stages 1, 2, 3. Source: Ch. 20,
    `ch20.stage_memory`."""
    finite(ranks=ranks)
    return ratio(16, model_state_bytes(1, ranks, stage))


def zero3_working_bytes(layer_parameters: int, bytes_per_element: int = 2, prefetched: int = 1) -> int:
    """(1 + k) Psi_L e + Psi_L e: the layer at work, k gathered ahead, and one layer's whole gradient. Source: Ch. 20,
    `ch20.stage_memory`; `A9`."""
    positive(layer_parameters=layer_parameters, bytes_per_element=bytes_per_element)
    not_negative(prefetched=prefetched)
    return (2 + prefetched) * layer_parameters * bytes_per_element


def hybrid_across_wire_bytes(payload_bytes: int, shards: int, replicas: int) -> Fraction:
    """2 (r - 1) / r n / s bytes a rank: each of s shards is reduced over r replicas, after the reduce-scatter inside.
    Source: `A4`, `A10`."""
    count(shards=shards, replicas=replicas)
    return all_reduce_wire_bytes(ratio(payload_bytes, shards), replicas)


def zero3_overhead(
    parameters: float,
    layers: int,
    tokens: float,
    ranks: int,
    flops_per_s: float,
    alpha_s: float,
    bytes_per_s: float,
    bytes_per_element: int = 2,
) -> float:
    """[3 L (P - 1) alpha + 3 Psi e / beta] / (6 Psi n / F): unhidden communication over computation, P large, n tokens
    a rank.

    Source: Ch. 20, `ch20.breakeven` as corrected (4-5:D-71).
    """
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(layers=layers, bytes_per_s=bytes_per_s, bytes_per_element=bytes_per_element)
    not_negative(alpha_s=alpha_s)
    sent_s = 3 * layers * (ranks - 1) * alpha_s + 3 * parameters * bytes_per_element / bytes_per_s
    return sent_s / compute_s(parameters, tokens, flops_per_s)


def zero3_tokens(overhead: float, flops_per_s: float, bytes_per_s: float, bytes_per_element: int = 2) -> float:
    """e F / (2 beta x) tokens a rank, at which the wire adds x to a step, whatever the model's size.

    Source: Ch. 20, `ch20.breakeven` as corrected.
    """
    positive(overhead=overhead, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, bytes_per_element=bytes_per_element)
    return bytes_per_element * flops_per_s / (2 * bytes_per_s * overhead)
