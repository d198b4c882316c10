"""Part V: state and activations in the host's memory or on disk (Ch. 22). `bytes_per_s` is one direction of the link to
the host."""

from fractions import Fraction

import numpy as np

from lab.book.checks import above, chosen, count, not_negative, positive, ratio


def exposed_s(payload_bytes: float, bytes_per_s: float, overlap_s: float = 0) -> float:
    """max(0, n / B - T_overlap). Source: Ch. 22, `ch22.effective_bandwidth` as corrected (4-5:D-85)."""
    positive(payload_bytes=payload_bytes, bytes_per_s=bytes_per_s)
    not_negative(overlap_s=overlap_s)
    return np.maximum(0, payload_bytes / bytes_per_s - overlap_s)


def optimizer_traffic_bytes(
    parameters: int, ranks: int = 1, gradient_bytes: int = 2, weight_bytes: int = 2
) -> Fraction:
    """(g + w) Psi / P over the link a step: gradients down, new weights up; P > 1 from ZeRO-2 on.

    Source: Ch. 22, `ch22.zero_offload_traffic` as corrected (4-5:D-86).
    """
    count(ranks=ranks)
    positive(parameters=parameters)
    not_negative(gradient_bytes=gradient_bytes, weight_bytes=weight_bytes)
    return ratio(parameters * (gradient_bytes + weight_bytes), ranks)


def host_optimizer_s(parameters: float, memory_bytes_per_s: float, bytes_per_parameter: int = 28) -> float:
    """28 Psi / B_DRAM: Adam on the host reads gradient, master and moments and writes them again.

    Source: Ch. 22, `ch22.zero_offload_traffic` (4-5:D-86).
    """
    positive(parameters=parameters, memory_bytes_per_s=memory_bytes_per_s, bytes_per_parameter=bytes_per_parameter)
    return parameters * bytes_per_parameter / memory_bytes_per_s


def offloaded_state_bytes(parameters: float, buffered_gradient_bytes: int = 2) -> float:
    """(2 + g) Psi on the device with ZeRO-Offload: 16-bit weights, and gradients (2) or nearly none (0) where they
    leave at once.

    Source: Ch. 22, `ch22.zero_offload_memory`.
    """
    positive(parameters=parameters)
    not_negative(buffered_gradient_bytes=buffered_gradient_bytes)
    return parameters * (2 + buffered_gradient_bytes)


def tokens_to_hide_weights(
    flops_per_s: float, bytes_per_s: float, bytes_per_element: int = 2, utilisation: float = 1
) -> float:
    """e u F / (2 B): a layer's forward pass of 2 FLOP a weight and token lasts as long as its weights' transfer; a
    backward pass needs half.

    Source: Ch. 22, `ch22.overlap_condition`.
    """
    positive(
        flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, bytes_per_element=bytes_per_element, utilisation=utilisation
    )
    return bytes_per_element * utilisation * flops_per_s / (2 * bytes_per_s)


def step_s(compute_s: float, transfer_s: float, sync_s: float = 0) -> float:
    """max(T_c, T_x) + T_sync. Source: Ch. 22, `ch22.step_model`."""
    not_negative(compute_s=compute_s, transfer_s=transfer_s, sync_s=sync_s)
    return np.maximum(compute_s, transfer_s) + sync_s


def efficiency(compute_s: float, transfer_s: float, sync_s: float = 0) -> float:
    """T_c / T, T = `step_s`. Source: Ch. 22, `ch22.step_model`."""
    positive(compute_s=compute_s)
    return compute_s / step_s(compute_s, transfer_s, sync_s)


def buffered_layer_s(compute_s: float, transfer_s: float, ahead: int = 1) -> float:
    """T_c + T_t without a buffer ahead, max(T_c, T_t) with one or more on a link that carries one transfer at a time.

    Source: Ch. 22, `ch22.buffering` as corrected (4-5:D-91).
    """
    not_negative(compute_s=compute_s, transfer_s=transfer_s, ahead=ahead)
    return chosen(ahead == 0, compute_s + transfer_s, np.maximum(compute_s, transfer_s))


def buffers_bytes(layer_bytes: int, ahead: int = 1) -> int:
    """(k + 1) S. Source: Ch. 22, `ch22.buffering`."""
    positive(layer_bytes=layer_bytes)
    not_negative(ahead=ahead)
    return (ahead + 1) * layer_bytes


def compressed_s(payload_bytes: float, codec_bytes_per_s: float, bytes_per_s: float, compression: float) -> float:
    """M / C + M / (R B): compress, then send. Source: Ch. 22, `ch22.compression`."""
    positive(
        payload_bytes=payload_bytes,
        codec_bytes_per_s=codec_bytes_per_s,
        bytes_per_s=bytes_per_s,
        compression=compression,
    )
    return payload_bytes / codec_bytes_per_s + payload_bytes / (compression * bytes_per_s)


def least_codec_bytes_per_s(bytes_per_s: float, compression: float) -> float:
    """B / (1 - 1 / R): the codec above which `compressed_s` beats sending plainly; B itself where both run at once.

    Source: Ch. 22, `ch22.compression`.
    """
    positive(bytes_per_s=bytes_per_s)
    above(1, compression=compression)
    return bytes_per_s / (1 - 1 / compression)
