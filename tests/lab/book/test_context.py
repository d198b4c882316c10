"""Chapter 17 decided by numbers: the monoid of softmax, exchanges of heads for tokens, causal work counted from the
mask."""

import numpy as np
import pytest

from lab.book.activations import gpt_saved_bytes
from lab.book.context import (
    causal_blocks,
    hybrid_hop_bytes,
    kv_head_copies,
    least_chunk_tokens,
    ring_block_s,
    ring_s,
    ring_to_ulysses,
    ring_training_wire_bytes,
    ring_wire_bytes,
    serial_ring_s,
    skipped_share,
    ulysses_wire_bytes,
    zigzag_gain,
)

RNG = np.random.default_rng(0)
P, C, D = 4, 6, 5
S = P * C
Q, K, V = RNG.normal(size=(3, S, D))
EMPTY = (-np.inf, 0.0, np.zeros(D))


def state(q, keys, values):
    """(largest score, sum of exponentials, unnormalised output) of one query."""
    scores = keys @ q
    weights = np.exp(scores - scores.max())
    return scores.max(), weights.sum(), weights @ values


def merged(one, other):
    top = max(one[0], other[0])
    scales = [np.exp(m - top) if m > -np.inf else 0.0 for m in (one[0], other[0])]
    return top, *(scales[0] * a + scales[1] * b for a, b in zip(one[1:], other[1:], strict=True))


def attention(q_SD, k_SD, v_SD, q_at, k_at):
    """Causal by global positions."""
    scores = np.where(k_at[None] <= q_at[:, None], q_SD @ k_SD.T, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v_SD


def test_softmax_states_merge_in_any_order_and_grouping_with_an_identity():
    q = Q[0]
    parts = [state(q, K[i : i + C], V[i : i + C]) for i in range(0, S, C)]
    _, total, output = state(q, K, V)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        a, b, c, d = (parts[i] for i in order)
        for whole in (
            merged(merged(merged(a, b), c), d),
            merged(merged(a, b), merged(c, d)),
            merged(EMPTY, merged(a, merged(b, merged(c, d)))),
        ):
            np.testing.assert_allclose(whole[2] / whole[1], output / total)


def test_softmax_states_merge_to_rounding_not_exactly():
    parts = [state(Q[0], K[i : i + 2], V[i : i + 2]) for i in range(0, S, 2)]
    left, right = parts[0], parts[-1]
    for i in range(1, len(parts)):
        left, right = merged(left, parts[i]), merged(parts[-1 - i], right)
    assert (left[2] != right[2]).any()


def test_ring_attention_with_global_positions_is_causal_attention_and_with_local_ones_is_not():
    at = np.arange(S)
    whole = attention(Q, K, V, at, at)
    for r in range(P):
        mine = slice(r * C, r * C + C)
        np.testing.assert_allclose(
            attention(Q[mine], K[: (r + 1) * C], V[: (r + 1) * C], at[mine], at[: (r + 1) * C]), whole[mine]
        )
    assert np.abs(attention(Q[C : 2 * C], K[: 2 * C], V[: 2 * C], at[:C], at[: 2 * C]) - whole[C : 2 * C]).max() > 0.01


def test_the_exchange_back_joins_on_heads_not_on_tokens():
    whole = np.arange(S * P * 2).reshape(S, P * 2)
    by_heads = np.split(whole, P, 1)
    sent = [[np.split(by_heads[source], P, 0)[rank] for source in range(P)] for rank in range(P)]
    right = [np.concatenate(parts, 1) for parts in sent]
    wrong = [np.concatenate(parts, 0).reshape(C, P * 2) for parts in sent]
    assert [(right[r] == whole[r * C : (r + 1) * C]).all() for r in range(P)] == [True] * P
    assert [(wrong[r] == whole[r * C : (r + 1) * C]).all() for r in range(P)] == [False] * P


def work(token_sets, chunk):
    """Blocks of chunk x chunk that a causal mask leaves to each rank, a triangle counted by area."""
    at = np.arange(chunk * 8)
    return [sum((at <= t).sum() - 0.5 for t in tokens) / chunk**2 for tokens in token_sets]


def test_8_contiguous_chunks_have_half_to_7_and_a_half_blocks_and_zigzag_4_each():
    chunk = 16
    halves = np.split(np.arange(8 * chunk), 16)
    contiguous = work(np.split(np.arange(8 * chunk), 8), chunk)
    zigzag = work([np.concatenate([halves[r], halves[15 - r]]) for r in range(8)], chunk)
    assert contiguous == [causal_blocks(r, 8) for r in range(8)]
    assert zigzag == [4.0] * 8
    assert max(contiguous) / max(zigzag) == zigzag_gain(8) == 1.875
    assert 1 - sum(contiguous) / 64 == skipped_share(8) + 1 / 16


def test_zigzag_leaves_half_a_block_to_every_rank_in_every_step_after_the_first():
    halves = np.split(np.arange(64), 16)
    owned = [np.concatenate([halves[r], halves[15 - r]]) for r in range(8)]
    for step in range(1, 8):
        assert {float((owned[(r - step) % 8][None] <= owned[r][:, None]).mean()) for r in range(8)} == {0.5}


def ring_by_events(ranks, block_s, transfer_s):
    """Two buffers: block k comes once block k - 1 is there and block k - 2 is worked off; it is worked off in turn."""
    arrived, done = [0.0], [block_s]
    for k in range(1, ranks):
        arrived.append(max(arrived[k - 1], done[k - 2] if k > 1 else 0) + transfer_s)
        done.append(max(done[k - 1], arrived[k]) + block_s)
    return done[-1]


@pytest.mark.parametrize("block_s, transfer_s", [(10, 2), (2, 10), (3, 3)])
def test_a_ring_waits_for_ranks_minus_1_transfers_at_most(block_s, transfer_s):
    assert ring_s(8, block_s, transfer_s) == pytest.approx(ring_by_events(8, block_s, transfer_s))


def test_blocks_of_10_ms_hide_transfers_of_2_ms_altogether():
    assert ring_s(8, 10, 2) == 80 and serial_ring_s(8, 10, 2) == 94


def test_16_ranks_send_8_times_less_with_ulysses_and_1_78_times_with_8_fold_groups():
    ring, ulysses = ring_wire_bytes(2**20, 8192, 2, 16), ulysses_wire_bytes(2**20, 8192, 8192, 2, 16)
    assert ring / ulysses == ring_to_ulysses(16) == 8
    grouped = ring_wire_bytes(2**20, 1024, 2, 16) / ulysses_wire_bytes(2**20, 8192, 1024, 2, 16)
    assert grouped == pytest.approx(ring_to_ulysses(16, 1 / 8)) == pytest.approx(16 / 9)


def test_a_hop_of_the_outer_ring_takes_21_ms_at_50_gb_per_s_and_all_seven_0_150_s():
    hop = hybrid_hop_bytes(2**21, 8192, 2, 8, 8)
    assert 7 * hop / 50e9 == pytest.approx(0.1503, rel=1e-3)


def test_a_chunk_of_19_780_tokens_hides_a_hop_at_50_gb_per_s():
    assert least_chunk_tokens(2, 989e12, 50e9) == 19_780


def test_sequence_parallelism_saves_220_mb_a_gpt_3_layer():
    shape = {"tokens": 2048, "length": 2048, "embed": 12288, "heads": 96, "tensor_ranks": 8}
    assert gpt_saved_bytes(**shape) - gpt_saved_bytes(**shape, sequence_ranks=8) == 220_200_960


def test_a_block_lasts_as_long_as_the_next_ones_transfer_from_19_780_tokens_on():
    chunk = least_chunk_tokens(2, 989e12, 50e9)
    block_s, transfer_s = ring_block_s(1, 8 * chunk, 4096, 8, 989e12), 2 * chunk * 4096 * 2 / 50e9
    assert chunk == pytest.approx(19_780) and block_s == pytest.approx(transfer_s)


def test_gradients_that_travel_in_float32_make_44_of_a_rings_messages_58_of_16_bits():
    """P = 8: 14 hops forward, 14 back again, 14 of gradients and 2 home; a message is an eighth of the keys."""
    in_keys_dtype, in_float32 = (ring_training_wire_bytes(64, 3, 2, 8, *travelling) for travelling in ((), (4,)))
    assert (in_keys_dtype, in_float32) == (44 * 48, 58 * 48)


@pytest.mark.parametrize(("kv_heads", "ranks", "copies"), [(8, 4, 1), (8, 8, 1), (2, 8, 4), (1, 8, 8)])
def test_every_rank_has_a_head_of_keys(kv_heads, ranks, copies):
    assert kv_head_copies(kv_heads, ranks) == copies
