"""The second source's laws of compression: what a message saves after its codec and its collective (ml.31 to ml.35)."""

from fractions import Fraction

from lab.book.checks import count, not_negative, positive, ratio, share


def compressed_speedup(latency_s: float, transfer_s: float, compression: float, codec_s: float) -> float:
    """(A + T) / (A + T / C + codec): only the transfer shrinks, not the latency. Source: ml, `ml.31_breakeven`
    (2nd:M46)."""
    positive(transfer_s=transfer_s, compression=compression)
    not_negative(latency_s=latency_s, codec_s=codec_s)
    return (latency_s + transfer_s) / (latency_s + transfer_s / compression + codec_s)


def sparse_message_gain(
    elements: int, kept: int, dense_bytes_per_element: int, value_bytes: int, index_bytes: int = 4
) -> Fraction:
    """d e / (K (e_v + 4)): a dense message over the same with K values, each beside its index. Source: ml,
    `ml.32_sparse` (2nd:M47)."""
    not_negative(index_bytes=index_bytes)
    positive(elements=elements, kept=kept, dense_bytes_per_element=dense_bytes_per_element, value_bytes=value_bytes)
    return ratio(elements * dense_bytes_per_element, kept * (value_bytes + index_bytes))


def sparse_collective_gain(
    elements: int, kept: int, ranks: int, dense_bytes_per_element: int, value_bytes: int, index_bytes: int = 4
) -> Fraction:
    """2 d e / (N K (e_v + 4)): a dense ring all_reduce over the gather of all ranks' values that replaces it.

    Source: ml, `ml.32_sparse` (2nd:M48).
    """
    count(ranks=ranks)
    return ratio(2 * sparse_message_gain(elements, kept, dense_bytes_per_element, value_bytes, index_bytes), ranks)


def block_quantized_gain(block: int) -> Fraction:
    """4 b / (b + 4): float32 over one byte an element and a float32 scale a block. Source: ml, `ml.33_block_quant`."""
    positive(block=block)
    return ratio(4 * block, block + 4)


def phased_gain(warm_up_share: float, compression: float) -> float:
    """1 / (w + (1 - w) / C): over a training that compresses after its warm-up. Source: ml, `ml.35_onebit_adam`."""
    share(warm_up_share=warm_up_share)
    positive(compression=compression)
    return 1 / (warm_up_share + (1 - warm_up_share) / compression)
