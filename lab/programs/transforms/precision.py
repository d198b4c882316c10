"""Reduced precision (Ch. 30): weights and gradients that travel in 8 bits."""

from __future__ import annotations

from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.wire import Narrow, Wire

RECIPES = {
    "tensor": Narrow("f8e4m3fn"),
    "tile128": Narrow("f8e4m3fn", block=128),
    "mxfp8": Narrow("f8e4m3fn", block=32, scale="u8"),
    "int8": Narrow("s8", block=128),
}
"""A scale for each tensor, found by an all_reduce; for each 128 values; the power of two of each 32 (MXFP8)."""
AS_IT_IS = "as_it_is"


def gathered_in(narrow: Narrow) -> Strategy:
    """Matrices of ZeRO-3 are gathered in this format, with their scales."""
    return Strategy(terms=(), wire=Wire(weights=narrow), styles=("explicit",))


def reduced_in(narrow: Narrow) -> Strategy:
    """Gradients of ZeRO-3's matrices travel in this format, and are summed in float32."""
    return Strategy(terms=(), wire=Wire(gradients=narrow), styles=("explicit",))
