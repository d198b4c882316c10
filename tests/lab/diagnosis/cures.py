"""What the examples of `lab explain` could be instead, written by hand, and programs of the same kinds whose remedies the
examples cannot show: referees of what the lab says to have tried."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.diagnosis.examples import (
    batch_made_whole,
    held_whole,
    not_donated,
    on_slow_link,
    reduced_for_nothing,
    repeated_in_loop,
)
from lab.diagnosis.examples import given_back_whole as given
from lab.diagnosis.examples import heads_split_apart as heads
from tests.cases.compiling import array, pinned

Built = tuple[Any, tuple[Any, ...]]


def named(mesh: Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def fft(mesh: Mesh) -> Built:
    each = jax.shard_map(jnp.fft.fft, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    return jax.jit(each), (array(mesh, (64, 256), "data", dtype=jnp.complex64),)


def random_numbers(mesh: Mesh) -> Built:
    draw = jax.jit(lambda key: jax.random.normal(key, (512, 256)), out_shardings=named(mesh, "data"))
    return draw, (jax.ShapeDtypeStruct((2,), jnp.uint32),)


def update(mesh: Mesh) -> Built:
    written = jax.jit(lambda x, u: x.at[jnp.arange(3)].set(u), out_shardings=named(mesh, "data"))
    return written, (array(mesh, (64, 256), "data"), jax.ShapeDtypeStruct((3, 256), jnp.float32))


def look_up(mesh: Mesh) -> Built:
    rows = jax.jit(lambda table, tokens: table[tokens], out_shardings=named(mesh, "data"))
    return rows, (array(mesh, (4096, 64), "data"), array(mesh, (64,), "data", dtype=jnp.int32))


def kept_split(mesh: Mesh) -> Built:
    def hidden(table, up, down, tokens):
        x = pinned(mesh, table[tokens], "data")
        return x + jax.nn.relu(x @ up) @ down

    return jax.jit(hidden), batch_made_whole.build(mesh)[1]


def before_the_loop(mesh: Mesh) -> Built:
    def gradient(chunks, table):
        return jax.grad(repeated_in_loop.loss)(chunks, pinned(mesh, table))

    _, args = repeated_in_loop.build(mesh)
    return jax.jit(gradient, out_shardings=named(mesh, None, "data")), args


def gathered_once(mesh: Mesh) -> Built:
    def product(x):
        whole = pinned(mesh, x)
        return jnp.tanh(whole @ whole.T) @ whole

    return jax.jit(product, out_shardings=named(mesh, "data")), (array(mesh, (256, 512), "data"),)


def summed_once(mesh: Mesh) -> Built:
    def gradient(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    return jax.jit(mapped), (array(mesh, (64, 64)), array(mesh, (256, 64), "data"))


def checked(mesh: Mesh) -> Built:
    layer = jax.shard_map(lambda w, x: jnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    return jax.jit(jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2))), reduced_for_nothing.build(mesh)[1]


def all_gather(mesh: Mesh) -> Built:
    gather = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "data", tiled=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    return jax.jit(gather), (array(mesh, (1024, 256), "data"),)


def psum_scatter(mesh: Mesh) -> Built:
    scatter = jax.shard_map(
        lambda x: jax.lax.psum_scatter(x, "data", tiled=True), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    return jax.jit(scatter), (array(mesh, (512, 64), "data"),)


def given_back_split(mesh: Mesh) -> Built:
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ pinned(mesh, w)) ** 2)

    return jax.jit(jax.grad(loss), out_shardings=named(mesh, "data")), given.build(mesh)[1]


def along_heads(mesh: Mesh) -> Built:
    product = jax.jit(lambda q, w: jnp.einsum("bhd,rhd->bhr", q, w))
    return product, (array(mesh, (64, 16, 128), None, "model"), array(mesh, (512, 16, 128), None, "model"))


def unconstrained(mesh: Mesh) -> Built:
    U = P.UNCONSTRAINED
    step = jax.jit(
        lambda x: jnp.sin(pinned(mesh, jnp.cos(x), U, U, "tensor")), out_shardings=named(mesh, "data", None, "tensor")
    )
    return step, (array(mesh, (16, 64, 128), "data", None, "tensor"),)


def in_two_steps(mesh: Mesh) -> Built:
    after = (None, ("data", "tensor"), None)

    def add(a, b):
        return b + pinned(mesh, pinned(mesh, jnp.sin(a), "tensor", "data", None), *after)

    args = array(mesh, (16, 32, 64), "tensor", None, "data"), array(mesh, (16, 32, 64), *after)
    return jax.jit(add, out_shardings=named(mesh, *after)), args


def small_side_split(mesh: Mesh) -> Built:
    product = jax.jit(lambda x, w: pinned(mesh, x, None, "tensor") @ w, out_shardings=named(mesh, "tensor"))
    return product, (array(mesh, (64, 1024), "tensor"), array(mesh, (1024, 1024), "tensor"))


def whole_heads(mesh: Mesh) -> Built:
    x, wq, wk = heads.build(mesh)[1]
    return jax.jit(heads.scores), (x, wq, array(mesh, wk.shape))


def in_one_order(mesh: Mesh) -> Built:
    order = ("data", "fsdp")
    return jax.jit(lambda x: 2 * x, out_shardings=named(mesh, order)), (array(mesh, (64, 64), order),)


def another_dim(mesh: Mesh) -> Built:
    return jax.jit(lambda x: jnp.sin(pinned(mesh, x, None, "data")), out_shardings=named(mesh)), (
        array(mesh, (10, 64)),
    )


def dequantised_after(mesh: Mesh) -> Built:
    rows = P("fsdp", None)

    def gathered(q: jax.Array, scale: jax.Array) -> jax.Array:
        whole, scales = (jax.lax.all_gather(x, "fsdp", tiled=True) for x in (q, scale))
        return whole.astype(jnp.bfloat16) * scales

    args = (
        array(mesh, (1024, 1024), "fsdp", None, dtype=jnp.int8),
        array(mesh, (1024, 1), "fsdp", None, dtype=jnp.bfloat16),
    )
    return jax.shard_map(gathered, mesh=mesh, in_specs=(rows, rows), out_specs=P(), check_vma=False), args


def cast_first(mesh: Mesh) -> Built:
    def product(w, x):
        cast = pinned(mesh, (w.astype(jnp.float32) * 16).astype(jnp.float8_e4m3fn), "fsdp", None)
        return x @ pinned(mesh, cast, None, None).astype(jnp.bfloat16)

    args = (array(mesh, shape, "fsdp", None, dtype=jnp.bfloat16) for shape in ((1024, 1024), (4096, 1024)))
    return jax.jit(product), tuple(args)


def moments_split(mesh: Mesh) -> Built:
    return jax.jit(held_whole.moments, out_shardings=named(mesh, "fsdp")), held_whole.build(mesh)[1]


def given_up(mesh: Mesh) -> Built:
    return jax.jit(not_donated.step, out_shardings=named(mesh, "fsdp"), donate_argnums=(0, 1)), not_donated.build(mesh)[
        1
    ]


def rows_split(mesh: Mesh) -> Built:
    return jax.jit(jnp.matmul, out_shardings=named(mesh, "data")), (
        array(mesh, (4096, 512), "data"),
        array(mesh, (512, 512)),
    )


def neighbours(mesh: Mesh) -> Built:
    total = jax.jit(lambda x: jnp.sum(x, axis=1), out_shardings=named(mesh))
    return total, (array(mesh, (256, 4096), None, "tensor"),)


CURES: dict[str, Callable[[Mesh], Built]] = {
    "unsplit_operation": fft,
    "random_numbers_moved": random_numbers,
    "gathered_for_slice": update,
    "table_gathered": look_up,
    "batch_made_whole": kept_split,
    "repeated_in_loop": before_the_loop,
    "gathered_twice": gathered_once,
    "reduced_twice": summed_once,
    "reduced_for_nothing": checked,
    "summed_to_gather": all_gather,
    "not_scattered": psum_scatter,
    "given_back_whole": given_back_split,
    "batch_dim_gathered": along_heads,
    "constraint_undone": unconstrained,
    "rebuilt_whole": in_two_steps,
    "larger_side_gathered": small_side_split,
    "heads_split_apart": whole_heads,
    "axis_order": in_one_order,
    "padded": another_dim,
    "narrowed_after": cast_first,
    "dequantised_before": dequantised_after,
    "held_whole": moments_split,
    "not_donated": given_up,
    "computed_redundantly": rows_split,
    "on_slow_link": on_slow_link.build,
    "not_neighbours": neighbours,
}
ORDERS = {"on_slow_link": "data=8,tensor=2"}
"""Meshes of the cures, where these are another order of axes."""


# Programs with a finding that its example has in a way that no remedy pays for, and their cures.
TABLE = np.arange(512 * 512, dtype=np.float32).reshape(512, 512)


def closing_over(mesh: Mesh) -> Built:
    return jax.jit(lambda x: x + TABLE, out_shardings=named(mesh, "data")), (array(mesh, (512, 512), "data"),)


def passing(mesh: Mesh) -> Built:
    both = array(mesh, (512, 512), "data")
    return jax.jit(lambda x, table: x + table, out_shardings=named(mesh, "data")), (both, both)


def donated(mesh: Mesh, *out: Any) -> Built:
    state, gradient = array(mesh, (1024, 64), "data"), array(mesh, (1024, 64), "data")
    update = jax.jit(lambda s, g: s - g, out_shardings=named(mesh, *out), donate_argnums=0)
    return update, (state, gradient)


def logits(mesh: Mesh, **options: Any) -> Built:
    rows = named(mesh, "data")
    return jax.jit(lambda x: x * 2, out_shardings=rows, **options), (array(mesh, (1 << 20, 1 << 16), "data"),)


def scaled(mesh: Mesh, *spec: str) -> Built:
    def loss(scale_D, w_DF, v_FD, x_BTD):
        h_BTF = jnp.tanh((x_BTD * scale_D) @ w_DF)
        return jnp.sum((h_BTF @ v_FD) ** 2)

    args = (
        array(mesh, (128,), *spec),
        array(mesh, (128, 512), None, "tensor"),
        array(mesh, (512, 128), "tensor"),
        array(mesh, (8, 64, 128), "data"),
    )
    return jax.jit(loss), args


def added(mesh: Mesh, *order: str) -> Built:
    other = array(mesh, (64, 64), ("fsdp", "data"))
    return jax.jit(lambda a, b: jnp.sin(a) + b, out_shardings=other.sharding), (array(mesh, (64, 64), order), other)


OTHERS: dict[str, tuple[str, str, Callable[[Mesh], Built], Callable[[Mesh], Built]]] = {
    "array_constant": ("cpu:8", "data=8", closing_over, passing),
    "donation_unused": ("cpu:8", "data=8", donated, lambda mesh: donated(mesh, "data")),
    "out_of_memory": ("gpu:h100:1x8", "data=8", logits, lambda mesh: logits(mesh, donate_argnums=0)),
    "axis_order": (
        "cpu:8",
        "data=4,fsdp=2",
        lambda mesh: added(mesh, "data", "fsdp"),
        lambda mesh: added(mesh, "fsdp", "data"),
    ),
    "cut_for_small": ("cpu:8", "data=2,tensor=4", lambda mesh: scaled(mesh, "tensor"), scaled),
}
"""Target, mesh, program and cure."""
