"""Chapter 17: does ring attention need memory only for its own share of the tokens, even at a million tokens?"""

from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from lab.attention.mask import CAUSAL
from lab.attention.ring import ring_attention
from lab.attention.tiles import TILE
from lab.book.context import ring_bytes, scores_bytes
from lab.core.known import known
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.harness.small_programs import with_pullback
from lab.meshes.axes import CONTEXT, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError, one_line
from lab.meshes.targets import parse_target
from lab.programs.models.shape import indexable

SEQUENCES = tuple((length, ranks) for ranks in (8, 64) for length in (2**15, 2**17, 2**20))
"""Tokens, and the ranks that they are split over."""
HOST = (1, 8)
LONGEST_CHUNKS = (2**20, 8)
CLOSE = 0.125
"""How much more a token may need at one length than at another: at some, one or two float32 tensors of the queries'
size live at XLA's peak."""


@dataclass(frozen=True)
class Assumed:
    """One layer's attention to one sequence, forward and backward, in bf16 on hosts as the target is one.

    Raises:
      UsageError: another target than one host of 8 GPUs, or sizes beyond int32.
    """

    kv_heads: int = 8
    queries: int = 2
    head_dim: int = 128
    target: str = "gpu:h100:1x8"

    def __post_init__(self) -> None:
        indexable(**{"kv_heads * queries * head_dim": self.query_dim})
        target = parse_target(self.target)
        if target.platform == "attached":
            raise UsageError(
                "target=attached: rings are over one host of 8 GPUs and over 8 such hosts; take GPUs to compile for, "
                "such as gpu:h100:1x8"
            )
        if target.platform != "gpu":
            raise UsageError(
                f"target={self.target}: expected GPUs, such as gpu:h100:1x8; the temporaries of other "
                "compilers do not show the ring's"
            )
        if target.shape != HOST:
            raise UsageError(
                f"target={self.target}: expected one host of 8 GPUs, gpu:{target.chip}:1x8; rings are over one and "
                "over 8 such hosts"
            )

    @property
    def query_dim(self) -> int:
        return self.kv_heads * self.queries * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    def a_token(self, length: int, ranks: int) -> float:
        """Temporary bytes for each token of a rank."""
        return temporaries(self, length, ranks) / (length // ranks)


@cache
def temporaries(assumed: Assumed, length: int, ranks: int) -> int:
    """Bytes of one device beside arguments and results; raises UsageError where XLA refuses the sizes."""
    target = parse_target(f"gpu:{parse_target(assumed.target).chip}:{ranks // HOST[1]}x{HOST[1]}")
    prepare([target])
    mesh, spec = make_mesh(target, Axes.of({CONTEXT: ranks})), PartitionSpec(None, CONTEXT)
    ring = with_pullback(partial(ring_attention, mask=CAUSAL, axis=CONTEXT))
    q, kv = (
        (1, length, assumed.kv_heads, assumed.queries, assumed.head_dim),
        (1, length, assumed.kv_heads, assumed.head_dim),
    )
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for shape in (q, kv, kv, q)]
    run = jax.jit(jax.shard_map(ring, mesh=mesh, in_specs=(spec,) * 4, out_specs=spec))
    try:
        return known(run.lower(*args).compile().memory_analysis()).temp_size_in_bytes
    except jax.errors.JaxRuntimeError as refusal:
        raise UsageError(f"{length:,} tokens over {ranks} ranks with {assumed}: {one_line(refusal)}") from refusal


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return tuple(row for length, ranks in SEQUENCES for row in _rows(assumed, length, ranks))


def _rows(assumed: Assumed, length: int, ranks: int) -> tuple[Row, Row]:
    what = f"{length:,} tokens over {ranks} ranks"
    return Row(f"{what}: temporaries", temporaries(assumed, length, ranks), "bytes"), Row(
        f"{what}: a token of a rank", assumed.a_token(length, ranks), "bytes"
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (_linear(assumed), _tiles(assumed))


def _linear(assumed: Assumed) -> Claim:
    chunks, needs = (
        [length // ranks for length, ranks in SEQUENCES],
        [assumed.a_token(length, ranks) for length, ranks in SEQUENCES],
    )
    least, most = min(needs), max(needs)
    book = ring_bytes(1, assumed.query_dim, assumed.kv_dim, 2, 1)
    seen = (
        f"with {min(chunks):,} to {max(chunks):,} tokens a rank needs {least:,.0f} to {most:,.0f} B for each, a "
        f"spread of {100 * (most / least - 1):.1f} %"
    )
    evidence = (
        f"{seen}, forward and backward; queries, outputs and two blocks of keys and values are {counted(book)} B "
        "of them"
    )
    # A chunk of one tile may need less: no loop over tiles is left, and none of the stacks that it fills.
    is_so = most < (1 + CLOSE) * min(need for chunk, need in zip(chunks, needs, strict=True) if chunk > TILE)
    return decided(
        "ch17.ring_memory",
        is_so,
        evidence,
        statement="a rank's memory grows with S/P, not with S nor with a square",
        structural=True,
    )


def _tiles(assumed: Assumed) -> Claim:
    length, ranks = LONGEST_CHUNKS
    found = temporaries(assumed, length, ranks)
    scores = scores_bytes(1, assumed.kv_heads * assumed.queries, length // ranks, 2)
    evidence = (
        f"at {length:,} tokens over {ranks} ranks a ring of tiles has {counted(found)} B of temporaries, the scores "
        f"of a single block would be {counted(scores)} B"
    )
    return decided(
        "ch17.flash_ring_memory", found < scores, evidence, statement="a ring of tiles holds no block's scores"
    )


EXPERIMENT = Question(
    name="ch17_ring_memory",
    chapter=17,
    question="Does ring attention need memory only for its own share of the tokens, even at a million tokens?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
