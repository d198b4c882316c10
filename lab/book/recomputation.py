"""Part V: activations computed again instead of kept (Ch. 21). What a layer saves stands in `activations`."""

import numpy as np

from lab.book.checks import Number, not_negative, positive, share


def segmented_bytes(layers: int, segment_layers: float, input_bytes: float, layer_bytes: Number) -> float:
    """(L / k) A_in + k M_layer: an input for each segment of k layers, and one segment's activations.

    Source: Ch. 21, `ch21.sqrt_rule` as corrected (4-5:D-78).
    """
    positive(layers=layers, segment_layers=segment_layers, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return layers / segment_layers * input_bytes + segment_layers * layer_bytes


def best_segment_layers(layers: int, input_bytes: int, layer_bytes: int) -> float:
    """sqrt(L A_in / M_layer): the k of the least `segmented_bytes`; sqrt L only where an input is as large as all of a
    layer.

    Source: Ch. 21, `ch21.sqrt_rule` as corrected (4-5:D-78).
    """
    positive(layers=layers, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return np.sqrt(layers * input_bytes / layer_bytes)


def least_segmented_bytes(layers: int, input_bytes: int, layer_bytes: int) -> float:
    """2 sqrt(L A_in M_layer). Source: Ch. 21, `ch21.sqrt_rule` as corrected (4-5:D-78)."""
    positive(layers=layers, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return 2 * np.sqrt(layers * input_bytes * layer_bytes)


def recomputed_layers(layers: int) -> float:
    """L (L + 1) / 2 layers' forward passes where nothing at all is kept but the input.

    Source: Ch. 21, `ch21.strategies_big_o` as corrected (4-5:D-77).
    """
    positive(layers=layers)
    return layers * (layers + 1) / 2


def overhead(recomputed_share: float, backward_to_forward: float = 2) -> float:
    """c / (1 + r): the share c of a forward pass run again, over a step of a forward pass and a backward pass r times
    as long.

    Source: Ch. 21, `ch21.compute_overhead`.
    """
    share(recomputed_share=recomputed_share)
    positive(backward_to_forward=backward_to_forward)
    return recomputed_share / (1 + backward_to_forward)


def attention_cost_share(length: int, embed: int) -> float:
    """s / (6 h + s): scores and their product with values, 4 b s^2 h of a layer's 24 b s h^2 + 4 b s^2 h.

    Source: Ch. 21, `ch21.selective_attention`.
    """
    positive(length=length, embed=embed)
    return length / (6 * embed + length)


def attention_saved_share(length: int, embed: int, heads: int) -> float:
    """(5 a s / h) / (34 + 5 a s / h): what selective recomputation saves of a GPT layer.

    Source: Ch. 21, `ch21.selective_attention` (Korthikanti et al. 2022).
    """
    positive(length=length, embed=embed, heads=heads)
    square = 5 * heads * length / embed
    return square / (34 + square)


def book_layer_bytes(tokens: int, length: int, embed: int, heads: int) -> int:
    """(2 + 6 + 2 + 8 + 2) b s h + 4 b a s^2 bytes: the chapter's own list of tensors in 16 bits, norms and masks left
    out.

    Source: Ch. 21, `ch21.layer_activations` as corrected (4-5:D-76); `activations.gpt_saved_bytes` is the whole list.
    """
    positive(tokens=tokens, length=length, embed=embed, heads=heads)
    return 20 * tokens * embed + 4 * tokens * heads * length


def rounding_error(mantissa_bits: int) -> float:
    """2^-(m + 1): largest relative error of rounding to m bits, in the normal range. Source: Ch. 21,
    `ch21.compression`."""
    not_negative(mantissa_bits=mantissa_bits)
    return np.exp2(-np.add(mantissa_bits, 1.0))
