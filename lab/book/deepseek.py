"""Part VIII: what the case study of DeepSeek-V3 counts (Ch. 35)."""

import numpy as np

from lab.book.checks import at_least, not_negative, positive, whole


def cached_tokens(memory_bytes: float, bytes_per_token: int, layers: int) -> float:
    """Tokens whose keys and values fit: M / (L b). Source: Ch. 35, `ch35.mla` as corrected (6-8:D-130)."""
    positive(memory_bytes=memory_bytes, bytes_per_token=bytes_per_token, layers=layers)
    return memory_bytes / (layers * bytes_per_token)


def attention_flops_per_key(heads: int, head_dim: int) -> int:
    """4 A d_h FLOPs a query and key: score, and weighted sum of values. Source: Ch. 35, `ch35.mla`."""
    positive(heads=heads, head_dim=head_dim)
    return 4 * heads * head_dim


def latent_flops_per_key(heads: int, head_dim: int, rope_dim: int) -> int:
    """A (2 (d_h + d_R) + 2 d_h) FLOPs a query and key, keys and values having been decompressed. Source: Ch. 35,
    `ch35.mla`."""
    not_negative(rope_dim=rope_dim)
    return attention_flops_per_key(heads, head_dim) + 2 * heads * rope_dim


def absorbed_flops_per_key(heads: int, latent_dim: int, rope_dim: int) -> int:
    """A (2 (d_c + d_R) + 2 d_c) FLOPs a query and key on the latents themselves, their matrices absorbed into query and
    output.

    Source: Ch. 35, `ch35.mla` as corrected (6-8:D-130).
    """
    positive(heads=heads, latent_dim=latent_dim)
    not_negative(rope_dim=rope_dim)
    return heads * (4 * latent_dim + 2 * rope_dim)


def decompression_flops_per_key(heads: int, head_dim: int, latent_dim: int) -> int:
    """2 d_c A d_h FLOPs a token, for keys or for values. Source: Ch. 35, `ch35.mla`."""
    positive(heads=heads, head_dim=head_dim, latent_dim=latent_dim)
    return 2 * latent_dim * heads * head_dim


def load_deviation(experts: int, top_k: int, tokens: int) -> float:
    """sqrt((E/k - 1) / T): standard deviation over mean of an expert's load under uniform random routing.

    Source: Ch. 35, `ch35.moe_routing`; binomial loads.
    """
    positive(top_k=top_k, tokens=tokens)
    at_least(top_k, experts=experts)
    return np.sqrt((experts / top_k - 1) / tokens)


def elsewhere_share(places: int) -> float:
    """(n - 1) / n: share of uniformly routed tokens that leave their place, one of n. Source: Ch. 35, `ch35.placement`
    as corrected (6-8:D-135)."""
    positive(places=places)
    whole(places=places)
    return (places - 1) / places


def float_rms_error(mantissa_bits: int) -> float:
    """2^-m sqrt(3 / (8 ln 2) / 12): relative RMS error of rounding to m mantissa bits, for values spread evenly over an
    octave's logarithm.

    A scale cancels, so blocks gain nothing until values underflow. Source: Ch. 35, `ch35.fp8` as corrected (6-8:D-132).
    """
    positive(mantissa_bits=mantissa_bits)
    return 2.0 ** -np.asarray(mantissa_bits) * np.sqrt(3 / (8 * np.log(2)) / 12)
