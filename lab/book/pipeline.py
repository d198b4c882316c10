"""Part IV: what a pipeline idles, holds and sends (Ch. 16).

P stages, m micro-batches, v chunks a stage; `forward_s` and `backward_s` are times of one stage and micro-batch, all
its chunks together.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import (
    Number,
    at_least,
    below,
    chosen,
    count,
    finite,
    not_negative,
    positive,
    positive_or_infinite,
    ratio,
)


def idle_s(stages: int, forward_s: Number, backward_s: Number, chunks: int = 1) -> Number:
    """(P - 1) (t_F + t_B) / v seconds that a stage idles a step, with GPipe or 1F1B (v = 1) or interleaved 1F1B (P a
    divisor of m).

    Source: Ch. 16, `ch16.gpipe_bubble`, `ch16.1f1b_bubble`, `ch16.interleaved_bubble`; `A24` to `A26`.
    """
    count(stages=stages, chunks=chunks)
    not_negative(forward_s=forward_s, backward_s=backward_s)
    return (stages - 1) * (forward_s + backward_s) / chunks


def step_s(stages: int, micro_batches: int, forward_s: Number, backward_s: Number, chunks: int = 1) -> Number:
    """m (t_F + t_B) + (P - 1) (t_F + t_B) / v. Source: Ch. 16, `ch16.gpipe_bubble`, `ch16.throughput`."""
    finite(stages=stages)
    positive(micro_batches=micro_batches)
    return micro_batches * (forward_s + backward_s) + idle_s(stages, forward_s, backward_s, chunks)


def bubble_share(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """(P - 1) / (m v + P - 1) of all the time. Source: Ch. 16, `ch16.gpipe_bubble`, `ch16.interleaved_bubble` as
    corrected (4-5:D-23)."""
    finite(stages=stages)
    count(stages=stages, chunks=chunks)
    positive(micro_batches=micro_batches)
    return ratio(stages - 1, micro_batches * chunks + stages - 1)


def bubble_to_ideal(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """(P - 1) / (m v): idle over busy time, which the literature calls the bubble too (Narayanan et al. 2021).

    Source: Ch. 16, `ch16.interleaved_bubble`.
    """
    count(stages=stages, chunks=chunks)
    positive(micro_batches=micro_batches)
    return ratio(stages - 1, micro_batches * chunks)


def ticks(stages: int, micro_batches: int, chunks: int = 1) -> int:
    """m v + P - 1 turns of the loop of one pass; a program that computes on garbage in the bubble runs every one.
    Source: `A24`, `A26`."""
    count(stages=stages, chunks=chunks)
    positive(micro_batches=micro_batches)
    return micro_batches * chunks + stages - 1


def warm_up(stages: int, micro_batches: int, stage: int) -> int:
    """min(P - s - 1, m) forward passes of stage s before its first pair of one forward and one backward.

    Source: Ch. 16, `ch16.1f1b_order` as corrected (4-5:D-21).
    """
    _check_stage(stages, stage)
    positive(micro_batches=micro_batches)
    return np.minimum(stages - stage - 1, micro_batches)


def in_flight(stages: int, micro_batches: int, stage: int) -> int:
    """min(P - s, m): micro-batches whose activations stage s of a 1F1B pipeline holds at most; GPipe holds m. Source:
    Ch. 16, `ch16.1f1b_memory`."""
    _check_stage(stages, stage)
    positive(micro_batches=micro_batches)
    return np.minimum(stages - stage, micro_batches)


def interleaved_in_flight(stages: int, chunks: int, stage: int = 0) -> Fraction:
    """(2 (P - s - 1) + (v - 1) P + 1) / v micro-batches of a whole stage that interleaved 1F1B holds at most; P + (P -
    1) / v on stage 0.

    Source: Ch. 16, `ch16.interleaved_memory` (not in the book; 4-5:D-75).
    """
    finite(stages=stages)
    finite(chunks=chunks)
    _check_stage(stages, stage)
    count(chunks=chunks)
    return ratio(2 * (stages - stage - 1) + (chunks - 1) * stages + 1, chunks)


def hops(stages: int, chunks: int = 1) -> int:
    """P v - 1 messages a micro-batch and direction, those from the last stage to the first included. Source: Ch. 16,
    `ch16.interleaved_comm`."""
    count(stages=stages, chunks=chunks)
    return stages * chunks - 1


def messages_waited(stages: int, micro_batches: int, chunks: int = 1) -> int:
    """2 (k - floor(k / P)), k = m + P - 2: messages by whose time a step of 1F1B is longer, as next to every backward
    waits for one that has to be sent first; 2 (P v - 1), those of filling and draining alone, of interleaved 1F1B.

    Equal stages, and messages no longer than half a forward of a chunk. Source: not in the book, which has them hidden
    (`ch24.step_time`); the schedules' simulation.
    """
    count(stages=stages, chunks=chunks)
    positive(micro_batches=micro_batches)
    finite(stages=stages)
    k = micro_batches + stages - 2
    return 2 * chosen(chunks > 1, hops(stages, chunks) * (stages > 1), k - k // stages)


def zero_bubble_idle_s(
    stages: int, forward_s: Number, input_backward_s: Number, weight_s: Number, lag: int = 1
) -> Number:
    """(P - 1) (t_F + t_B - k t_W): W, the gradient of weights, put off by k times s micro-batches on stage s; ZB-H1 has
    k = 1, ZB-H2 k = 2.

    t_B is the gradient of the input alone; 1F1B, with both in one, idles (P - 1) (t_F + t_B + t_W). Below 0 there is no
    bubble. Source: Ch. 16, `ch16.zb_bubble` as corrected (4-5:D-24; Qi et al. 2023).
    """
    count(stages=stages)
    positive(lag=lag)
    not_negative(forward_s=forward_s, input_backward_s=input_backward_s, weight_s=weight_s)
    idle = (stages - 1) * (forward_s + input_backward_s - lag * weight_s)
    return chosen(idle > 0, idle, 0)


def zero_bubble_share(
    stages: int, micro_batches: int, forward_s: Number, input_backward_s: Number, weight_s: Number, lag: int = 1
) -> Number:
    """x / (x + m (t_F + t_B + t_W)), x = `zero_bubble_idle_s`. Source: Ch. 16, `ch16.zb_bubble`; `A27`, `A28`."""
    finite(stages=stages)
    positive(micro_batches=micro_batches)
    idle = zero_bubble_idle_s(stages, forward_s, input_backward_s, weight_s, lag)
    return idle_share(idle, micro_batches * (forward_s + input_backward_s + weight_s))


def idle_share(idle_s: Number, busy_s: Number) -> Number:
    """idle / (idle + busy), busy = m (t_F + t_B) of one step, whatever the schedule. Source: Ch. 31a,
    `ch31a.dualpipe`."""
    not_negative(idle_s=idle_s)
    positive(busy_s=busy_s)
    return idle_s / (idle_s + busy_s)


def zero_bubble_in_flight(stages: int, lag: int = 1) -> int:
    """k (P - 1) + 1 micro-batches: P with ZB-H1, 2 P - 1 with ZB-H2. Source: Ch. 16, `ch16.zb_memory` as corrected
    (4-5:D-25)."""
    count(stages=stages)
    positive(lag=lag)
    return lag * (stages - 1) + 1


def stage_volume_bytes(message_bytes: int, micro_batches: int, neighbours: int = 2) -> int:
    """2 m n bytes that an interior stage sends a step, activations one way and their gradients the other; half of it at
    the ends (`neighbours` 1).

    Source: Ch. 16, `ch16.pp_volume`.
    """
    positive(message_bytes=message_bytes, micro_batches=micro_batches, neighbours=neighbours)
    return neighbours * micro_batches * message_bytes


def pipeline_volume_bytes(message_bytes: int, micro_batches: int, stages: int) -> int:
    """2 (P - 1) m n bytes over all boundaries. Source: Ch. 16, `ch16.pp_volume`."""
    count(stages=stages)
    positive(message_bytes=message_bytes, micro_batches=micro_batches)
    return 2 * (stages - 1) * micro_batches * message_bytes


def uneven_step_s(stage_s: ArrayLike, micro_batches: int, chunks: int = 1) -> float:
    """m max t_i + (sum t_i - max t_i) / v for stages that take t_i a micro-batch, listed along the last dim.

    Exact for GPipe, an upper bound for 1F1B, and one for interleaved 1F1B (P a divisor of m) where the chunks of a
    stage take equally long, those at both ends of the pipeline apart. Source: Ch. 16, `ch16.load_balance`; with chunks
    Narayanan et al. 2021, to first order.
    """
    count(chunks=chunks)
    positive(stage_s=stage_s, micro_batches=micro_batches)
    slowest = np.max(stage_s, -1)
    return micro_batches * slowest + (np.sum(stage_s, -1) - slowest) / chunks


def uneven_idle_s(stage_s: ArrayLike, micro_batches: int, chunks: int = 1) -> float:
    """m (max t_i - mean t_i) + (sum t_i - max t_i) / v: what a mean stage idles in `uneven_step_s`. It waits for the
    slowest one in every micro-batch, and for the others while the pipeline fills and drains. Source: as
    `uneven_step_s`."""
    count(chunks=chunks)
    positive(stage_s=stage_s, micro_batches=micro_batches)
    whole, slowest = np.sum(stage_s, -1), np.max(stage_s, -1)
    return micro_batches * (slowest - whole / np.shape(stage_s)[-1]) + (whole - slowest) / chunks


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, ceil(L / P) or one less: less on the last, which has the head, then on the first, then from
    the end on.

    Source: Llama 3 report, section 3.3.2: 126 layers on 16 stages, one less on the first and on the last.
    """
    count(stages=stages)
    finite(stages=stages)
    at_least(stages, layers=layers)
    order = [stages - 1, *range(stages - 1)][:stages]
    order[2:] = reversed(order[2:])
    short = set(order[: -layers % stages])
    return tuple(-(-layers // stages) - (stage in short) for stage in range(stages))


def uneven_efficiency(stage_s: ArrayLike, micro_batches: float = np.inf) -> float:
    """m sum t_i / (P T), T = `uneven_step_s`; sum t_i / (P max t_i) for endlessly many micro-batches. Source: Ch. 16,
    `ch16.load_balance`."""
    positive(stage_s=stage_s)
    positive_or_infinite(micro_batches=micro_batches)
    one, slowest = np.sum(stage_s, -1), np.max(stage_s, -1)
    return one / (np.shape(stage_s)[-1] * (one / micro_batches + (1 - 1 / micro_batches) * slowest))


def throughput_per_s(stages: int, micro_batches: int, forward_s: Number, backward_s: Number, chunks: int = 1) -> Number:
    """m / T micro-batches a second. Source: Ch. 16, `ch16.throughput`."""
    finite(micro_batches=micro_batches)
    return micro_batches / step_s(stages, micro_batches, forward_s, backward_s, chunks)


def segmented_bytes(in_flight: int, segments: int, layers: int, input_bytes: int, layer_bytes: int) -> float:
    """f g A_in + (L_s / g) M_layer: g inputs of segments for each micro-batch in flight, and one segment of a stage's
    L_s layers recomputed.

    Source: Ch. 16, `ch16.ckpt_1f1b` as corrected (4-5:D-27).
    """
    positive(in_flight=in_flight, segments=segments, layers=layers, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return in_flight * segments * input_bytes + layers / segments * layer_bytes


def _check_stage(stages: int, stage: int) -> None:
    count(stages=stages)
    not_negative(stage=stage)
    below(stages, stage=stage)
