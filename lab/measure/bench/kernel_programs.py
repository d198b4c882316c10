"""Programs of one kind of kernel each, in the sizes that training and serving have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from jax import lax

from lab.measure.bench.kernel_times import Array, Program
from lab.measure.bench.rates import UNTUNED

BATCHED = ((64, 2048, 2048, 128), (64, 2048, 128, 2048), (256, 512, 512, 64), (8, 4096, 4096, 1024))
FLAT = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 1024, 4096),
    (8192, 4096, 1024),
    (8192, 4096, 4096),
    (16384, 5632, 2048),
    (2992, 1008, 5008),
    (65536, 512, 512),
    (256, 32768, 4096),
    (32, 4096, 4096),
    (32, 4096, 16384),
    (4096, 4096, 32768),
)
LARGE = (8192, 8192, 8192)
"""(m, n, k), k the dim that is summed over."""
PRODUCTS = {
    "bfloat16": ((*FLAT, LARGE), BATCHED),
    "float8_e4m3fn": ((*FLAT[1:], LARGE), ()),
    "int8": (FLAT[1:], ()),
    "tf32": (FLAT[1:], BATCHED[:2]),
    "float32": (FLAT[1:9], BATCHED[:1]),
    "float16": ((FLAT[3], FLAT[4], FLAT[6], FLAT[11]), BATCHED[:1]),
}
"""By the dtype of the arithmetic: flat ones and batches."""
BY_LIBRARY: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
"""Libraries multiply most of what is multiplied; to try other kernels takes minutes."""
FLOPS_PER_S = {
    "bfloat16": 7e14,
    "float16": 7e14,
    "tf32": 3.5e14,
    "float32": 4e13,
    "float8_e4m3fn": 1.2e15,
    "int8": 1e15,
}
BYTES_PER_S, LAUNCH_S = 3e12, 3e-6
"""About as fast as cards are, so that a chain is about as long as it should be."""
PASSES = tuple(2**power for power in (10, 14, 16, 18, 20, 22, 24, 26, 28, 30))
"""Elements of float32."""
CACHE_FLUSH_BYTES, MOST_ARRAYS = 256 << 20, 96
"""Bytes of what passes go through, several times a card's cache, in so many arrays at most."""
ATTENTION = ((4, 2048, 16, 128), (8, 1024, 16, 64), (1, 8192, 16, 128), (16, 512, 16, 64))
"""(batch, length, heads, width of a head)."""
CONVOLUTIONS = (
    (64, 56, 64, 64, 3, 1),
    (64, 28, 128, 128, 3, 1),
    (64, 14, 256, 256, 3, 1),
    (256, 14, 256, 256, 3, 1),
    (8, 64, 320, 320, 3, 1),
    (64, 28, 256, 512, 1, 1),
    (64, 28, 128, 128, 3, 2),
)
"""(batch, rows and columns, channels, features, window, stride)."""
HOST_BYTES = (1 << 20, 1 << 24, 1 << 28)


def families() -> Iterator[tuple[str, list[Program]]]:
    """With the name of each."""
    yield "memory", list(_memory())
    yield "passes", list(_passes())
    for dtype, (flat, batched) in PRODUCTS.items():
        shapes = [*((1, *shape) for shape in flat), *batched]
        yield f"{dtype} products", [_product(dtype, *shape) for shape in shapes]
    yield "attention", list(_attention())
    yield "convolutions", list(_convolutions())
    yield "gathers", list(_gathers())
    yield "scatters", list(_scatters())
    yield "scans", list(_scans())
    yield "transposes", list(_transposes())
    yield "host copies", list(_host_copies())
    yield "sorts", list(_sorts())


def _product(dtype: str, batch: int, m: int, n: int, k: int) -> Program:
    stored = "float32" if dtype == "tf32" else dtype
    result = {"float8_e4m3fn": jnp.bfloat16, "int8": jnp.int32}.get(dtype)
    is_narrow, leading = result is not None, (batch,) * (batch > 1)
    # Narrow products are fastest where both arrays have the sum in their last dim.
    second = (n, k) if is_narrow else (k, n)
    dims = tuple(range(len(leading)))
    at = len(leading)
    numbers = (((at + 1,), (at + is_narrow,)), (dims, dims))
    call = partial(
        lax.dot_general,
        dimension_numbers=numbers,
        precision="highest" if dtype == "float32" else None,
        preferred_element_type=result,
    )
    moved = batch * jnp.dtype(stored).itemsize * (m * k + k * n + m * n)
    seconds = LAUNCH_S + max(2 * batch * m * n * k / FLOPS_PER_S[dtype], moved / BYTES_PER_S)
    args = Array((*leading, m, k), stored), Array((*leading, *second), stored)
    return Program(f"product {dtype} {batch}x{m}x{n}x{k}", call, args, seconds, heats=True, options=BY_LIBRARY)


def _of_bytes(name: str, call: Callable[..., object], *args: Array, slower: float = 1.0, **given: object) -> Program:
    """A call that reads about as much as it is given, and writes as much."""
    moved = 2 * sum(prod(arg.shape) * jnp.dtype(arg.dtype).itemsize for arg in args)
    return Program(name, call, args, LAUNCH_S + slower * moved / BYTES_PER_S, **given)  # type: ignore[arg-type]


def _memory() -> Iterator[Program]:
    for elements in PASSES:
        arrays = max(2, min(MOST_ARRAYS, CACHE_FLUSH_BYTES // (4 * elements)))
        seconds = arrays * (LAUNCH_S + 8 * elements / BYTES_PER_S)
        given = (Array((elements,), "float32"),) * arrays
        yield Program(f"memory {8 * elements}", _sweep, given, seconds, carries=arrays)


def _sweep(*xs_N: jax.Array) -> list[jax.Array]:
    """Over several arrays in turn, together larger than a cache, as the next kernel of a step seldom finds what it
    reads in one. Each adds a number of the one before, without which GPUs may run several at once."""
    new_N, last_N = list(xs_N), xs_N[-1]
    for i, x_N in enumerate(xs_N):
        new_N[i] = last_N = lax.optimization_barrier(x_N + last_N[0])
    return new_N


def _passes() -> Iterator[Program]:
    square, tokens = Array((8192, 8192), "bfloat16"), Array((8192, 4096), "bfloat16")
    wide, scores = Array((8192, 4096), "float32"), Array((32, 2048, 2048), "float32")
    masked = Array((32, 2048, 2048), "bfloat16")
    yield _of_bytes("pass transpose", lambda x: x.T * 2, Array((16384, 8192), "bfloat16"), alone=True)
    yield _of_bytes("pass transpose float32", lambda x: x.T * 2, Array((8192, 8192), "float32"), alone=True)
    yield _of_bytes("pass sum of rows", lambda x: jnp.sum(x, -1), square)
    yield _of_bytes("pass sum of columns", lambda x: jnp.sum(x, 0), square)
    yield _of_bytes("pass sum of columns float32", lambda x: jnp.sum(x, 0), wide)
    yield _of_bytes("pass sum of products over columns", lambda x, y: jnp.sum(x * y, 0), tokens, tokens)
    for x in (square, wide, scores):
        yield _of_bytes(f"pass softmax {x.dtype} {x.shape[-1]}", lambda x: jax.nn.softmax(x, -1), x)
    yield _of_bytes("pass causal softmax", _causal, scores)
    yield _of_bytes("pass gradient of softmax", _softmax_gradient, masked, scores)
    for name, x in (("", tokens), (" float32", wide)):
        yield _of_bytes(f"pass gelu{name}", jax.nn.gelu, x)
        yield _of_bytes(f"pass silu{name}", jax.nn.silu, x)
        yield _of_bytes(f"pass layer norm{name}", _normalized, x)
        yield _of_bytes(f"pass gradient of layer norm{name}", partial(_gradients, _normalized), x, x)
    yield _of_bytes("pass gated", lambda x, y: jax.nn.silu(x) * y, tokens, tokens)
    yield _of_bytes("pass sum of two", lambda x, y: x + y, square, square)
    yield _of_bytes("pass cast", lambda x: x.astype(jnp.float32), square)
    for name, shape in (("heads", (8, 2048, 16, 128)), ("many heads", (16, 2048, 32, 64))):
        call = lambda x: x.transpose(0, 2, 1, 3) * 2  # noqa: E731
        yield _of_bytes(f"pass {name}", call, Array(shape, "bfloat16"), alone=True)
        yield _of_bytes(f"pass {name} float32", call, Array(shape, "float32"), alone=True)
    for dtype in ("bfloat16", "float32"):
        few = Array((8192,), dtype)
        yield _of_bytes(f"pass written {dtype}", lambda x: jnp.broadcast_to(x, (16384, 8192)), few, slower=8192)
        yield _of_bytes(f"pass written twice {dtype}", _twice, few, slower=8192)
    yield _of_bytes("pass random", _random, Array((1 << 24,), "float32"), slower=3)


def _twice(x_N: jax.Array) -> tuple[jax.Array, jax.Array]:
    shape = (8192, *x_N.shape)
    return jnp.broadcast_to(x_N, shape), jnp.broadcast_to(x_N * 2, shape)


def _causal(x_BST: jax.Array) -> jax.Array:
    """Scores to bfloat16 weights."""
    allowed_ST = jnp.tril(jnp.ones(x_BST.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(allowed_ST, x_BST, -1e30), -1).astype(jnp.bfloat16)


def _softmax_gradient(p_BST: jax.Array, g_BST: jax.Array) -> jax.Array:
    p_BST = p_BST.astype(jnp.float32)
    return (p_BST * (g_BST - jnp.sum(p_BST * g_BST, -1, keepdims=True))).astype(jnp.bfloat16)


def _normalized(x_NE: jax.Array) -> jax.Array:
    x = x_NE.astype(jnp.float32)
    x -= x.mean(-1, keepdims=True)
    return (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)).astype(x_NE.dtype)


def _random(x_N: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.key(0), x_N.shape) + x_N


def _attention() -> Iterator[Program]:
    for batch, length, heads, width in ATTENTION:
        x = Array((batch, length, heads, width), "bfloat16")
        for is_causal in (False, True):
            attend = partial(jax.nn.dot_product_attention, is_causal=is_causal, implementation="cudnn")
            seconds = 4 * batch * heads * length * length * width / 4e14 + LAUNCH_S
            name = f"{'causal ' * is_causal}{batch}x{length}x{heads}x{width}"
            yield Program(f"attention {name}", attend, (x, x, x), seconds, heats=True)
            backward = partial(_gradients, attend)
            yield Program(f"attention backward {name}", backward, (x, x, x, x), 4 * seconds, heats=True)


def _gradients(function: Callable[..., jax.Array], *args: jax.Array) -> tuple[jax.Array, ...]:
    """Of a function with respect to all of its arguments; the last of `args` is the gradient of the result."""
    *given, gradient = args
    gradients: tuple[jax.Array, ...] = jax.vjp(function, *given)[1](gradient)
    return gradients


def _convolutions() -> Iterator[Program]:
    for dtype, shapes in (("bfloat16", CONVOLUTIONS), ("float32", CONVOLUTIONS[1:4]), ("float16", CONVOLUTIONS[1:2])):
        for shape in shapes:
            yield from _convolution(dtype, *shape)


def _convolution(
    dtype: str, batch: int, side: int, channels: int, features: int, window: int, stride: int
) -> Iterator[Program]:
    call = partial(
        lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = Array((batch, side, side, channels), dtype)
    w = Array((window, window, channels, features), dtype)
    y = Array((batch, side // stride, side // stride, features), dtype)
    seconds = LAUNCH_S + 2 * prod(y.shape) * window**2 * channels / (1.5e14 if dtype == "float32" else 3e14)
    name = f"{dtype} {batch}x{side}x{channels}x{features} window {window} stride {stride}"
    yield Program(f"convolution {name}", call, (x, w), seconds, heats=True)
    yield Program(
        f"convolution to input {name}",
        lambda w, x, y: jax.vjp(lambda x: call(x, w), x)[1](y),
        (w, x, y),
        seconds,
        heats=True,
    )
    yield Program(
        f"convolution to filter {name}",
        lambda y, x, w: jax.vjp(lambda w: call(x, w), w)[1](y),
        (y, x, w),
        seconds,
        heats=True,
    )


def _sorts() -> Iterator[Program]:
    for shape in ((1 << 24,), (1 << 20,), (4096, 4096), (65536, 128)):
        keys = Array(shape, "float32")
        name = "x".join(map(str, shape))
        yield _of_bytes(f"sort {name}", lambda x: jnp.sort(x, -1), keys, slower=60)
        yield _of_bytes(
            f"sort with values {name}",
            lambda x, y: lax.sort((x, y), num_keys=1),
            keys,
            Array(shape, "int32", below=1 << 20),
            slower=60,
        )
    yield _of_bytes("sort bfloat16", lambda x: jnp.sort(x, -1), Array((4096, 4096), "bfloat16"), slower=60)
    yield _of_bytes("sort int32", lambda x: jnp.sort(x, -1), Array((4096, 4096), "int32", below=1 << 30), slower=60)
    for k in (2, 64):
        yield _of_bytes(f"top {k} of 32000", lambda x, k=k: lax.top_k(x, k), Array((512, 32000), "float32"), slower=20)
        yield _of_bytes(f"top {k} of 128", lambda x, k=k: lax.top_k(x, k), Array((16384, 128), "float32"), slower=20)


def _scans() -> Iterator[Program]:
    for dtype in ("float32", "bfloat16"):
        for shape, dim in (((4096, 8192), -1), ((4096, 8192), 0), ((1 << 24,), 0), ((256, 1024), -1)):
            name = f"scan {dtype} {'x'.join(map(str, shape))} along {dim}"
            yield _of_bytes(name, partial(jnp.cumsum, axis=dim), Array(shape, dtype), slower=3)


def _gathers() -> Iterator[Program]:
    for dtype in ("bfloat16", "float32"):
        for rows, width, count in ((100_000, 1024, 65536), (1_000_000, 64, 262_144), (32_000, 4096, 8192)):
            yield _of_bytes(
                f"gather {dtype} rows of {width}",
                lambda i, table: table[i],
                Array((count,), "int32", below=rows),
                Array((rows, width), dtype),
                slower=0.5,
            )
    many = Array((1 << 24,), "int32", below=1 << 24)
    yield _of_bytes("gather elements", lambda i, x: x[i], many, Array((1 << 24,), "float32"), slower=4)
    yield _of_bytes(
        "gather elements of rows",
        lambda i, x: jnp.take_along_axis(x, i, -1),
        Array((4096, 4096), "int32", below=4096),
        Array((4096, 4096), "float32"),
    )


def _scatters() -> Iterator[Program]:
    for dtype in ("bfloat16", "float32"):
        for rows, width, count in ((100_000, 1024, 65536), (1_000_000, 64, 262_144), (32_000, 4096, 8192)):
            given = Array((rows, width), dtype), Array((count,), "int32", below=rows), Array((count, width), dtype)
            yield _of_bytes(f"scatter {dtype} rows of {width}", _scatter_add, *given, carries=1)
            yield _of_bytes(f"scatter {dtype} anew rows of {width}", lambda x, i, y: x.at[i].set(y), *given, carries=1)
    for rows in (1 << 10, 1 << 20, 1 << 24):
        given = (
            Array((rows,), "float32"),
            Array((1 << 23,), "int32", below=rows),
            Array((1 << 23,), "float32"),
        )
        yield _of_bytes(f"scatter elements to {rows}", _scatter_add, *given, slower=4, carries=1)
    segments = Array((262_144, 128), "float32"), Array((262_144,), "int32", below=4096)
    yield _of_bytes("scatter to segments", lambda x, i: jax.ops.segment_sum(x, i, 4096), *segments, slower=4)


def _scatter_add(x: jax.Array, i: jax.Array, y: jax.Array) -> jax.Array:
    return x.at[i].add(y)


def _transposes() -> Iterator[Program]:
    """Between layouts of whole programs, since inside one XLA would rather change the layout; untuned, so that no other
    kernel is tried."""
    for shape in ((4, 8, 4, 2048, 2048), (8, 16, 4, 512, 512)):
        x = Array(shape, "bfloat16")
        call = lambda x: x.astype(jnp.float32).transpose(0, 1, 4, 3, 2)  # noqa: E731
        yield _of_bytes(f"transpose {'x'.join(map(str, shape))}", call, x, slower=4, alone=True, options=UNTUNED)


def _host_copies() -> Iterator[Program]:
    for size in HOST_BYTES:
        shape = (size // 4,)
        seconds = size / 2e10
        yield Program(f"host copy to it {size}", _to_host, (Array(shape, "float32"),), seconds, alone=True)
        yield Program(
            f"host copy back {size}", _to_device, (Array(shape, "float32", on_host=True),), seconds, alone=True
        )


def _to_host(x_N: jax.Array) -> jax.Array:
    return jax.device_put(x_N, jax.memory.Space.Host)


def _to_device(x_N: jax.Array) -> jax.Array:
    return jax.device_put(x_N, jax.memory.Space.Device)
