"""The examples of `lab explain` whose advice takes an edit, as they are after it: written by hand, referees of what the
lab calculates for it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.diagnosis.examples import (
    collected_anew,
    donation_unused,
    kept_whole,
    last_message_unused,
    permuted_by_gather,
    reduced_in_loop,
    summed_across_calls,
    summed_apart,
    summed_before_product,
    summed_every_round,
)
from tests.cases.compiling import array
from tests.lab.diagnosis.cures import Built, named


def over_data(mesh: Mesh, function: Callable, into: tuple, out: P) -> Callable:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=into, out_specs=out))


def reduced_once(mesh: Mesh) -> Built:
    def accumulated(w, micro_batches):
        own = jax.lax.pcast(w, "data", to="varying")
        grad = jax.grad(reduced_in_loop.loss)
        total, _ = jax.lax.scan(lambda t, x: (t + grad(own, x), None), jnp.zeros_like(own), micro_batches)
        return jax.lax.psum(total, "data")

    return over_data(mesh, accumulated, (P(), P(None, "data")), P()), reduced_in_loop.build(mesh)[1]


def both_uses_summed_once(mesh: Mesh) -> Built:
    def gradient(table, tokens, target):
        def loss(table):
            return jnp.sum((jnp.tanh(table[tokens]) @ table.T - target) ** 2)

        return jax.lax.psum(jax.grad(loss)(jax.lax.pcast(table, "data", to="varying")), "data")

    return over_data(mesh, gradient, (P(), P("data"), P("data")), P()), summed_apart.build(mesh)[1]


def summed_after_product(mesh: Mesh) -> Built:
    def scores(query, pages, table):
        at = table - jax.lax.axis_index("data") * len(pages)
        is_own = (at >= 0) & (at < len(pages))
        own = jnp.where(is_own[:, None, None], pages[jnp.clip(at, 0, len(pages) - 1)], 0)
        return jax.lax.psum(jnp.einsum("d,npd->np", query, own), "data")

    return over_data(mesh, scores, (P(), P("data"), P()), P()), summed_before_product.build(mesh)[1]


def one_message_less(mesh: Mesh) -> Built:
    ring = [(i, (i + 1) % mesh.size) for i in range(mesh.size)]

    def products(q, k):
        def step(_, carried):
            total, k = carried
            return total + jnp.tanh(q @ k.T) @ k, jax.lax.ppermute(k, "data", ring)

        total, k = jax.lax.fori_loop(0, mesh.size - 1, step, (jnp.zeros_like(q), k))
        return total + jnp.tanh(q @ k.T) @ k

    return over_data(mesh, products, (P("data"), P("data")), P("data")), last_message_unused.build(mesh)[1]


def gathered_before(mesh: Mesh) -> Built:
    def orthogonal(x):
        whole = jax.lax.all_gather(x, "data", axis=1, tiled=True)
        whole = jax.lax.fori_loop(0, 10, lambda _, x: 1.5 * x - 0.5 * (x @ x.T) @ x, whole)
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index("data") * x.shape[1], x.shape[1], 1)

    return over_data(mesh, orthogonal, (P(None, "data"),), P(None, "data")), summed_every_round.build(mesh)[1]


def each_its_own_sum(mesh: Mesh) -> Built:
    def add(total, w, x):
        own = jax.lax.pcast(w, "data", to="varying")
        return total + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(own)[None]

    mapped = jax.shard_map(add, mesh=mesh, in_specs=(P("data"), P(), P("data")), out_specs=P("data"))
    _, (total, w, x) = summed_across_calls.build(mesh)
    return jax.jit(mapped, donate_argnums=0), (array(mesh, (mesh.size, *total.shape), "data"), w, x)


def rematerialized(mesh: Mesh) -> Built:
    def loss(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w)
        return jnp.sum(x**2)

    return jax.jit(jax.grad(loss), out_shardings=named(mesh, "fsdp")), kept_whole.build(mesh)[1]


def parts_of_their_own(mesh: Mesh) -> Built:
    def gated(x, w):
        h = jnp.einsum("bd,dpf->bpf", x, w)
        return jax.nn.silu(h[:, 0]) * h[:, 1]

    args = array(mesh, (64, 256)), array(mesh, (256, 2, 256), None, None, "tensor")
    return jax.jit(gated, out_shardings=named(mesh, None, "tensor")), args


def rows_of_other_devices() -> float:
    """Bytes that a device of the permuted example lacks, in the mean."""
    owner = permuted_by_gather.ORDER // 128
    return float(np.sum(owner != np.arange(1024) // 128)) * 256 * 4 / 8


def in_one_dtype(mesh: Mesh) -> Built:
    return jax.jit(lambda state, gradient: state - gradient, donate_argnums=0), donation_unused.build(mesh)[1]


def carried(mesh: Mesh) -> Built:
    def step(x, cache, at):
        def layer(state, number):
            x, cache = state
            cache = jax.lax.dynamic_update_slice(cache, x[None, None], (number, at, 0, 0))
            scores = jax.nn.softmax(jnp.einsum("hd,shd->hs", x, cache[number]))
            return (jnp.einsum("hs,shd->hd", scores, cache[number]), cache), None

        return jax.lax.scan(layer, (x, cache), jnp.arange(len(cache)))[0]

    out = named(mesh, "tensor"), named(mesh, None, None, "tensor")
    return jax.jit(step, out_shardings=out, donate_argnums=1), collected_anew.build(mesh)[1]


EDITS: dict[str, Callable[[Mesh], Built]] = {
    "reduced_in_loop": reduced_once,
    "summed_apart": both_uses_summed_once,
    "summed_before_product": summed_after_product,
    "last_message_unused": one_message_less,
    "summed_every_round": gathered_before,
    "summed_across_calls": each_its_own_sum,
    "kept_whole": rematerialized,
    "moved_to_reshape": parts_of_their_own,
    "donation_unused": in_one_dtype,
    "collected_anew": carried,
}
