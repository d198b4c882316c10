"""Sizes that nobody looked at before: a decoder's shape and choices, drawn for a mesh."""

from __future__ import annotations

from random import Random
from typing import Any

from lab.meshes.axes import TENSOR, Axes
from lab.programs.models.shape import REMATS, DecoderShape

COARSE, FINE = {"length": 128, "embed": 64, "head_dim": 32, "mlp": 64, "vocab": 64}, {"head_dim": 2}
"""What sizes are multiples of beside what their axes ask for: about those of real models, and what fills no tile."""
LARGEST_LENGTH = 2048


def drawn(draw: Random, axes: Axes) -> DecoderShape:
    """In bf16; every dim splits over what a layout may split it over, and no two sizes are equal, so that a payload
    tells what it is of."""
    accumulation, remat, is_tied = draw.choice((1, 2, 4)), draw.choice(REMATS), draw.random() < 0.3
    while True:
        sizes: dict[str, Any] = _sizes(draw, axes, accumulation, draw.choice((COARSE, FINE)))
        if len(set(sizes.values())) == len(sizes):
            return DecoderShape(**sizes, accumulation=accumulation, remat=remat, tied=is_tied)


def _sizes(draw: Random, axes: Axes, micro_batches: int, grain: dict[str, int]) -> dict[str, int]:
    tensor = axes.shape.get(TENSOR, 1)
    ranks = axes.size // tensor
    unit = {
        "batch": ranks * micro_batches,
        "length": tensor,
        "embed": ranks,
        "kv_heads": tensor,
        "mlp": tensor,
        "vocab": tensor,
    }
    limits = {
        "layers": (2, 5),
        "batch": (1, 3),
        "length": (2, 5),
        "embed": (1, 6),
        "kv_heads": (1, 3),
        "queries": (1, 2),
        "head_dim": (1, 4),
        "mlp": (3, 30),
        "vocab": (31, 60),
    }
    sizes = {name: unit.get(name, 1) * grain.get(name, 1) * draw.randint(*limit) for name, limit in limits.items()}
    return sizes | {"length": min(sizes["length"], LARGEST_LENGTH)}
