"""Part VII: what attention variants cache, and what a pipeline of two directions idles (Ch. 31a)."""

import numpy as np

from lab.book.checks import Number, count, finite, not_negative, positive


def kv_bytes_per_token(kv_heads: int, head_dim: int, bytes_per_element: int) -> int:
    """2 g d_h w bytes a token and layer; g = A heads without grouping, 1 for one shared head. Source: Ch. 31a,
    `ch31a.kv_cache`."""
    positive(kv_heads=kv_heads, head_dim=head_dim, bytes_per_element=bytes_per_element)
    return 2 * kv_heads * head_dim * bytes_per_element


def window_kv_bytes(tokens: int, window: int, kv_heads: int, head_dim: int, bytes_per_element: int) -> int:
    """2 g d_h min(S, W) w bytes a layer. Source: Ch. 31a, `ch31a.kv_cache`."""
    positive(tokens=tokens, window=window)
    return kv_bytes_per_token(kv_heads, head_dim, bytes_per_element) * np.minimum(tokens, window)


def receptive_field_tokens(layers: int, window: int) -> int:
    """L W. Source: Ch. 31a, `ch31a.swa`."""
    positive(layers=layers, window=window)
    return layers * window


def window_hops(window: int, length: int, ranks: int) -> float:
    """ceil(W / (S / c)): neighbours from which a rank of a split sequence needs keys, W counting tokens before the own
    one. Source: Ch. 31a, `ch31a.swa`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(length=length)
    not_negative(window=window)
    return np.minimum(np.ceil(window * ranks / length), ranks - 1)


def latent_bytes_per_token(latent_dim: int, rope_dim: int, bytes_per_element: int) -> int:
    """(d_c + d_R) w bytes a token and layer. Source: Ch. 31a, `ch31a.mla` as corrected (6-8:D-92)."""
    positive(latent_dim=latent_dim, bytes_per_element=bytes_per_element)
    not_negative(rope_dim=rope_dim)
    return (latent_dim + rope_dim) * bytes_per_element


def dualpipe_idle_s(stages: int, both_s: Number, backward_s: Number, weight_s: Number) -> Number:
    """(p / 2 - 1) (F&B + B - 3 W), F&B a forward and a backward pass run together; `pipeline` has the other schedules.

    Source: Ch. 31a, `ch31a.dualpipe` as corrected (6-8:D-95; DeepSeek-V3 report, Table 2).
    """
    finite(stages=stages)
    count(stages=stages)
    positive(both_s=both_s, backward_s=backward_s)
    not_negative(weight_s=weight_s)
    return (stages / 2 - 1) * (both_s + backward_s - 3 * weight_s)
