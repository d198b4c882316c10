"""Part I: sizes of a model and of what it keeps (Ch. 6). State stands in `memory`, activations of a layer in `activations`, times in `scale`."""

import numpy as np

from lab.book.checks import positive


def gpt_parameters(layers, embed, vocab, tied=False):
    """12 L H^2 + 2 V H: GPT blocks with an MLP of 4 H, embeddings of input and output, one table where tied; norms and biases left out.

    Source: Ch. 6, `ch06.params`.
    """
    positive(layers=layers, embed=embed, vocab=vocab)
    return 12 * layers * embed**2 + np.where(tied, 1, 2) * vocab * embed


def devices_needed(total_bytes, device_bytes):
    """ceil(M / m): devices that hold it, with nothing to spare. Source: Ch. 1, `ch01.mem16`; Ch. 6, `ch06.static`."""
    positive(total_bytes=total_bytes, device_bytes=device_bytes)
    return np.ceil(np.divide(total_bytes, device_bytes))


def remat_bytes(layers, segment, input_bytes, layer_bytes):
    """L / k n_in + k M: the input of every segment of k layers, and one segment while it is recomputed. Source: Ch. 6, `ch06.act_ckpt`."""
    positive(layers=layers, segment=segment, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return layers / segment * input_bytes + segment * layer_bytes


def best_remat_segment(layers, input_bytes, layer_bytes):
    """sqrt(L n_in / M) layers, at which `remat_bytes` is least; below 1 it means 1. sqrt(L) only where the input is as large as M.

    Source: Ch. 6, `ch06.act_ckpt` as corrected (D-06).
    """
    positive(layers=layers, input_bytes=input_bytes, layer_bytes=layer_bytes)
    return np.sqrt(layers * input_bytes / layer_bytes)
