"""Chapters 14, 17 and 18: wire bytes of small programs as XLA compiles them, against the formulas."""

import jax
import jax.numpy as jnp
import pytest

from lab.book.context import ring_to_ulysses, ring_wire_bytes, ulysses_wire_bytes
from lab.book.data_parallel import top_k_gain
from lab.book.experts import all_to_all_wire_bytes, buffer_bytes
from lab.book.tensor_parallel import sp_layer_wire_bytes
from tests.lab.book.compiled import sent_bytes

pytestmark = pytest.mark.compiles

P, C, A, K, h = 4, 8, 8, 4, 16
S = P * C
QKV = (S, A, h), (S, K, h), (S, K, h)


def attend(q_SAh, k_SKh, v_SKh):
    q_SKGh = q_SAh.reshape(q_SAh.shape[0], k_SKh.shape[1], -1, h)
    weights_KGST = jax.nn.softmax(jnp.einsum("sKGh,tKh->KGst", q_SKGh, k_SKh))
    return jnp.einsum("KGst,tKh->sKGh", weights_KGST, v_SKh).reshape(q_SAh.shape)


def ring(q, k, v):
    blocks = [(k, v)]
    for _ in range(P - 1):
        k, v = (jax.lax.ppermute(part, "data", [(i, (i + 1) % P) for i in range(P)]) for part in (k, v))
        blocks.append((k, v))
    return attend(q, *(jnp.concatenate(parts) for parts in zip(*blocks, strict=True)))


def ulysses(q, k, v):
    by_heads = (jax.lax.all_to_all(part, "data", 1, 0, tiled=True) for part in (q, k, v))
    return jax.lax.all_to_all(attend(*by_heads), "data", 0, 1, tiled=True)


def trained(attention):
    return jax.grad(lambda *qkv: jnp.sum(attention(*qkv) ** 2), argnums=(0, 1, 2))


def test_a_ring_sends_keys_and_values_p_minus_1_times_and_their_gradients_as_often():
    once = ring_wire_bytes(S, K * h, 4, P)
    assert sent_bytes(ring, P, *QKV) == once
    assert sent_bytes(trained(ring), P, *QKV) == 2 * once


def test_ulysses_sends_four_buffers_forward_and_eight_in_training():
    once = ulysses_wire_bytes(S, A * h, K * h, 4, P)
    assert sent_bytes(ulysses, P, *QKV) == once
    assert sent_bytes(trained(ulysses), P, *QKV) == 2 * once


@pytest.mark.parametrize("kv_heads", [A, K])
def test_a_ring_sends_p_over_2_times_what_ulysses_sends_and_less_with_grouped_queries(kv_heads):
    shapes = (S, A, h), (S, kv_heads, h), (S, kv_heads, h)
    assert sent_bytes(ring, P, *shapes) / sent_bytes(ulysses, P, *shapes) == pytest.approx(
        ring_to_ulysses(P, kv_heads / A)
    )


def test_a_layer_of_experts_sends_its_padded_buffer_four_times_a_step():
    tokens, embed, top_k, factor = 16, 8, 2, 1.5
    slots = int(factor * top_k * tokens / P)

    def layer(x_XCH, w_XHH):
        sent = jax.lax.all_to_all(x_XCH, "data", 0, 1, tiled=True)
        return jax.lax.all_to_all(jnp.tanh(jnp.einsum("xch,xhi->xci", sent, w_XHH)), "data", 1, 0, tiled=True)

    step = jax.grad(lambda x, w: jnp.sum(layer(x, w) ** 2), argnums=(0, 1))
    payload = int(buffer_bytes(tokens, embed, 4, top_k, factor))
    assert sent_bytes(step, P, (P * P, slots, embed), (P, embed, embed)) == all_to_all_wire_bytes(payload, P)


def block(x_SH, up, down):
    x_SH = jax.lax.all_gather(x_SH, "data", tiled=True)
    return jax.lax.psum_scatter(jnp.tanh(x_SH @ up[0]) @ down[0], "data", tiled=True)


@pytest.mark.parametrize("regathers", [0, 2])
def test_two_sequence_parallel_blocks_send_8_units_a_step_and_10_where_inputs_are_gathered_again(regathers):
    kept = block if not regathers else jax.checkpoint(block)

    def loss(x, up, down):
        # A loop each way, whose body stands in the text once; unrolled, jax 0.10.2 takes the second gather for the
        # first.
        x, _ = jax.lax.scan(lambda x, _: (x + jnp.sin(kept(x, up, down)), None), x, length=6)
        return jnp.sum(x**2)

    a_block = sent_bytes(jax.grad(loss, argnums=(0, 1, 2)), P, (S, 24), (P, 24, 20), (P, 20, 24))
    assert 2 * a_block == sp_layer_wire_bytes(S, 24, 4, P, regathers)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_top_percent_of_each_rank_gains_100_over_ranks_in_float32(ranks):
    elements, kept = 10_000, 100

    def dense(g):
        return jax.lax.psum(g, "data")

    def sparse(g):
        _, places = jax.lax.top_k(jnp.abs(g[0]), kept)
        values, places = (jax.lax.all_gather(part, "data").ravel() for part in (g[0, places], places))
        return jnp.zeros(elements).at[places].add(values)[None]

    gain = sent_bytes(dense, ranks, (ranks, elements), replicated=True) / sent_bytes(
        sparse, ranks, (ranks, elements), replicated=True
    )
    assert gain == pytest.approx(top_k_gain(kept / elements, ranks, value_bytes=4)) == pytest.approx(100 / ranks)
