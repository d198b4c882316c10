"""Which keys a query sees, by positions in the whole sequence: those of a part of it, or in another order, are masked
alike."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lab.meshes.errors import UsageError


@dataclass(frozen=True)
class Mask:
    """
    Attributes:
      causal: a query sees no key after it.
      window: of those before it, the nearest so many, its own among them (Beltagy et al. 2020); 0 for all.

    Raises:
      UsageError: a window below zero, or one that is not causal.
    """

    causal: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        if self.window < 0 or (self.window and not self.causal):
            raise UsageError(
                f"window={self.window}, causal={self.causal}: expected 0 for all keys, or a size of a causal window"
            )

    def seen(self, q_at_S: jax.Array, k_at_T: jax.Array) -> jax.Array:
        """[S, T], of queries and keys at these positions."""
        is_before_ST = q_at_S[:, None] >= k_at_T
        is_near_ST = q_at_S[:, None] - k_at_T < self.window if self.window else True
        return is_before_ST & is_near_ST if self.causal else jnp.ones_like(is_before_ST)


CAUSAL = Mask()
