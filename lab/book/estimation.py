"""Part I: sizes of a model (Ch. 6). State stands in `memory`, activations in `activations` and
`recomputation`, times in `scale`."""

import numpy as np

from lab.book.checks import Number, chosen, positive, ratio, real


def gpt_parameters(layers: int, embed: int, vocab: int, tied: bool = False) -> int:
    """12 L H^2 + 2 V H: GPT blocks with an MLP of 4 H, embeddings of input and output, one table where tied; norms and
    biases left out.

    Source: Ch. 6, `ch06.params`.
    """
    positive(layers=layers, embed=embed, vocab=vocab)
    return 12 * layers * embed**2 + chosen(tied, 1, 2) * vocab * embed


def devices_needed(total_bytes: Number, device_bytes: Number) -> float:
    """ceil(M / m): devices that hold it, with nothing to spare. Source: Ch. 1, `ch01.mem16`; Ch. 6, `ch06.static`."""
    positive(total_bytes=total_bytes, device_bytes=device_bytes)
    return np.ceil(real(ratio(total_bytes, device_bytes)))
