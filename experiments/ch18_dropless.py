"""Chapter 18: what does a ragged all-to-all send, and what does a padded one?

CPUs have no ragged all-to-all: there the padded one stands in, `--set ragged=false`.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.book.experts import buffer_bytes
from lab.compile.build import Built
from lab.core.ledger import Kind, Ledger, Phase
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted, in_scope
from lab.harness.experiment import Experiment, on_one_axis
from lab.harness.small_programs import (
    FLOAT_BYTES,
    Array,
    Part,
    Sent,
    on_one_device,
    predict,
    program,
    with_pullback,
)
from lab.meshes.axes import EXPERT, Axes
from lab.meshes.errors import UsageError
from lab.programs.models import dropless, routers
from lab.programs.models.shape import indexable

RAGGED, PADDED = "ragged", "padded"
TOP_K = 2


@dataclass(frozen=True)
class Sizes:
    """Tokens of a rank, width, and experts of a rank; whether a ragged all-to-all is compiled beside the padded one."""

    tokens: int = 128
    embed: int = 256
    experts: int = 2
    ragged: bool = True


def takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    """Tokens, the logits of their router, a matrix for each expert, and what comes back to the tokens."""
    T, E = s.tokens * axes.size, s.experts * axes.size
    tokens = Array((T, s.embed), P(EXPERT))
    return tokens, Array((T, E), P(EXPERT)), Array((E, s.embed, s.embed), P(EXPERT)), tokens


def layer(move: dropless.Move, x_TD: jax.Array, logits_TE: jax.Array, w_eDD: jax.Array) -> jax.Array:
    """An expert is one matrix."""
    routes = routers.routes(routers.softmax_gates(3 * logits_TE), TOP_K)
    visit = partial(
        dropless.over_ranks, own=lambda y_RD, count_e: jax.lax.ragged_dot(y_RD, w_eDD, count_e), axis=EXPERT, move=move
    )
    return dropless.mixture(x_TD, routes.expert_Tk, routes.weight_Tk, logits_TE.shape[-1], visit)


def dense(x_TD: jax.Array, logits_TE: jax.Array, w_EDD: jax.Array) -> jax.Array:
    """Every expert on every token."""
    gates_TE = jax.nn.softmax(3 * logits_TE)
    share_TE = jnp.where(gates_TE >= jnp.sort(gates_TE)[:, -TOP_K, None], gates_TE, 0)
    return jnp.einsum("te,td,edf->tf", share_TE / share_TE.sum(-1, keepdims=True), x_TD, w_EDD)


def exchanges(kind: Kind, s: Sizes, axes: Axes) -> tuple[Sent, ...]:
    """Counts; tokens there and gradients of results, and results back and gradients of tokens: k T D each at most, and
    as much as every rank has room for, P times that, where all parts are padded."""
    ranks, copies = axes.size, TOP_K * s.tokens * s.embed
    own = copies if kind is Kind.RAGGED_ALL_TO_ALL else ranks * copies
    counts = Sent(Kind.ALL_TO_ALL, (EXPERT,), (s.experts + 1) * ranks, dtype="s32")
    return counts, *(
        Sent(kind, (EXPERT,), elements, phase=phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        for elements in (own, own)
    )


def part(scope: str, move: dropless.Move, kind: Kind) -> Part:
    return Part(
        scope,
        takes,
        with_pullback(partial(layer, move)),
        (P(EXPERT),) * 4,
        with_pullback(dense),
        partial(exchanges, kind),
    )


PARTS = part(PADDED, dropless.padded, Kind.ALL_TO_ALL), part(RAGGED, dropless.ragged, Kind.RAGGED_ALL_TO_ALL)


def parts(s: Sizes) -> tuple[Part, ...]:
    return PARTS if s.ragged else PARTS[:1]


def build(style: str, s: Sizes, mesh: Mesh) -> Built:
    """Raises UsageError for a ragged all-to-all on CPUs, and for sizes beyond int32: a rank has room for the copies of
    all ranks' tokens."""
    ranks = mesh.size
    indexable(
        embed=s.embed,
        **{f"tokens * {TOP_K} * {ranks}": s.tokens * TOP_K * ranks, f"experts * {ranks}": s.experts * ranks},
    )
    if s.ragged and mesh.devices.flat[0].platform == "cpu":
        raise UsageError(
            "ragged=True on CPUs, which have no ragged all-to-all; compile for a GPU or TPU, or --set ragged=false "
            "for the padded one only"
        )
    return program(parts(s), s, mesh)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Of the buffers: how much of them moves depends on the tokens."""
    sizes = {
        scope: sorted({t.payload_bytes for t in in_scope(measured, scope) if t.dtype == "f32"})
        for scope in (RAGGED, PADDED)
    }
    if axes.size == 1 or not sizes[RAGGED]:
        return ()
    n, ranks = int(buffer_bytes(s.tokens, s.embed, FLOAT_BYTES, TOP_K)), axes.size
    told = {t.payload_bytes for t in in_scope(measured, RAGGED) if t.dtype == "s32"}
    evidence = f"a ragged all-to-all takes at most {' or '.join(map(counted, sizes[RAGGED]))} B each way"
    padding = f"the padded one takes {' and '.join(map(counted, sizes[PADDED]))} B each way"
    return (
        decided(
            "A39",
            sizes[RAGGED] == [n],
            f"{evidence}; k T H e is {counted(n)} B, and {ranks} times that for the rank that every token wants",
        ),
        decided(
            "A39",
            sizes[PADDED] == [ranks * n],
            f"{padding}, {ranks} times k T H e",
            statement="without a ragged all-to-all the worst case is sent",
        ),
        decided(
            "A39",
            told == {4 * ranks * (s.experts + 1)},
            f"{' and '.join(map(counted, told))} B of counts, one per expert and rank",
            statement="counts go first",
        ),
    )


EXPERIMENT = Experiment(
    name="ch18_dropless",
    chapter=18,
    question="What does a ragged all-to-all send, and what does a padded one?",
    parameters=Sizes(),
    numeric_parameters=Sizes(tokens=12, embed=8, ragged=False),
    axes=on_one_axis(EXPERT),
    build=build,
    predict=lambda sizes, axes: predict(parts(sizes), sizes, axes),
    claims=claims,
    reference=lambda sizes: partial(on_one_device, parts(sizes)),
    targets=("gpu:h100:2x4", "tpu:v5e:2x4"),
    styles=("explicit",),
)
