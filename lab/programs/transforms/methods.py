"""The ways to exchange gradients in fewer bits, by name."""

from __future__ import annotations

from collections.abc import Callable

from lab.meshes.errors import no_such
from lab.programs.strategies.strategy import Strategy
from lab.programs.transforms import codecs
from lab.programs.transforms.power_sgd import power_sgd
from lab.programs.transforms.quantized import one_bit_adam, quantized
from lab.programs.transforms.sparse import random_k, top_k

LOSSLESS_IN_FULL = ("power_sgd", "top_k", "random_k")
"""Of a rank as large as the matrices', or all numbers, they give the sum itself; codes always round."""
METHODS: dict[str, Callable[[int, float], Strategy]] = {
    "power_sgd": lambda rank, share: power_sgd(rank),
    "top_k": lambda rank, share: top_k(share),
    "random_k": lambda rank, share: random_k(share),
    "qsgd": lambda rank, share: quantized(codecs.qsgd()),
    "terngrad": lambda rank, share: quantized(codecs.terngrad()),
    "one_bit_adam": lambda rank, share: one_bit_adam(),
    "int8": lambda rank, share: quantized(codecs.int8()),
    "float8": lambda rank, share: quantized(codecs.float8()),
}


def method(name: str, rank: int, share: float) -> Strategy:
    """Args:
      rank: of PowerSGD.
      share: of the numbers that top-k and random-k send.

    Raises:
      UsageError: no such method.
    """
    if name not in METHODS:
        raise no_such("method", name, METHODS)
    return METHODS[name](rank, share)
