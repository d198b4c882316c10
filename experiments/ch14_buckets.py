"""Chapter 14: how many messages does a bucketed gradient take, and how many after the compiler combines them?"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.overlap import buckets_needed
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import FLOAT_BYTES, Array, Part, Sent, experiment, moved
from lab.meshes.axes import DATA, Axes

BUCKET_LAYERS = 4


@dataclass(frozen=True)
class Sizes:
    """Layers, and parameters of one."""

    layers: int = 10
    parameters: int = 65_536

    @property
    def buckets(self) -> list[int]:
        """Layers of each."""
        return [min(BUCKET_LAYERS, self.layers - start) for start in range(0, self.layers, BUCKET_LAYERS)]


def takes(sizes: Sizes, axes: Axes) -> tuple[Array]:
    """The layers' gradients of each rank."""
    return (Array((axes.size, sizes.layers, sizes.parameters), P(DATA)),)


def in_buckets(g_1LN: jax.Array) -> jax.Array:
    """Each waits for the one before."""
    reduced: list[jax.Array] = []
    for start in range(0, g_1LN.shape[1], BUCKET_LAYERS):
        # What passes a barrier with a rank's own counts as its own.
        own, *reduced = jax.lax.optimization_barrier((g_1LN[0, start : start + BUCKET_LAYERS], *reduced))
        reduced.append(jax.lax.pcast(jax.lax.psum(own, DATA), DATA, to="varying"))
    return jnp.concatenate(reduced)[None]


def layer_by_layer(g_1LN: jax.Array) -> jax.Array:
    return jnp.stack([jax.lax.psum(g_N, DATA) for g_N in g_1LN[0]])


def sum_of_ranks(g_PLN: jax.Array) -> jax.Array:
    return jnp.sum(g_PLN, 0)


def on_every_rank(g_PLN: jax.Array) -> jax.Array:
    return jnp.broadcast_to(sum_of_ranks(g_PLN), g_PLN.shape)


def a_sum_a_bucket(sizes: Sizes, axes: Axes) -> tuple[Sent, ...]:
    return tuple(Sent(Kind.ALL_REDUCE, (DATA,), layers * sizes.parameters) for layers in sizes.buckets)


def a_sum_a_layer(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_REDUCE, (DATA,), sizes.parameters, executions=sizes.layers),)


IN_BUCKETS, BY_LAYER = "buckets", "layers"
PARTS = (
    Part(IN_BUCKETS, takes, in_buckets, P(DATA), on_every_rank, a_sum_a_bucket),
    Part(BY_LAYER, takes, layer_by_layer, P(), sum_of_ranks, a_sum_a_layer),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size == 1:
        return ()
    in_buckets, by_layer, layer = moved(measured, IN_BUCKETS), moved(measured, BY_LAYER), sizes.parameters * FLOAT_BYTES
    needed = int(buckets_needed(sizes.layers * layer, BUCKET_LAYERS * layer))
    cut = decided(
        "ch14.bucket_size",
        in_buckets.executions == needed and in_buckets.payload_bytes == by_layer.payload_bytes,
        f"{in_buckets.executions} messages of up to {counted(BUCKET_LAYERS * layer)} B, "
        f"{counted(in_buckets.payload_bytes)} B in all; "
        f"ceil(bytes/bucket) is {needed}, and layer by layer {counted(by_layer.payload_bytes)} B",
        statement="ceil(bytes/bucket) messages, and the same bytes whatever the bucket",
    )
    unasked = f"{sizes.layers} reductions of {counted(layer)} B that need not wait become {by_layer.executions}"
    # On CPUs, parts of an experiment are kept apart by turning this off.
    is_combining = not (measured.target or "cpu").startswith("cpu")
    return (
        (cut, calculated("ch14.bucket_size", unasked, statement="compilers have buckets of their own"))
        if is_combining
        else (cut,)
    )


EXPERIMENT = experiment(
    name="ch14_buckets",
    chapter=14,
    question="How many messages does a bucketed gradient take, and how many after the compiler combines them?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(parameters=24),
    axes=on_one_axis(DATA),
    claims=claims,
)
