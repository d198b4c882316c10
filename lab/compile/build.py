"""What gives a program of the lab's own. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.stages import Wrapped

Built = tuple["Wrapped", tuple[Any, ...]]
"""A jitted function, and its arguments as shapes with shardings."""
Build = Callable[[str, Any, "Mesh"], Built]
"""(style, parameters, mesh) to a program."""
