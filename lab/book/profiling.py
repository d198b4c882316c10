"""Part VIII: what a profile of a training step is read with (Ch. 32)."""

import numpy as np

from lab.book.checks import count, finite, not_negative, positive, share


def hfu(mfu: float, recomputed_forwards: float = 1.0) -> float:
    """MFU (3 + r) / 3, r the forward passes run again: a backward pass costs two. 4/3 of MFU for full recomputation.

    Source: Ch. 32, `ch32.hfu` as corrected (6-8:D-99).
    """
    share(mfu=mfu)
    not_negative(recomputed_forwards=recomputed_forwards)
    return mfu * (3 + recomputed_forwards) / 3


def forward_flops_per_token(
    layers: int,
    embed: int,
    mlp: int,
    vocab: int,
    length: int,
    kv_share: float = 1.0,
    gated: bool = False,
    causal: bool = False,
) -> float:
    """L ((4 + 4 g/A) H^2 + 4 S H + m H F) + 2 V H FLOPs; 2 S H where masked scores are skipped, m = 6 for a gated MLP
    and 4 otherwise.

    `kv_share` is g/A, heads of keys over heads of queries. The lookup of the input costs nothing.
    Source: Ch. 32, `ch32.flops_per_token` as corrected (6-8:D-100).
    """
    positive(layers=layers, embed=embed, mlp=mlp, vocab=vocab, length=length, kv_share=kv_share)
    projections = (4 + 4 * kv_share) * embed**2
    scores = np.where(causal, 2, 4) * length * embed
    return layers * (projections + scores + np.where(gated, 6, 4) * embed * mlp) + 2 * vocab * embed


def training_flops_per_token(
    layers: int,
    embed: int,
    mlp: int,
    vocab: int,
    length: int,
    kv_share: float = 1.0,
    gated: bool = False,
    causal: bool = False,
) -> float:
    """Three forward passes: the backward pass costs two. Source: Ch. 32, `ch32.flops_per_token` as corrected
    (6-8:D-100)."""
    return 3 * forward_flops_per_token(layers, embed, mlp, vocab, length, kv_share, gated, causal)


def wasted_device_h(waste_share: float, devices: int, hours: float) -> float:
    """Device hours that a share of lost time costs. Source: Ch. 32, `ch32.time_budget`."""
    finite(devices=devices)
    share(waste_share=waste_share)
    count(devices=devices)
    positive(hours=hours)
    return waste_share * devices * hours


def pipelined_tree_all_reduce_s(payload_bytes: float, ranks: int, alpha_s: float, bytes_per_s: float) -> float:
    """2 ceil(log2 n) alpha + 2 V / beta: a tree in the limit of many slices. Source: Ch. 32,
    `ch32.collective_models`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    positive(payload_bytes=payload_bytes, bytes_per_s=bytes_per_s)
    not_negative(alpha_s=alpha_s)
    return 2 * np.ceil(np.log2(ranks)) * alpha_s + 2 * payload_bytes / bytes_per_s


def straggler_loss(usual_s: float, slowest_s: float) -> float:
    """1 - t / t_slowest: share of a synchronous step that the others wait. Source: Ch. 32, `ch32.straggler_probe`."""
    positive(usual_s=usual_s, slowest_s=slowest_s)
    return 1 - usual_s / np.maximum(usual_s, slowest_s)


def largest_z_score(ranks: int) -> float:
    """(n - 1) / sqrt(n): as far as one of n values can be from their mean, in sample standard deviations. Source: Ch.
    32, `ch32.straggler_probe`."""
    finite(ranks=ranks)
    count(ranks=ranks)
    return (ranks - 1) / np.sqrt(ranks)
