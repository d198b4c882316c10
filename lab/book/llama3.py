"""Part VIII: what the case study of Llama 3 counts (Ch. 34)."""

import numpy as np

from lab.book.checks import positive


def llama_layer_parameters(embed: int, heads: int, kv_heads: int, head_dim: int, mlp: int) -> int:
    """H (A + 2 g) d_h + A d_h H + 3 H F + 2 H: attention with grouped keys, gated MLP, two norms. Source: Ch. 34,
    `ch34.params`."""
    positive(embed=embed, heads=heads, kv_heads=kv_heads, head_dim=head_dim, mlp=mlp)
    return embed * (2 * heads + 2 * kv_heads) * head_dim + 3 * embed * mlp + 2 * embed


def llama_parameters(layers: int, embed: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocab: int) -> int:
    """L layers, embeddings of input and output, and the last norm. Source: Ch. 34, `ch34.params`."""
    positive(layers=layers, vocab=vocab)
    return layers * llama_layer_parameters(embed, heads, kv_heads, head_dim, mlp) + 2 * vocab * embed + embed


def causal_attention_share(layers: int, embed: int, length: int, parameters: float) -> float:
    """6 L H S / (6 Psi): what masked attention adds to the FLOPs of 6 Psi a token. Source: Ch. 34,
    `ch34.compute_time`."""
    positive(layers=layers, embed=embed, length=length, parameters=parameters)
    return layers * embed * length / parameters


def least_activation_bytes(layers: int, length: int, embed: int, mlp: int, bytes_per_element: int) -> int:
    """L (2 S H + S F) w bytes a sequence: block inputs and one hidden activation, less than a backward pass needs.
    Source: Ch. 34, `ch34.activation`."""
    positive(layers=layers, length=length, embed=embed, mlp=mlp, bytes_per_element=bytes_per_element)
    return layers * length * (2 * embed + mlp) * bytes_per_element


def compute_efficiency(batch: float, critical_batch: float) -> float:
    """B_c / (B + B_c): the compute of the smallest batch over this one's, for equal loss. Source: Ch. 34,
    `ch34.batch_efficiency` as corrected (6-8:D-123)."""
    positive(batch=batch, critical_batch=critical_batch)
    return critical_batch / (batch + critical_batch)


def time_efficiency(batch: float, critical_batch: float) -> float:
    """B / (B + B_c): the steps of the largest batch over this one's, for equal loss. Source: as there."""
    return 1 - compute_efficiency(batch, critical_batch)


def rope_frequencies(head_dim: int, base: float) -> np.ndarray:
    """base^(-2i/d) for i < d/2, radians a token. Source: Su et al. 2021, arXiv:2104.09864; Ch. 34, `ch34.rope`."""
    positive(head_dim=head_dim, base=base)
    return base ** (-np.arange(0, head_dim, 2) / head_dim)


def banded_rope_frequencies(
    head_dim: int, base: float, factor: float, trained_length: float, low: float = 1.0, high: float = 4.0
) -> np.ndarray:
    """`rope_frequencies` as Llama 3.1 stretches them: those that turn `high` times or more in `trained_length` tokens
    stay, those that turn less than `low` times are divided by `factor`, and between the two the divisor is
    interpolated.

    Source: config.json of Llama 3.1, rope_type llama3; Ch. 34, `ch34.rope` as corrected (6-8:D-124).
    """
    positive(factor=factor, trained_length=trained_length, low=low, high=high)
    plain = rope_frequencies(head_dim, base)
    turns = trained_length * plain / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (kept + (1 - kept) / factor)
