"""What a TPU adds to arguments (T8): the most minor dims are filled up to whole layout tiles, as the entry's layouts
say.

`f32[2,64,300]{2,1,0:T(8,128)}`: along the two most minor dims, 64 and 300, tiles of 8 and 128, so 64 x 384 elements are
held.
"""

from __future__ import annotations

import re
from math import prod

from lab.hlo.shapes import arrays, bits

_LAYOUT = re.compile(r"([a-z]+\d*\w*\[[\d,]*\])\{([\d,]*):T\(([\d,]+)\)(?![^}]*S\(5\))")
"""Not of what lies in the host's memory."""


def argument_padding(text: str) -> int:
    """Bytes of the entry's arguments that no element fills, from the head of a compiled module; 0 where layouts have no
    tiles."""
    return sum(_held(*found) - arrays(found[0])[0].bytes for found in _LAYOUT.findall(_arguments(text)))


def _arguments(text: str) -> str:
    """The types of the entry's arguments, `entry_computation_layout={(HERE)->...}`."""
    head = text.partition("\n")[0].partition("entry_computation_layout={")[2]
    return head.partition(")->")[0]


def _held(array: str, minor_to_major: str, tile: str) -> int:
    (shape,) = arrays(array)
    sizes = [shape.dims[dim] for dim in _numbers(minor_to_major)]
    tiles = _numbers(tile)[::-1]
    tiles += [1] * (len(sizes) - len(tiles))
    sizes += [1] * (len(tiles) - len(sizes))
    return prod(-(-size // step) * step for size, step in zip(sizes, tiles, strict=True)) * bits(shape.dtype) // 8


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
