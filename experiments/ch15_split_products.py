"""Chapter 15: where do column- and row-parallel matmuls communicate, and what must be placed where?"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from lab.book.parallelism import activation_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.experiment import on_one_axis
from lab.harness.small_programs import (
    FLOAT_BYTES,
    Array,
    Part,
    Sent,
    experiment,
    moved,
    with_pullback,
)
from lab.meshes.axes import TENSOR, Axes

HEADS = 16
FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
COLUMNS, ROWS = P(None, TENSOR), P(TENSOR, None)


@dataclass(frozen=True)
class Sizes:
    """Tokens of one sequence, and widths; `HEADS` heads split `embed`."""

    tokens: int = 128
    embed: int = 256
    mlp: int = 1024

    @property
    def activations(self) -> int:
        return self.tokens * self.embed


def summed(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, TENSOR)


def product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def mlp(x_TD: jax.Array, up_DF: jax.Array, down_FD: jax.Array) -> jax.Array:
    return jax.nn.gelu(x_TD @ up_DF) @ down_FD


def row_product(x_Tf: jax.Array, w_fD: jax.Array) -> jax.Array:
    return summed(x_Tf @ w_fD)


def split_mlp(x_TD: jax.Array, up_Df: jax.Array, down_fD: jax.Array) -> jax.Array:
    return summed(mlp(x_TD, up_Df, down_fD))


def biased_mlp(x_TD: jax.Array, up_DF: jax.Array, b_F: jax.Array, down_FD: jax.Array, b_D: jax.Array) -> jax.Array:
    return jax.nn.gelu(x_TD @ up_DF + b_F[0]) @ down_FD + b_D[0]


def split_biased_mlp(
    x_TD: jax.Array, up_Df: jax.Array, b_f: jax.Array, down_fD: jax.Array, b_D: jax.Array
) -> jax.Array:
    """The first bias with its columns, the second once, after the sum."""
    return summed(jax.nn.gelu(x_TD @ up_Df + b_f[0]) @ down_fD) + b_D[0]


def attention(x_TD: jax.Array, qkv_D3A: jax.Array, out_AD: jax.Array) -> jax.Array:
    """Causal, of the heads that the columns at hand make up."""
    T, D = x_TD.shape
    head_dim = D // HEADS
    q_TnH, k_TnH, v_TnH = (x.reshape(T, -1, head_dim) for x in jnp.einsum("td,dcn->ctn", x_TD, qkv_D3A))
    scores_nTT = jnp.where(jnp.tri(T, dtype=bool), jnp.einsum("tnh,snh->nts", q_TnH, k_TnH), -jnp.inf)
    return jnp.einsum("nts,snh->tnh", jax.nn.softmax(scores_nTT), v_TnH).reshape(T, -1) @ out_AD


def split_attention(x_TD: jax.Array, qkv_D3a: jax.Array, out_aD: jax.Array) -> jax.Array:
    return summed(attention(x_TD, qkv_D3a, out_aD))


def own_input_gradient(x_1TD: jax.Array, w_1Df: jax.Array, g_1Tf: jax.Array) -> jax.Array:
    """Each rank's, of an x that is its own: what code without the conjugate operator has."""
    return jax.vjp(lambda x_TD: x_TD @ w_1Df[0], x_1TD[0])[1](g_1Tf[0])[0][None]


def own_input_gradients(x_PTD: jax.Array, w_PDf: jax.Array, g_PTf: jax.Array) -> jax.Array:
    return jnp.einsum("ptf,pdf->ptd", g_PTf, w_PDf)


def column_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    return Array((s.tokens, s.embed)), Array((s.embed, s.mlp), COLUMNS), Array((s.tokens, s.mlp), COLUMNS)


def row_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    return Array((s.tokens, s.mlp), COLUMNS), Array((s.mlp, s.embed), ROWS), Array((s.tokens, s.embed))


def mlp_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    return (
        Array((s.tokens, s.embed)),
        Array((s.embed, s.mlp), COLUMNS),
        Array((s.mlp, s.embed), ROWS),
        Array((s.tokens, s.embed)),
    )


def biased_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    x, up, down, _ = mlp_takes(s, axes)
    return x, up, Array((1, s.mlp), COLUMNS), down, Array((1, s.embed))


def attention_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    """Queries, keys and values along a dim of their own, so that a rank's columns are [q_r | k_r | v_r]."""
    return (
        Array((s.tokens, s.embed)),
        Array((s.embed, 3, s.embed), P(None, None, TENSOR)),
        Array((s.embed, s.embed), ROWS),
    )


def own_takes(s: Sizes, axes: Axes) -> tuple[Array, ...]:
    ranks, over = axes[TENSOR], P(TENSOR)
    f = s.mlp // ranks
    return Array((ranks, s.tokens, s.embed), over), Array((ranks, s.embed, f), over), Array((ranks, s.tokens, f), over)


def sums(*phases: Phase | None) -> Callable[[Sizes, Axes], tuple[Sent, ...]]:
    return lambda s, axes: tuple(Sent(Kind.ALL_REDUCE, (TENSOR,), s.activations, phase=phase) for phase in phases)


PARTS = (
    Part(
        "column", column_takes, with_pullback(product), (COLUMNS, P(), COLUMNS), with_pullback(product), sums(BACKWARD)
    ),
    Part("row", row_takes, with_pullback(row_product), (P(), COLUMNS, ROWS), with_pullback(product), sums(FORWARD)),
    Part(
        "mlp",
        mlp_takes,
        with_pullback(split_mlp),
        (P(), P(), COLUMNS, ROWS),
        with_pullback(mlp),
        sums(FORWARD, BACKWARD),
    ),
    # What nobody differentiates lies in no pass.
    Part("bias", biased_takes, split_biased_mlp, P(), biased_mlp, sums(None)),
    Part("attention", attention_takes, split_attention, P(), attention, sums(None)),
    Part("no_conjugate", own_takes, own_input_gradient, P(TENSOR), own_input_gradients),
)


def claims(s: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    ranks = axes[TENSOR]
    if ranks == 1:
        return ()
    small = SmallProducts(ranks)
    return (*_sums(s, measured), _bias(small), _gelu(small), _fused(small), _conjugate(measured, small))


def _sums(s: Sizes, measured: Ledger) -> tuple[Claim, ...]:
    book = activation_bytes(s.tokens, s.embed, FLOAT_BYTES)

    def once(id: str, scope: str, phase: Phase) -> Claim:
        found, is_backward = (
            moved(measured, scope),
            {t.phase == BACKWARD for t in measured.transfers if t.scope == scope},
        )
        holds = (found.executions, found.payload_bytes) == (1, book) and is_backward == {phase == BACKWARD}
        evidence = (
            f"{found.executions} reduction of {counted(found.payload_bytes)} B, {phase}; b s d e is {counted(book)} B"
        )
        return decided(id, holds, evidence)

    # Neither waits for the other here, so that compilers may combine them.
    pair, count = (
        moved(measured, "mlp"),
        sum(known(t.executions) * t.arrays for t in measured.transfers if t.scope == "mlp"),
    )
    return (
        once("ch15.column_parallel", "column", BACKWARD),
        once("ch15.row_parallel", "row", FORWARD),
        once("ch15.megatron_attention", "attention", FORWARD),
        decided(
            "ch15.megatron_mlp",
            (count, pair.payload_bytes) == (2, 2 * book),
            f"{count} reductions, {counted(pair.payload_bytes)} B forward and backward together, none between "
            "columns, GELU and rows",
        ),
    )


class SmallProducts:
    """The same products cut into as many parts as there are ranks, in float64 on the host."""

    def __init__(self, ranks: int, tokens: int = 5, embed: int = 8) -> None:
        draw = np.random.default_rng(15)
        self.ranks = ranks
        self.x_TD = draw.normal(size=(tokens, embed * ranks))
        self.w_DF, self.back_FD = (draw.normal(size=(embed * ranks, embed * ranks)) for _ in range(2))
        self.bias_F = np.ones(embed * ranks)

    def parts(self, x: np.ndarray, dim: int) -> list[np.ndarray]:
        return np.split(x, self.ranks, dim)

    @property
    def partial_sums(self) -> list[np.ndarray]:
        """Each rank's, of a row-parallel product."""
        return [x @ w for x, w in zip(self.parts(self.x_TD, 1), self.parts(self.w_DF, 0), strict=True)]


def _bias(small: SmallProducts) -> Claim:
    y = small.x_TD @ small.w_DF + small.bias_F
    everywhere, shares = (
        sum(part + small.bias_F * weight for part in small.partial_sums) for weight in (1, 1 / small.ranks)
    )
    off = np.abs(everywhere - y).max()
    holds = np.allclose(shares, y) and np.isclose(off, small.ranks - 1)
    evidence = (
        f"b = 1 on each of {small.ranks} ranks before the sum is {off:.1f} off, b/P on each is right, and so is b "
        "once after it"
    )
    return decided("ch15.bias_rules", bool(holds), evidence, structural=True)


def _gelu(small: SmallProducts) -> Claim:
    def gelu(x: np.ndarray) -> np.ndarray:
        return np.asarray(jax.nn.gelu(x.astype(np.float32)), np.float64)

    whole = gelu(small.x_TD @ small.w_DF)
    columns = np.concatenate([gelu(small.x_TD @ w) for w in small.parts(small.w_DF, 1)], 1)
    off = np.abs(sum(map(gelu, small.partial_sums)) - whole).max()
    holds = np.allclose(columns, whole, atol=1e-4) and off > 0.1
    evidence = (
        f"GELU of columns is the columns of GELU; a sum of GELUs of {small.ranks} partial sums is up to {off:.1f} off"
    )
    return decided(
        "ch15.megatron_mlp",
        bool(holds),
        evidence,
        statement="GELU is local after columns, and not after rows",
        structural=True,
    )


def _fused(small: SmallProducts) -> Claim:
    """Of [Q | K | V] side by side, what a contiguous slice for each rank holds."""
    embed = small.x_TD.shape[1]
    labels = np.repeat(np.arange(3), embed)
    held = [sorted({"QKV"[i] for i in part}) for part in small.parts(labels, 0)]
    by_rank = [sorted({"QKV"[i] for i in part.ravel()}) for part in small.parts(labels.reshape(3, embed), 1)]
    holds = all(part == ["K", "Q", "V"] for part in by_rank) and any(part != ["K", "Q", "V"] for part in held)
    evidence = (
        f"a contiguous slice of [Q|K|V] gives rank 0 of {small.ranks} only {' and '.join(held[0])}; laid out by "
        "rank, each has q, k and v"
    )
    statement = "a fused QKV must be laid out by rank"
    return decided("ch15.megatron_attention", holds, evidence, statement=statement, structural=True)


def _conjugate(measured: Ledger, small: SmallProducts) -> Claim:
    with_it, without = moved(measured, "column"), moved(measured, "no_conjugate")
    g_TF = small.x_TD @ small.w_DF
    dx_TD = g_TF @ small.w_DF.T
    own = [g @ w.T for g, w in zip(small.parts(g_TF, 1), small.parts(small.w_DF, 1), strict=True)]
    off = np.abs(own[0] - dx_TD).max() / np.abs(dx_TD).max()
    is_enough = without.executions == 0 and np.allclose(own[0], dx_TD)
    evidence = (
        f"without the conjugate {without.executions} reductions, and rank 0's dX is {off:.0%} of the largest entry "
        f"off; with it {with_it.executions}"
    )
    return decided(
        "ch15.tp_backward_table",
        is_enough,
        f"{evidence}, and the sum of all ranks' dX is right: {np.allclose(sum(own), dx_TD)}",
        statement="the all-reduce after the rows is all that the layers need",
        disputed="4-5:D-19",
    )


EXPERIMENT = experiment(
    name="ch15_split_products",
    chapter=15,
    question="Where do column- and row-parallel matmuls communicate, and what must be placed where?",
    parts=PARTS,
    sizes=Sizes(),
    small=Sizes(tokens=8, embed=32, mlp=48),
    axes=on_one_axis(TENSOR),
    claims=claims,
)
