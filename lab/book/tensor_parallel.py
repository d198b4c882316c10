"""Part IV: what a layer computes and how long tensor parallelism keeps it waiting (Ch. 15). What it sends stands in
`parallelism`."""

from fractions import Fraction

from lab.book.checks import Real, at_least, count, finite, not_negative, positive, ratio, whole
from lab.book.collectives import all_reduce_wire_bytes, ring_all_reduce_s
from lab.book.parallelism import activation_bytes


def layer_forward_flops(
    tokens: int, length: int, embed: int, query_dim: int, kv_dim: int, mlp: int, mlp_matrices: int
) -> int:
    """2 t d (2 q + 2 kv) + 4 t S q + 2 m t d F FLOP of one layer's forward pass over t tokens, a multiply-add counted
    as 2, causality not.

    q = A h and kv = K h are the widths of queries and keys; m is 2 for GELU and 3 for SwiGLU.
    Source: Ch. 15, `ch15.layer_flops_forward` as corrected (4-5:D-10); `A17`.
    """
    positive(
        tokens=tokens,
        length=length,
        embed=embed,
        query_dim=query_dim,
        kv_dim=kv_dim,
        mlp=mlp,
        mlp_matrices=mlp_matrices,
    )
    projections = 4 * tokens * embed * (query_dim + kv_dim)
    return projections + attention_forward_flops(tokens, length, query_dim) + 2 * mlp_matrices * tokens * embed * mlp


def attention_forward_flops(tokens: int, length: int, query_dim: int, causal: bool = False) -> int:
    """4 t S q FLOP of one layer's scores and of their product with values; 2 t S q where masked scores are skipped.

    Source: Ch. 15, `ch15.layer_flops_forward` as corrected (4-5:D-10); Ch. 32, `ch32.flops_per_token`.
    """
    positive(tokens=tokens, length=length, query_dim=query_dim)
    return (2 if causal else 4) * tokens * length * query_dim


def gpt_layer_forward_flops(tokens: int, length: int, embed: int) -> int:
    """24 t d^2 + 4 t S d: `layer_forward_flops` with A h = K h = d, F = 4 d and two matrices.

    Source: Ch. 15, `ch15.layer_flops_forward` as corrected.
    """
    return layer_forward_flops(tokens, length, embed, embed, embed, 4 * embed, 2)


def tp_layer_s(
    tokens: int,
    embed: int,
    bytes_per_element: int,
    ranks: int,
    alpha_s: float,
    bytes_per_s: float,
    all_reduces: int = 2,
) -> float:
    """2 [2 (P - 1) alpha + 2 (P - 1) / P b s d e / beta] of a layer's forward pass; a training step has 4 all-reduces.

    Source: Ch. 15, `ch15.tp_time` as corrected (4-5:D-05).
    """
    finite(ranks=ranks)
    positive(all_reduces=all_reduces)
    return all_reduces * ring_all_reduce_s(
        activation_bytes(tokens, embed, bytes_per_element), ranks, alpha_s, bytes_per_s
    )


def tp_compute_to_sync(
    embed: int, ranks: int, flops_per_s: float, bytes_per_s: float, bytes_per_element: int = 2
) -> float:
    """R = 6 d beta / ((P - 1) F e): a forward layer's 24 b s d^2 / P over its two all-reduces, attention's products and
    latency left out.

    Source: Ch. 15, `ch15.tp_ratio` as corrected (4-5:D-11, D-12).
    """
    count(ranks=ranks)
    at_least(2, ranks=ranks)
    positive(embed=embed, flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, bytes_per_element=bytes_per_element)
    return 6 * embed * bytes_per_s / ((ranks - 1) * flops_per_s * bytes_per_element)


def moments_bytes(tokens: int, bytes_per_element: int = 4) -> int:
    """2 b s e: sums and sums of squares over a split hidden dim, the payload of a parallel LayerNorm. Source: Ch. 15,
    `ch15.layernorm_parallel`."""
    positive(tokens=tokens, bytes_per_element=bytes_per_element)
    return 2 * tokens * bytes_per_element


def merged_moments(
    count: float, mean: Real, square: Real, other_count: float, other_mean: Real, other_square: Real
) -> tuple[float, Real, Real]:
    """(n, mu, M2) of two parts together: M2 = M2_a + M2_b + delta^2 n_a n_b / n, without the cancellation of Q / d -
    mu^2.

    Source: Ch. 15, `ch15.layernorm_parallel` (Chan et al. 1979).
    """
    finite(mean=mean, square=square, other_mean=other_mean, other_square=other_square)
    positive(count=count, other_count=other_count)
    n, delta = count + other_count, other_mean - mean
    return n, mean + delta * other_count / n, square + other_square + delta**2 * count * other_count / n


def padded_share(heads: int, ranks: int) -> Fraction:
    """ceil(A / P) P / A - 1: heads added so that P ranks have equally many, as a share. Source: Ch. 15,
    `ch15.tp_limits`."""
    positive(heads=heads, ranks=ranks)
    whole(heads=heads, ranks=ranks)
    return ratio(-(-heads // ranks) * ranks, heads) - 1


def kv_replicas(kv_heads: int, ranks: int) -> int:
    """ceil(P / K): ranks that hold the same key-value head and must sum its gradient. Source: Ch. 15, `ch15.tp_limits`;
    `A17`."""
    positive(kv_heads=kv_heads, ranks=ranks)
    whole(kv_heads=kv_heads, ranks=ranks)
    return -(-ranks // kv_heads)


def divisors(heads: int) -> list[int]:
    """Degrees of tensor parallelism that split the heads evenly. Source: Ch. 15, `ch15.tp_limits`."""
    positive(heads=heads)
    return [ranks for ranks in range(1, heads + 1) if heads % ranks == 0]


def cross_entropy_wire_bytes(tokens: int, ranks: int, bytes_per_element: int = 4) -> Fraction:
    """3 [2 (P - 1) / P b s e]: maximum, sum of exponentials and the target's logit of a loss over a split vocabulary.

    Source: `A19` (Shoeybi et al. 2019).
    """
    positive(tokens=tokens, bytes_per_element=bytes_per_element)
    return 3 * all_reduce_wire_bytes(tokens * bytes_per_element, ranks)


def sp_layer_wire_bytes(tokens: int, embed: int, bytes_per_element: int, ranks: int, regathers: int = 2) -> Fraction:
    """(8 + r) (P - 1) / P b s d e a rank and layer, forward and backward: an all-gather and a reduce-scatter for each
    all-reduce, and r gathers again.

    r = 2 where the backward pass gathers the inputs of both column-parallel matrices again instead of keeping them, 0
    where it keeps them. Source: Ch. 17, `ch17.megatron_sp_pattern` as corrected (4-5:D-28; Korthikanti et al. 2022).
    """
    finite(ranks=ranks)
    not_negative(regathers=regathers)
    count(ranks=ranks)
    return ratio((8 + regathers) * (ranks - 1) * activation_bytes(tokens, embed, bytes_per_element), ranks)
