"""Chapter 30: what does a number cost in each format: on the wire, in an optimizer's state, in a cache? As compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.book.architecture import kv_bytes_per_token
from lab.book.parallelism import dp_volume_bytes
from lab.book.precision import scale_bytes
from lab.compile.inspection import read_program
from lab.core.dtypes import DTYPES
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count
from lab.meshes.axes import FSDP, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.strategies.wire import Narrow, dequantised, quantised, scattered
from lab.programs.transforms.precision import RECIPES

WIDE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
NARROW = {"float8 in blocks of 128": RECIPES["tile128"], "int8 in blocks of 128": RECIPES["int8"]}
Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Sizes:
    """Numbers of a gradient, and of a state; tokens and key-value heads of a cache, whose heads are 128 wide.

    Attributes:
      numbers: a multiple of 128 times the devices.
    """

    numbers: int = 1 << 20
    tokens: int = 1024
    kv_heads: int = 8
    target: str = "gpu:h100:1x8"


def given(mesh: Mesh, shape: Sequence[int], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=NamedSharding(mesh, spec))


def stored(mesh: Mesh, shape: Sequence[int], name: str, spec: P) -> tuple[jax.ShapeDtypeStruct, ...]:
    """An array as it is kept: values, and where they are narrow the scales of blocks of the last dim."""
    if name in WIDE:
        return (given(mesh, shape, WIDE[name], spec),)
    codes = given(mesh, shape, DTYPES[NARROW[name].dtype][0], spec)
    return codes, given(mesh, (*shape[:-1], shape[-1] // NARROW[name].block), jnp.float32, spec)


def loaded(parts: Sequence[jax.Array], name: str) -> jax.Array:
    if name in WIDE:
        return parts[0].astype(jnp.float32)
    return dequantised(parts[0], parts[1], NARROW[name])


def kept(x: jax.Array, name: str) -> tuple[jax.Array, ...]:
    return (x.astype(WIDE[name]),) if name in WIDE else quantised(x, NARROW[name])


def mean_of_gradients(name: str, sizes: Sizes, mesh: Mesh) -> Program:
    """Summed over all ranks; narrow ones are exchanged, summed by who keeps the part, and gathered narrow again."""

    def wide(g_RC: jax.Array) -> jax.Array:
        return jax.lax.psum(g_RC.astype(WIDE[name]), FSDP)

    def exchanged(g_RC: jax.Array, narrow: Narrow) -> jax.Array:
        part = scattered(g_RC, narrow, (FSDP,), 0)[None]
        codes, scales = (
            jax.lax.all_gather(jax.lax.optimization_barrier(x), FSDP, axis=1, tiled=True)
            for x in quantised(part, narrow)
        )
        return dequantised(codes, scales, narrow)[0]

    run = wide if name in WIDE else lambda g_RC: exchanged(g_RC, NARROW[name])
    args = (given(mesh, (sizes.numbers // 128, 128), jnp.float32, P()),)
    return jax.shard_map(run, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False), args


def moments(name: str, sizes: Sizes, mesh: Mesh) -> Program:
    """Both moments of Adam, brought forward by one step."""

    def forward(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> Any:
        return kept(0.9 * loaded(first, name), name), kept(0.95 * loaded(second, name), name)

    state = stored(mesh, (1, sizes.numbers // 128, 128), name, P())
    return forward, (state, state)


def cache_of_keys(name: str, sizes: Sizes, mesh: Mesh) -> Program:
    """The scores of one query with all keys, and the values that they weigh."""

    def attended(keys: tuple[jax.Array, ...], values: tuple[jax.Array, ...]) -> jax.Array:
        k_KTH, v_KTH = loaded(keys, name), loaded(values, name)
        weights_KT = jax.nn.softmax(jnp.einsum("kh,kth->kt", k_KTH[:, 0], k_KTH))
        return jnp.einsum("kt,kth->kh", weights_KT, v_KTH)

    cached = stored(mesh, (sizes.kv_heads, sizes.tokens, 128), name, P())
    return attended, (cached, cached)


PROGRAMS = {"wire": mean_of_gradients, "state": moments, "cache": cache_of_keys}


@cache
def compiled(what: str, name: str, sizes: Sizes) -> Ledger:
    target = parse_target(sizes.target)
    mesh = make_mesh(target, Axes.of({FSDP: device_count(target)}))
    function, args = PROGRAMS[what](name, sizes, mesh)
    return read_program(jax.jit(function), args, mesh, target, source=what).ledger


def measured(what: str, name: str, sizes: Sizes) -> Fraction:
    """Bytes that a device sends for a gradient's numbers, or holds of a state, or of a cache for each token."""
    ledger = compiled(what, name, sizes)
    if what == "wire":
        return known(ledger.totals().wire_bytes)
    memory = known(ledger.memory)
    return Fraction(memory.arguments - memory.padding, sizes.tokens if what == "cache" else 1)


def book(what: str, name: str, sizes: Sizes) -> Fraction:
    e = WIDE[name].dtype.itemsize if name in WIDE else 1
    ranks = device_count(parse_target(sizes.target))
    numbers = {"wire": sizes.numbers, "state": 2 * sizes.numbers, "cache": 2 * sizes.kv_heads * 128}[what]
    scales = Fraction(0) if name in WIDE else scale_bytes(numbers, NARROW[name].block, NARROW[name].scale_bytes)
    if what == "wire":
        return dp_volume_bytes(numbers, e, ranks) + Fraction(2 * (ranks - 1), ranks) * scales
    return scales + (Fraction(kv_bytes_per_token(sizes.kv_heads, 128, e)) if what == "cache" else numbers * e)


UNITS = {"wire": "sent a gradient", "state": "both moments", "cache": "a token of a layer's cache"}
FORMATS = (*WIDE, *NARROW)


def answer(sizes: Sizes) -> tuple[Row, ...]:
    return tuple(
        Row(f"{name}: {unit}", float(measured(what, name, sizes)), "bytes", float(book(what, name, sizes)))
        for what, unit in UNITS.items()
        for name in FORMATS
    )


IDS = {"wire": "ch30.comm_precision", "state": "ch30.fp8_recipe", "cache": "ch31a.kv_cache"}


def claims(sizes: Sizes) -> tuple[Claim, ...]:
    return tuple(
        decided(
            IDS[what],
            all(measured(what, name, sizes) == book(what, name, sizes) for name in FORMATS),
            ", ".join(f"{counted(measured(what, name, sizes))} B in {name}" for name in FORMATS) + ": as theory says",
            statement=f"{unit}: e bytes a number, and n / 128 scales of 4 bytes where e is 1",
        )
        for what, unit in UNITS.items()
    )


EXPERIMENT = Question(
    name="ch30_table",
    chapter=30,
    question="What does a number cost in each format, on the wire, in an optimizer's state and in a cache?",
    parameters=Sizes(),
    answer=answer,
    claims=claims,
)
