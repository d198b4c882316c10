"""Part VI: searching for a configuration: how many there are, which are valid, and what a step of one costs (Ch.
27)."""

from collections.abc import Sequence
from itertools import product
from math import erfc, prod, sqrt

import numpy as np
from numpy.typing import ArrayLike

from lab.book.checks import at_least, count, finite, not_negative, positive, share


def layouts(devices: int, menus: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Every choice of one degree from each menu whose product is the number of devices. Source: Ch. 27,
    `ch27.space_size`; Ch. 25, `ch25.search_5d`."""
    finite(devices=devices)
    count(devices=devices)
    return [degrees for degrees in product(*menus) if prod(degrees) == devices]


def layout_count(devices: int, menus: Sequence[Sequence[int]]) -> int:
    """How many `layouts` there are. Source: Ch. 27, `ch27.space_size` as corrected (6-8:D-45, 6-8:D-46)."""
    return len(layouts(devices, menus))


def broken_rules(
    layers: int, heads: int, kv_heads: int, vocab: int, length: int, batch: int, experts: int = 1,
    data: int = 1, pipe: int = 1, tensor: int = 1, context: int = 1, expert: int = 1, chunks: int = 1,
    micro_batch: int = 1,
) -> tuple[str, ...]:  # fmt: skip
    """What does not divide, as `tensor | vocab`; data-parallel ranks are data x expert. Empty where all does.

    Uneven stages work too (Llama 3's first and last have a layer less): `pipe chunks | layers` is a convenience, the
    others are limits. Source: Ch. 27, `ch27.divisibility` as corrected (6-8:D-56, 6-8:D-57).
    """
    positive(layers=layers, heads=heads, kv_heads=kv_heads, vocab=vocab, length=length, batch=batch, experts=experts)
    rules = {
        "pipe chunks | layers": (pipe * chunks, layers),
        "tensor | heads": (tensor, heads),
        "tensor | kv_heads": (tensor, kv_heads),
        "tensor | vocab": (tensor, vocab),
        "2 context | length": (2 * context if context > 1 else 1, length),
        "expert | experts": (expert, experts),
        "data expert micro_batch | batch": (data * expert * micro_batch, batch),
    }
    count(pipe=pipe, tensor=tensor, context=context, expert=expert, chunks=chunks)
    positive(data=data, micro_batch=micro_batch)
    return tuple(rule for rule, (divisor, whole) in rules.items() if whole % divisor)


def modelled_step_s(
    compute_s: float,
    tensor_s: float,
    pipe_s: float,
    data_s: float,
    bubble: float,
    hidden_share: float = 0.8,
    offload_s: float = 0.0,
) -> float:
    """(T_c + T_t + T_p) / (1 - bubble) + max(0, T_d - 0.8 T_c) + T_offload, each of a whole step of one device.

    Source: Ch. 27, `ch27.cost_model` as corrected (6-8:D-50, 6-8:D-51).
    """
    not_negative(compute_s=compute_s, tensor_s=tensor_s, pipe_s=pipe_s, data_s=data_s, offload_s=offload_s)
    share(bubble=bubble, hidden_share=hidden_share)
    return (
        np.divide(compute_s + tensor_s + pipe_s, 1 - bubble)
        + np.maximum(0, data_s - hidden_share * compute_s)
        + offload_s
    )


def communication_share(communication_s: float, compute_s: float) -> float:
    """T_m / (T_m + T_c), both of one step of one device. Source: Ch. 27, `ch27.comm_constraint` (6-8:D-49)."""
    not_negative(communication_s=communication_s)
    positive(compute_s=compute_s)
    return communication_s / (communication_s + compute_s)


def relative_error(predicted_s: float, measured_s: float) -> float:
    """(predicted - measured) / measured. Source: Ch. 27, `ch27.calibration`."""
    positive(predicted_s=predicted_s, measured_s=measured_s)
    return (predicted_s - measured_s) / measured_s


def calibrated_scales(
    compute_s: ArrayLike, communication_s: ArrayLike, rest_s: ArrayLike, measured_s: ArrayLike
) -> tuple[float, float]:
    """s1, s2 that fit s1 compute + s2 communication + rest to what was measured, by least squares. Source: Ch. 27,
    `ch27.calibration`."""
    finite(compute_s=compute_s, communication_s=communication_s, rest_s=rest_s)
    positive(measured_s=measured_s)
    parts = np.stack([compute_s, communication_s], axis=1)
    (compute_scale, communication_scale), *_ = np.linalg.lstsq(parts, np.subtract(measured_s, rest_s))
    return float(compute_scale), float(communication_scale)


def expected_improvement(best_s: float, mean_s: float, deviation_s: float) -> float:
    """(y* - mu) Phi(z) + sigma phi(z), z = (y* - mu) / sigma: expected seconds below the best so far of a normal guess.
    Source: Ch. 27, `ch27.bayes`."""
    finite(best_s=best_s, mean_s=mean_s)
    positive(deviation_s=deviation_s)
    z = (best_s - mean_s) / deviation_s
    below = np.vectorize(erfc)(-z / sqrt(2)) / 2
    return (best_s - mean_s) * below + deviation_s * np.exp(-z * z / 2) / sqrt(2 * np.pi)


def search_h(evaluations: int, hours_per_evaluation: float) -> float:
    """Hours of a search that runs each candidate. Source: Ch. 27, `ch27.bayes`."""
    positive(evaluations=evaluations, hours_per_evaluation=hours_per_evaluation)
    return evaluations * hours_per_evaluation


def equal_bubble_micro_batches(micro_batches: int, pipe: int, pipe_now: int) -> float:
    """m (p' - 1) / (p - 1): keeps the bubble of p stages with p'. Source: Ch. 27, `ch27.bubble_tradeoff`."""
    count(pipe_now=pipe_now)
    positive(micro_batches=micro_batches)
    count(pipe=pipe)
    at_least(2, pipe=pipe)
    return micro_batches * (pipe_now - 1) / (pipe - 1)


def bubble_micro_batches(pipe: int, bubble: float) -> float:
    """(p - 1) (1 - f) / f: micro-batches at which the bubble is f. Source: Ch. 27, `ch27.bubble_tradeoff`."""
    count(pipe=pipe)
    finite(pipe=pipe)
    positive(bubble=bubble)
    share(bubble=bubble)
    return (pipe - 1) * (1 - bubble) / bubble
