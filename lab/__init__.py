"""What a sharded program communicates: predicted by theory, read from the compiled program, settled to the byte. Imports no JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.ledger import Ledger

__all__ = ["inspect"]


def inspect(program: Any, *args: Any, mesh: Any = None, target: Any = None) -> Ledger:
    """The ledger of a compiled program; prints as a table in a terminal and in a notebook.

    Args:
      program: a plain or jitted function, a lowered or compiled one, or the path of a compiled text or of an XLA dump's folder.
      args: the function's arguments, as arrays or `jax.ShapeDtypeStruct`s with shardings.
      mesh: a `jax.sharding.Mesh` or `meshes.axes.Axes`; by default the mesh of the arguments' shardings.
      target: what it is compiled for, such as "gpu:h100:2x8": decides which transfers leave a host or a slice.
    Raises:
      meshes.errors.Unusable: the text cannot be read, or the mesh has another size than the program has devices.
    """
    from lab import inspection

    return inspection.inspect(program, *args, mesh=mesh, target=target)
