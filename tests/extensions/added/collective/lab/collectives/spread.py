"""All-gather in one step of P - 1 messages' length: every rank sends its block straight to every other."""

from __future__ import annotations

import jax

from lab.collectives.cost import Cost, permute, rounds
from lab.collectives.wires import Axis, everywhere, put, shift, shift_pairs
from lab.meshes.axes import Axes


def all_gather(x_C: jax.Array, axis: Axis) -> jax.Array:
    """[C] to [P, C]: the block of the rank `by` places back, for by = 1 to P - 1; no message waits for another.

    Cost: P - 1 steps; sends (P - 1) / P of the result.
    """
    rank, x_PC = jax.lax.axis_index(axis), everywhere(x_C, axis)
    for by in range(1, jax.lax.axis_size(axis)):
        x_PC = put(x_PC, shift(x_C, axis, by), rank - by)
    return x_PC


def all_gather_cost(axes: Axes, elements: int) -> Cost:
    P = axes.size
    return sum((rounds(permute(axes, shift_pairs(P, by), elements // P)) for by in range(1, P)), Cost())
