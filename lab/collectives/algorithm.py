"""An algorithm: a kernel, and beside it the statement of what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from lab.collectives.cost import Cost
from lab.collectives.wires import Axis, Op, block_size, join, split
from lab.meshes.axes import Axes


def any_axes(axes: Axes) -> None:
    """Serves every axis."""


def power_of_two(axes: Axes) -> str | None:
    return None if axes.size & (axes.size - 1) == 0 else f"{axes.size} ranks, expected a power of two"


def several_axes(axes: Axes) -> str | None:
    return None if len(axes.names) > 1 else f"the one axis {axes}, expected two or more, outermost first"


def one_by_one(axes: Axes) -> int:
    """P - 1: the most that a sum of P terms can take in a row, whatever its order."""
    return axes.size - 1


def rounds_down(axes: Axes) -> int:
    """floor(log2 P)."""
    return axes.size.bit_length() - 1


def rounds_up(axes: Axes) -> int:
    """ceil(log2 P)."""
    return (axes.size - 1).bit_length()


@dataclass(frozen=True)
class Algorithm:
    """One way to do a primitive.

    Attributes:
      primitive: that it does.
      run: the kernel: one array, the axis, and the arguments of the primitive (`op`, `root`) by name.
      cost: (axes, elements) to its rounds; `elements` is the n of the book: of the result of an all_gather, else of
        what enters.
      elementwise: whether `op` meets parts of a flattened array, and so must act element by element.
      misfit: what is wrong with these axes, None where they serve.
      additions: of a reduction, through how many applications of `op` in a row a term may go. A sum of floats errs by
        no more than additions * eps * sum |x| (Higham 2002, section 4.2).
      buffers, blocks: how many whole buffers, and blocks of one P-th, the compiled program holds at most, beside
        argument and result.
    """

    primitive: str
    run: Callable[..., jax.Array]
    cost: Callable[..., Cost]
    elementwise: bool = True
    misfit: Callable[[Axes], str | None] = any_axes
    additions: Callable[[Axes], int] = one_by_one
    buffers: int = 1
    blocks: int = 1

    def workspace_elements(self, axes: Axes, elements: int) -> int:
        """What `buffers` and `blocks` come to for n = `elements`, padded."""
        block = block_size(elements, axes.size)
        return (self.buffers * axes.size + self.blocks) * block


def all_reduce_by_blocks(reduce_scatter: Algorithm, all_gather: Algorithm) -> Algorithm:
    """AR = AG o RS (Ch. 11, `ch11.decomposition`), on the flattened array, padded to a multiple of the axis size."""

    def run(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
        x_PC = split(x.reshape(-1), jax.lax.axis_size(axis))
        return join(all_gather.run(reduce_scatter.run(x_PC, axis, op=op), axis), x.size).reshape(x.shape)

    def cost(axes: Axes, elements: int) -> Cost:
        return reduce_scatter.cost(axes, elements) + all_gather.cost(axes, elements)

    return Algorithm("all_reduce", run, cost, misfit=reduce_scatter.misfit, additions=reduce_scatter.additions)
