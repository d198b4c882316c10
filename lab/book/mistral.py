"""Part VIII: what the case study of Mistral and Mixtral counts (Ch. 36)."""

import numpy as np

from lab.book.checks import not_negative, positive, share


def cache_slot(position: int, window: int) -> int:
    """position mod W: where a cache of W tokens keeps one; an ordered read starts there too. Source: Ch. 36,
    `ch36.rolling_cache`."""
    not_negative(position=position)
    positive(window=window)
    return position % window


def power_of_two_window(length: int, layers: int) -> float:
    """The least power of two of S / L tokens or more, so that L layers see S tokens. Source: Ch. 36, `ch36.swa_gqa`."""
    positive(length=length, layers=layers)
    return 2 ** np.ceil(np.log2(length / layers))


def cache_saving(length: int, window: int, kv_heads: int, heads: int) -> float:
    """S A / (min(S, W) g): how many times less a window and grouped heads cache. Source: Ch. 36, `ch36.swa_gqa`."""
    positive(length=length, window=window, kv_heads=kv_heads, heads=heads)
    return length * heads / (np.minimum(length, window) * kv_heads)


def active_flop_share(attention_flops: float, expert_flops: float, experts: int, top_k: int) -> float:
    """(a + k x) / (a + E x): FLOPs of one token over those of a dense model with all E experts.

    Source: Ch. 36, `ch36.active_ratio` as corrected (6-8:D-138).
    """
    positive(expert_flops=expert_flops, experts=experts, top_k=top_k)
    not_negative(attention_flops=attention_flops)
    return (attention_flops + top_k * expert_flops) / (attention_flops + experts * expert_flops)


def speculative_tokens(acceptance: float, drafted: int) -> float:
    """(1 - a^(K + 1)) / (1 - a): tokens that one pass of the large model yields on average, K drafted and each accepted
    with probability a.

    Source: Leviathan et al. 2023, arXiv:2211.17192; Ch. 36, `ch36.speculative`.
    """
    share(acceptance=acceptance)
    positive(refusal=1 - np.asarray(acceptance), drafted=drafted)
    return (1 - acceptance ** (drafted + 1)) / (1 - acceptance)


def speculative_speedup(acceptance: float, drafted: int, cost_ratio: float) -> float:
    """`speculative_tokens` / (1 + K / r), the draft r times cheaper. Source: Ch. 36, `ch36.speculative` as corrected
    (6-8:D-139)."""
    positive(cost_ratio=cost_ratio)
    return speculative_tokens(acceptance, drafted) / (1 + drafted / cost_ratio)
