"""Chapter 14: does accumulating micro-batches give the gradient of the batch, and is it reduced once?"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from lab.book.data_parallel import accumulation_speedup, overlapped_backward_s
from lab.book.parallelism import dp_volume_bytes
from lab.core.ledger import Kind, Ledger, Provenance, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import FLOAT_BYTES, Array, Part, Sent, experiment, moved
from lab.meshes.axes import DATA, Axes


@dataclass(frozen=True)
class Sizes:
    """Micro-batches, tokens of one over all ranks, and the matrix that is learned."""

    micro_batches: int = 4
    tokens: int = 256
    embed: int = 512
    mlp: int = 1024

    @property
    def weights(self) -> int:
        return self.embed * self.mlp


def takes(sizes: Sizes, axes: Axes) -> tuple[Array, Array]:
    """Micro-batches of tokens, a rank's part of each, and the matrix."""
    return Array((sizes.micro_batches, sizes.tokens, sizes.embed), P(None, DATA)), Array((sizes.embed, sizes.mlp))


def gradient(x_TD: jax.Array, w_DF: jax.Array) -> jax.Array:
    """Of a sum over tokens."""
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x_TD @ w) ** 2))(w_DF)


def own(w_DF: jax.Array) -> jax.Array:
    return jax.lax.pcast(w_DF, DATA, to="varying")


def added_up(of_one: Callable[[jax.Array], jax.Array], x_ATD: jax.Array, nothing_DF: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda g, x_TD: (g + of_one(x_TD), None), nothing_DF, x_ATD)[0]


def reduced_once(x_ATD: jax.Array, w_DF: jax.Array) -> jax.Array:
    w = own(w_DF)
    return jax.lax.psum(added_up(lambda x: gradient(x, w), x_ATD, jnp.zeros_like(w)), DATA)


def reduced_every_time(x_ATD: jax.Array, w_DF: jax.Array) -> jax.Array:
    w = own(w_DF)
    return added_up(lambda x: jax.lax.psum(gradient(x, w), DATA), x_ATD, jnp.zeros_like(w_DF))


def of_the_batch(x_ATD: jax.Array, w_DF: jax.Array) -> jax.Array:
    return gradient(x_ATD.reshape(-1, x_ATD.shape[-1]), w_DF)


def one_sum(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    return (Sent(Kind.ALL_REDUCE, (DATA,), sizes.weights),)


def sum_of_each(sizes: Sizes, axes: Axes) -> tuple[Sent]:
    m = sizes.micro_batches
    return (Sent(Kind.ALL_REDUCE, (DATA,), sizes.weights, executions=m, provenance=Provenance(accumulated_in_loop=m)),)


ONCE, EVERY_TIME = "once", "every_time"
PARTS = (
    Part(ONCE, takes, reduced_once, P(), of_the_batch, one_sum),
    Part(EVERY_TIME, takes, reduced_every_time, P(), of_the_batch, sum_of_each),
)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size == 1:
        return ()
    once, every_time = (moved(measured, scope) for scope in (ONCE, EVERY_TIME))
    payload = sizes.weights * FLOAT_BYTES
    equal = decided(
        "ch14.accum_equivalence",
        once.payload_bytes == payload,
        f"{once.executions} reduction of {counted(once.payload_bytes)} B for {sizes.micro_batches} micro-batches; "
        f"Psi e is {counted(payload)} B",
    )
    return (
        equal,
        _saved(sizes, dp_volume_bytes(sizes.weights, FLOAT_BYTES, axes.size), once, every_time),
        _last_is_hidden(),
    )


def _saved(sizes: Sizes, book: Fraction, once: Totals, every_time: Totals) -> Claim:
    evidence = (
        f"reduced after every micro-batch {counted(every_time.wire_bytes)} B leave a rank, reduced once "
        f"{counted(once.wire_bytes)} B; 2(P-1)/P Psi e is {counted(book)} B"
    )
    statement = "one reduction instead of A"
    if every_time.wire_bytes == once.wire_bytes:
        return calculated(
            "ch14.accum_speedup",
            f"{evidence}: this compiler moves the reduction out of the loop itself (X10)",
            statement=statement,
        )
    return decided(
        "ch14.accum_speedup",
        (once.wire_bytes, every_time.wire_bytes) == (book, sizes.micro_batches * book),
        evidence,
        statement=statement,
    )


def _last_is_hidden() -> Claim:
    """The exercise: 4 micro-batches of 100 ms, of which two thirds are backward, and 40 ms to reduce, in 100 layers."""
    layers, micro_batches, compute_s, sync_s = 100, 4, 0.1, 0.04
    backward_s = compute_s * 2 / 3
    last = overlapped_backward_s([backward_s / layers] * layers, [sync_s / layers] * layers) - backward_s
    plain, gain = micro_batches * compute_s + sync_s, accumulation_speedup(micro_batches, compute_s, sync_s)
    return decided(
        "ch14.accum_speedup",
        last >= sync_s,
        f"the last micro-batch's {backward_s * 1e3:.1f} ms of backward pass leave {last * 1e3:.1f} of "
        f"{sync_s * 1e3:.0f} ms to wait for: "
        f"{(micro_batches * compute_s + last) * 1e3:.1f} ms, not {plain * 1e3:.0f}; nothing overlapped, it is "
        f"{gain:.2f} times as fast as {micro_batches} reductions",
        statement="the reduction after accumulation cannot be hidden",
        disputed="4-5:D-07",
    )


EXPERIMENT = experiment(
    name="ch14_accumulation",
    chapter=14,
    question="Does accumulating micro-batches give the gradient of the batch, and is it reduced once?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(micro_batches=3, tokens=16, embed=8, mlp=12),
    axes=on_one_axis(DATA),
    claims=claims,
)
