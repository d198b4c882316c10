"""The primitives on one device: on the stacked buffers of all ranks, [P, N] to [P, ...], the root first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from lab.harness.collectives.kernels import Kernel


def on_one_device(kernels: Iterable[Kernel], xs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {kernel.scope: _STACKED[kernel.primitive](xs[kernel.scope]) for kernel in kernels if kernel.scope in xs}


def _everywhere(x_N: jax.Array, like_PN: jax.Array) -> jax.Array:
    return jnp.broadcast_to(x_N, (like_PN.shape[0], *x_N.shape))


def _on_first(x_N: jax.Array, like_PN: jax.Array) -> jax.Array:
    return jnp.zeros((like_PN.shape[0], *x_N.shape), x_N.dtype).at[0].set(x_N)


def _transposed(x_PN: jax.Array) -> jax.Array:
    P = x_PN.shape[0]
    return x_PN.reshape(P, P, -1).swapaxes(0, 1).reshape(x_PN.shape)


_STACKED: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_reduce": lambda x_PN: _everywhere(x_PN.sum(0), x_PN),
    "reduce_scatter": lambda x_PN: x_PN.sum(0).reshape(x_PN.shape[0], -1),
    "all_gather": lambda x_PC: _everywhere(x_PC.reshape(-1), x_PC),
    "reduce": lambda x_PN: _on_first(x_PN.sum(0), x_PN),
    "broadcast": lambda x_PN: _everywhere(x_PN[0], x_PN),
    "scatter": lambda x_PN: x_PN[0].reshape(x_PN.shape[0], -1),
    "gather": lambda x_PC: _on_first(x_PC.reshape(-1), x_PC),
    "all_to_all": _transposed,
    "permute": lambda x_PN: jnp.roll(x_PN, 1, axis=0),
}
