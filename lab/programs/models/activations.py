"""What stands between an MLP's matrices: SwiGLU (Shazeer 2020), or without a gate the squared ReLU (So et al. 2021) or
the GELU by its tanh (Hendrycks & Gimpel 2016)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

scope = jax.named_scope


def hidden(product: Callable[[str], jax.Array], activation: str) -> jax.Array:
    """What the down projection reads.

    Args:
      product: of the input with the matrix of this name, "gate" or "up".
      activation: one of `ACTIVATIONS`.
    """
    if activation == "swiglu":
        with scope("gate"):
            gate = jax.nn.silu(product("gate"))
        with scope("up"):
            return gate * product("up")
    with scope("up"):
        up = product("up")
        return jnp.square(jax.nn.relu(up)) if activation == "relu2" else jax.nn.gelu(up, approximate=True)
