"""Types as XLA prints them: element types, dims, bytes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from lab.core.lazy import lazy

_ARRAY = re.compile(r"\b([a-z]\w*)\[([^\]]*)\]")
_DIGITS = 19
"""No size has more; in a damaged text one may have thousands."""
_BITS = re.compile(r"[a-z]+(\d+)")


@dataclass(frozen=True)
class Shape:
    """One array: element type and dims."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @lazy
    def bytes(self) -> int:
        """Size with 4-bit and 2-bit elements packed."""
        return -(-self.elements * bits(self.dtype) // 8)


@lru_cache(maxsize=1 << 14)
def arrays(text: str) -> tuple[Shape, ...]:
    """The arrays of a type, tuples flattened, layouts dropped: `(f32[2,3]{1,0}, bf16[4])` gives two."""
    found = (array.groups() for array in _ARRAY.finditer(text))
    return tuple(_shape(dtype, dims) for dtype, dims in found if dtype not in ("token", "opaque"))


@lru_cache(maxsize=1 << 14)
def shapes_of(types: tuple[str, ...]) -> tuple[Shape, ...]:
    """The arrays of several types."""
    return tuple(shape for one in types for shape in arrays(one))


@lru_cache(maxsize=1 << 14)
def _shape(dtype: str, dims: str) -> Shape:
    """One object for each: tuples of a text repeat them by thousands."""
    return Shape(dtype, _dims(dims))


@lru_cache(maxsize=256)
def bits(dtype: str) -> int:
    """Bits of one element; 0 for a type that carries none or is not known."""
    if dtype == "pred":
        return 8
    found = _BITS.match(dtype)
    return int(found[1][:_DIGITS]) if found else 0


def _dims(text: str) -> tuple[int, ...]:
    sizes = [dim.strip().lstrip("<=") for dim in text.split(",")]
    return tuple(int(size[:_DIGITS]) for size in sizes if size.isdecimal())
