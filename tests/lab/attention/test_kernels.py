"""Attention over a split sequence against attention on one device, float32 on 8 fake devices: values and all
gradients."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lab.attention import dense, tiles
from lab.attention.exchange import gathered_attention, ulysses_attention
from lab.attention.mask import CAUSAL, Mask
from lab.attention.order import CONTIGUOUS, ZIGZAG
from lab.attention.ring import ring_attention
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

B, S, H, RANKS = 2, 16, 6, 4
AXES = Axes.of({"data": 2, "context": RANKS})
FULL = Mask(causal=False)
HEADS = {"grouped": (4, 2), "all heads": (4, 1), "fewer than ranks": (2, 4)}
RING, ZIGZAG_RING = (partial(ring_attention, axis="context", order=order) for order in (CONTIGUOUS, ZIGZAG))
GATHERED, ULYSSES = (partial(kernel, axis="context") for kernel in (gathered_attention, ulysses_attention))


def arrays(heads: str, length: int = S) -> tuple[np.ndarray, ...]:
    """Queries, keys, values and the gradient of the result."""
    (K, G), draw = HEADS[heads], np.random.default_rng(0)
    shapes = (B, length, K, G, H), (B, length, K, H), (B, length, K, H), (B, length, K, G, H)
    return tuple(draw.normal(size=shape).astype(np.float32) for shape in shapes)


def with_gradients(attend, q, k, v, y_bar):
    y, pull = jax.vjp(attend, q, k, v)
    return y, *pull(y_bar)


@cache
def on_one_device(heads: str, mask: Mask) -> tuple[np.ndarray, ...]:
    with jax.default_matmul_precision("highest"):
        return jax.device_get(jax.jit(partial(with_gradients, partial(dense.attend, mask=mask)))(*arrays(heads)))


def on_ranks(kernel, heads: str, mask: Mask, order=CONTIGUOUS) -> list[np.ndarray]:
    at = np.asarray(order.whole(S, RANKS))
    spec, mesh = P("data", "context"), make_mesh(parse_target("cpu:8"), AXES)
    run = jax.shard_map(
        partial(with_gradients, partial(kernel, mask=mask)), mesh=mesh, in_specs=(spec,) * 4, out_specs=spec
    )
    with jax.default_matmul_precision("highest"):
        found = jax.device_get(jax.jit(run)(*(x[:, at] for x in arrays(heads))))
    return [x[:, np.argsort(at)] for x in found]


def assert_equal(found, expected):
    for x, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


CASES = [
    *(
        (RING, mask, heads)
        for mask, heads in (
            (CAUSAL, "grouped"),
            (FULL, "all heads"),
            (Mask(window=3), "fewer than ranks"),
            (Mask(window=6), "grouped"),
        )
    ),
    *((GATHERED, mask, heads) for mask, heads in ((CAUSAL, "all heads"), (FULL, "grouped"))),
    *(
        (ULYSSES, mask, heads)
        for mask, heads in ((CAUSAL, "fewer than ranks"), (FULL, "all heads"), (Mask(window=6), "grouped"))
    ),
]


@pytest.mark.parametrize(
    ("kernel", "mask", "heads"), CASES, ids=lambda x: x.func.__name__ if isinstance(x, partial) else str(x)
)
def test_a_sequence_over_4_ranks_gives_what_one_device_gives(kernel, mask, heads):
    assert_equal(on_ranks(kernel, heads, mask), on_one_device(heads, mask))


@pytest.mark.parametrize("heads", ["grouped", "all heads"])
def test_a_zigzag_ring_gives_what_one_device_gives(heads):
    assert_equal(on_ranks(ZIGZAG_RING, heads, CAUSAL, ZIGZAG), on_one_device(heads, CAUSAL))


@pytest.mark.parametrize("mask", [FULL, Mask(window=3)], ids=str)
def test_zigzag_order_serves_plainly_causal_masks_alone(mask):
    with pytest.raises(UsageError, match="zigzag order with .* use contiguous order"):
        on_ranks(ZIGZAG_RING, "grouped", mask, ZIGZAG)


IN_TILES = {
    "contiguous": (RING, CONTIGUOUS),
    "zigzag": (ZIGZAG_RING, ZIGZAG),
    "gathered": (GATHERED, CONTIGUOUS),
    "ulysses": (ULYSSES, CONTIGUOUS),
}


@pytest.mark.parametrize(("kernel", "order"), IN_TILES.values(), ids=IN_TILES)
def test_attention_by_tiles_of_one_key_gives_what_one_device_gives(kernel, order, monkeypatch):
    monkeypatch.setattr(tiles, "TILE", 1)
    assert_equal(on_ranks(kernel, "grouped", CAUSAL, order), on_one_device("grouped", CAUSAL))


@pytest.mark.parametrize(("keys", "size"), [(1, 1), (512, 512), (1024, 512), (768, 384), (1500, 500)])
def test_tiles_are_the_largest_of_equal_size_up_to_512_keys(keys, size):
    assert tiles.tile_size(keys) == size


def temporaries(kernel, ranks: int, length: int) -> int:
    """Bytes of one rank beside arguments and results, for eight heads of two."""
    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"data": 8 // ranks, "context": ranks}))
    spec = P("data", "context")
    run = jax.shard_map(partial(kernel, mask=CAUSAL), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    q, kv = (8 // ranks, length, 4, 2, 2), (8 // ranks, length, 4, 2)
    shapes = [
        jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, spec))
        for shape in (q, kv, kv)
    ]
    return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("kernel", "share"), [(RING, 1 / 4), (GATHERED, 1 / 2), (ULYSSES, 1 / 2)], ids=["ring", "gathered", "ulysses"]
)
def test_scores_grow_with_the_square_of_a_sequence_and_shrink_with_ranks_and_in_a_ring_with_their_square(
    kernel, share, monkeypatch
):
    """n_h (S / P)^2 for a block of a ring in one tile, n_h / P S^2 for heads or queries of a rank (Ch. 17,
    `ch17.memory_table`)."""
    monkeypatch.setattr(tiles, "TILE", 16384)
    base = temporaries(kernel, 4, 8192)
    assert temporaries(kernel, 4, 16384) / base == pytest.approx(4, rel=0.15)
    assert temporaries(kernel, 8, 8192) / base == pytest.approx(share, rel=0.25)
