"""Attention to parts of the keys merges: in any order and grouping, exactly in reals, to rounding in floats."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.attention import dense
from lab.attention.mask import CAUSAL, Mask
from lab.attention.order import CONTIGUOUS, ZIGZAG
from lab.attention.ring import hops
from lab.attention.softmax import Partial, attended, finished, merged
from lab.meshes.errors import UsageError

pytestmark = pytest.mark.compiles

S, T = 3, 8
DRAW = np.random.default_rng(0)
Q, K, V = (DRAW.normal(size=shape).astype(np.float32) for shape in ((1, S, 2, 2, 4), (1, T, 2, 4), (1, T, 2, 4)))
SEEN = np.ones((S, T), bool)
PARTS = [attended(Q, K[:, i : i + 1], V[:, i : i + 1], SEEN[:, :1]) for i in range(T)]
NOTHING = Partial(*(jnp.full_like(x, fill) for x, fill in zip(PARTS[0], (-jnp.inf, 0, 0), strict=True)))
WHOLE = dense.attend(Q, K, V, Mask(causal=False))


def tree(parts: list[Partial], cuts: list[int]) -> Partial:
    """Merged by some tree: cut where the numbers say."""
    if len(parts) == 1:
        return parts[0]
    at = 1 + cuts[0] % (len(parts) - 1)
    return merged(tree(parts[:at], cuts[1:]), tree(parts[at:], cuts[1:]))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(T)), st.lists(st.integers(0, 99), min_size=T, max_size=T))
def test_every_order_and_tree_of_8_parts_gives_attention_to_all(order, cuts):
    y = finished(tree([PARTS[i] for i in order], cuts), jnp.float32).y
    np.testing.assert_allclose(y, WHOLE, rtol=0, atol=1e-6)


def test_two_orders_of_the_same_parts_differ_in_their_last_bits():
    one, other = (reduce(merged, parts).output for parts in (PARTS, PARTS[::-1]))
    assert (one != other).any()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(NOTHING, PARTS[0], PARTS[0]), (PARTS[0], NOTHING, PARTS[0]), (NOTHING,) * 3],
    ids=["left", "right", "both"],
)
def test_attention_to_no_key_changes_nothing_and_is_no_nan(a, b, expected):
    for x, wanted in zip(merged(a, b), expected, strict=True):
        np.testing.assert_array_equal(x, wanted)


def test_a_block_that_a_mask_hides_is_attention_to_no_key():
    hidden = attended(Q, K, V, ~SEEN)
    assert all((np.asarray(x) == y).all() for x, y in zip(hidden, (-np.inf, 0, 0), strict=True))


@pytest.mark.parametrize(("window", "expected"), [(1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (9, 2), (16, 3), (0, 3)])
def test_keys_of_chunks_of_4_go_as_far_as_a_window_reaches(window, expected):
    """The first query of a chunk sees so many tokens before it as the window has, less one."""
    assert hops(Mask(window=window), 16, 4) == expected
    at = np.arange(16)
    seen = np.asarray(Mask(window=window).seen(jnp.arange(16), jnp.arange(16)))
    assert (at[:, None] // 4 - at // 4)[seen].max() == expected


@pytest.mark.parametrize(("ranks", "first", "last"), [(2, [0, 1, 6, 7], [2, 3, 4, 5]), (4, [0, 7], [3, 4])])
def test_zigzag_ranks_have_a_piece_from_either_end(ranks, first, last):
    assert ZIGZAG.positions(8, 0, ranks).tolist() == first and ZIGZAG.positions(8, ranks - 1, ranks).tolist() == last


@pytest.mark.parametrize("hop", [1, 2, 3])
def test_a_zigzag_block_that_came_is_met_in_two_quarters_wholly_in_sight(hop):
    """And all that a causal mask leaves in sight lies in the two."""
    for rank in range(4):
        source = (rank - hop) % 4
        q_at, k_at = (np.asarray(ZIGZAG.positions(16, r, 4)).reshape(2, 2) for r in (rank, source))
        met = {(int(i), int(j)) for i, j in ZIGZAG.others(rank, source)}
        seen = {(i, j): np.asarray(CAUSAL.seen(q_at[i], k_at[j])) for i in (0, 1) for j in (0, 1)}
        assert (
            {pair for pair, block in seen.items() if block.any()}
            == met
            == {pair for pair, block in seen.items() if block.all()}
        )


@pytest.mark.parametrize(
    ("order", "length", "multiple"), [(CONTIGUOUS, 30, 4), (ZIGZAG, 12, 8)], ids=["contiguous", "zigzag"]
)
def test_a_length_that_does_not_split_tells_what_would(order, length, multiple):
    with pytest.raises(
        UsageError, match=f"length={length} is not divisible by 4 ranks.*make it a multiple of {multiple}"
    ):
        order.positions(length, 0, 4)


@pytest.mark.parametrize("mask", [{"window": -1}, {"window": 3, "causal": False}])
def test_a_window_is_causal_and_not_negative(mask):
    with pytest.raises(UsageError, match="expected 0 for all keys, or a size of a causal window"):
        Mask(**mask)


def test_attention_by_tiles_needs_memory_linear_in_length_where_scores_need_its_square():
    """The same monoid on one device (Ch. 17, `ch17.flash_tiling`): twice the length, twice the temporaries, not four
    times."""

    def by_tiles(q, k, v):
        tiles = (x.reshape(x.shape[0], -1, 16, *x.shape[2:]).swapaxes(0, 1) for x in (k, v))
        nothing = Partial(
            *(jnp.full((1, 2, 2, q.shape[1], *tail), fill) for fill, tail in ((-jnp.inf, ()), (0.0, ()), (0.0, (4,))))
        )
        state, _ = jax.lax.scan(
            lambda s, kv: (merged(s, attended(q, *kv, jnp.ones((q.shape[1], 16), bool))), None), nothing, tuple(tiles)
        )
        return finished(state, q.dtype).y

    def temporaries(run, length):
        shapes = [jax.ShapeDtypeStruct((1, length, *x.shape[2:]), jnp.float32) for x in (Q, K, V)]
        return jax.jit(run).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    tiles, whole = (
        temporaries(run, 2048) / temporaries(run, 1024)
        for run in (by_tiles, lambda *qkv: dense.attend(*qkv, Mask(causal=False)))
    )
    assert tiles < 2.1 and whole > 3.5
