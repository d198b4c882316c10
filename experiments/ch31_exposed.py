"""Chapter 31: which ways to overlap communication change what a compiler schedules, and what is exposed before and
after?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.inspection import read_program
from lab.harness.claim import Claim, calculated, decided
from lab.harness.question import Question, Row
from lab.measure.prediction import Prediction, predicted
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.platforms import Platform
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.transforms import overlap
from lab.programs.transforms.buckets import bucketed

Options = tuple[tuple[str, str | bool], ...]
SYNCHRONOUS = "xla_gpu_disable_async_collectives"
KINDS = "ALLREDUCE,ALLGATHER,REDUCESCATTER,ALLTOALL,COLLECTIVEPERMUTE"
HIDING: Options = (("xla_gpu_enable_latency_hiding_scheduler", True),)
DOUBLED: Options = (*HIDING, ("xla_gpu_enable_while_loop_double_buffering", True))
PIPELINED: Options = (*HIDING, ("xla_gpu_enable_pipelined_all_gather", True))
WINDOWED: Options = (
    ("xla_gpu_threshold_for_windowed_einsum_mib", "0"),
    ("xla_gpu_operand_bytes_threshold_for_windowed_einsum", "0"),
    *HIDING,
)
APART: Options = (("xla_gpu_dot_merger_threshold_mb", "0"),)
MIB = 1 << 20


@dataclass(frozen=True)
class Scheduled:
    """Where programs are compiled, tokens of a rank, the width of a layer, and layers."""

    target: str = "gpu:h100:1x8"
    tokens: int = 4096
    embed: int = 4096
    layers: int = 4


Kernel = Callable[[jax.Array, jax.Array, str], jax.Array]


class Way(NamedTuple):
    """One program.

    Attributes:
      of: what it is a way to do.
      run: inside `jax.shard_map`; None: declared.
      bucket_bytes: of a training step instead; 0: each gradient by itself.
      options: of the compiler of GPUs.
    """

    name: str
    of: str
    run: Kernel | None = None
    options: Options = ()
    bucket_bytes: int = 0


GATHER, PRODUCT, RING, SUMS = (
    "gathers in a loop",
    "a gather before a product",
    "a ring of permutes",
    "sums of gradients",
)
WAYS: tuple[Way, ...] = (
    Way("synchronous", GATHER, overlap.gathered_in_turn, ((SYNCHRONOUS, KINDS),)),
    Way("as it is", GATHER, overlap.gathered_in_turn),
    Way("gathered one layer ahead", GATHER, overlap.gathered_ahead),
    Way("loop doubled", GATHER, overlap.gathered_in_turn, DOUBLED),
    Way("gathers pipelined", GATHER, overlap.gathered_in_turn, PIPELINED),
    Way("as it is", PRODUCT, overlap.gathered_product),
    Way("a ring, unrolled", PRODUCT, overlap.unrolled_ring_product),
    Way("a ring, its products kept apart", PRODUCT, overlap.unrolled_ring_product, APART),
    Way("a ring in a loop", PRODUCT, overlap.ring_product),
    Way("windowed einsum of XLA", PRODUCT, options=WINDOWED),
    Way("sent on after the product", RING, overlap.passed_after),
    Way("sent on before it", RING, overlap.passed_before),
    Way("each in the backward pass", SUMS),
    Way("buckets of 25 MiB", SUMS, bucket_bytes=25 * MIB),
    Way("one bucket", SUMS, bucket_bytes=1 << 40),
)


def built(way: Way, assumed: Scheduled, axes: Axes, mesh: Mesh) -> program.Program:
    """The function and its arguments, as shapes with shardings."""
    if way.of == SUMS:
        strategy = DATA_PARALLEL | bucketed(way.bucket_bytes) if way.bucket_bytes else DATA_PARALLEL
        return program.step(strategy, "explicit", decoder(assumed, axes), mesh)
    embed, columns = assumed.embed, P(None, DATA)
    leaving = columns if way.of == PRODUCT else P(DATA)
    w_spec = P() if way.of == RING else columns
    w_sizes = {PRODUCT: (embed, 4 * embed), GATHER: (assumed.layers, embed, embed), RING: (axes.size, embed, embed)}
    sizes = ((axes.size * assumed.tokens, embed), P(DATA)), (w_sizes[way.of], w_spec)
    x, w = (jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for dims, spec in sizes)
    if way.run is None:
        return jax.jit(jnp.dot, out_shardings=NamedSharding(mesh, leaving)), (x, w)
    run = way.run

    def on_rank(x_TE: jax.Array, w: jax.Array) -> jax.Array:
        return run(x_TE, w, DATA)

    return jax.jit(jax.shard_map(on_rank, mesh=mesh, in_specs=(P(DATA), w_spec), out_specs=leaving)), (x, w)


def decoder(assumed: Scheduled, axes: Axes) -> DecoderShape:
    width, length = assumed.embed // 4, 512
    return DecoderShape(
        layers=assumed.layers,
        batch=axes.size * max(1, assumed.tokens // length),
        length=length,
        embed=width,
        kv_heads=8,
        queries=1,
        head_dim=width // 8,
        mlp=4 * width,
        vocab=32000,
    )


@cache
def scheduled(way: Way, assumed: Scheduled) -> Prediction | None:
    """None where the compiler has no such option, and for a way that is one where there are none."""
    target = parse_target(assumed.target)
    if way.options and target.platform != Platform.GPU:
        return None
    prepare([target])
    axes = Axes.of({DATA: device_count(target)})
    mesh = make_mesh(target, axes)
    function, args = built(way, assumed, axes, mesh)
    try:
        compiled = function.lower(*args).compile(compiler_options=dict(way.options) or None)
    except jax.errors.JaxRuntimeError as refusal:
        if "No such compile option" not in str(refusal):
            raise
        return None
    return predicted(read_program(compiled, args, mesh, target, source=f"{way.of}: {way.name}"))


def of(name: str, what: str, assumed: Scheduled) -> Prediction | None:
    return scheduled(next(way for way in WAYS if (way.of, way.name) == (what, name)), assumed)


def answer(assumed: Scheduled) -> tuple[Row, ...]:
    rows: list[Row] = []
    for way in WAYS:
        found, what = scheduled(way, assumed), f"{way.of}, {way.name}"
        if found is None:
            rows.append(Row(what, "no such option"))
            continue
        time, memory = found.time, found.ledger.memory
        rows += [
            Row(f"{what}: on the wire", 1e6 * time.communication, "us"),
            Row(f"{what}: exposed", 1e6 * time.exposed, "us"),
            Row(f"{what}: step", 1e6 * time.total, "us"),
            *([Row(f"{what}: peak", memory.peak / 1e6, "MB")] if memory and memory.peak else []),
        ]
    return tuple(rows)


def claims(assumed: Scheduled) -> tuple[Claim, ...]:
    found = (
        *_prefetch(assumed),
        *_collective_matmul(assumed),
        *_permutes(assumed),
        *_buckets(assumed),
    )
    return tuple(claim for claim in found if claim)


def _us(prediction: Prediction) -> str:
    return f"{1e6 * prediction.time.exposed:,.0f} of {1e6 * prediction.time.communication:,.0f} us exposed"


def _pair(what: str, before: str, after: str, assumed: Scheduled) -> tuple[Prediction, Prediction] | None:
    one, other = of(before, what, assumed), of(after, what, assumed)
    return (one, other) if one and other else None


def _prefetch(assumed: Scheduled) -> tuple[Claim, ...]:
    if not (pair := _pair(GATHER, "as it is", "gathered one layer ahead", assumed)):
        return ()
    before, after = pair
    return (
        decided(
            "ch31.prefetch",
            after.time.exposed < before.time.exposed,
            f"gathered in turn {_us(before)}, one layer ahead {_us(after)}",
            statement="a gather one layer ahead is hidden behind the layer before it",
            structural=True,
        ),
    )


def _collective_matmul(assumed: Scheduled) -> tuple[Claim, ...]:
    if not (pair := _pair(PRODUCT, "a ring, unrolled", "a ring in a loop", assumed)):
        return ()
    unrolled, looped = pair
    return (
        decided(
            "ch31.collective_matmul",
            unrolled.time.exposed < unrolled.time.communication / 2,
            f"unrolled {_us(unrolled)}: products with one factor are merged into one, which waits for all parts",
            statement="a ring of permutes and products, unrolled, hides most of its permutes",
            structural=True,
        ),
        decided(
            "ch31.collective_matmul",
            looped.time.exposed < unrolled.time.exposed,
            f"in a loop {_us(looped)}, unrolled {_us(unrolled)}",
            statement="in a loop it hides more",
            structural=True,
        ),
    )


def _permutes(assumed: Scheduled) -> tuple[Claim, ...]:
    if not (pair := _pair(RING, "sent on after the product", "sent on before it", assumed)):
        return ()
    after, before = pair
    return (
        decided(
            "ch31.schedules",
            before.time.exposed < after.time.exposed,
            f"sent on after the product {_us(after)}, before it {_us(before)}",
            statement="a message that does not wait for a product is hidden behind it",
            structural=True,
        ),
    )


def _buckets(assumed: Scheduled) -> tuple[Claim, ...]:
    if not (pair := _pair(SUMS, "each in the backward pass", "buckets of 25 MiB", assumed)):
        return ()
    each, buckets = pair
    return (
        calculated(
            "ch31.bucketing_algo",
            f"each gradient in the loop over layers {_us(each)}, buckets {_us(buckets)}: layers in a scan have their "
            "gradients together when the loop ends, and buckets of float32 have no backward pass to hide behind",
            statement="buckets are hidden behind the backward pass",
        ),
    )


EXPERIMENT = Question(
    name="ch31_exposed",
    chapter=31,
    question="Which ways to overlap communication change what is scheduled, and what is exposed before and after?",
    parameters=Scheduled(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
