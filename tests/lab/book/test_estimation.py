"""Chapter 6 against arrays of parameters and published models."""

import jax
import jax.numpy as jnp
import pytest

from lab.book.activations import gpt_saved_bytes
from lab.book.estimation import devices_needed, gpt_parameters
from lab.book.memory import model_state_bytes
from lab.book.recomputation import best_segment_layers, segmented_bytes
from lab.zoo import model


def gpt(layers, embed, vocab):
    """Matrices alone."""
    block = [(embed, 3 * embed), (embed, embed), (embed, 4 * embed), (4 * embed, embed)]
    return lambda: [jnp.zeros(shape) for shape in layers * block + 2 * [(vocab, embed)]]


def test_a_gpt_has_12_l_h_squared_and_two_tables_of_parameters():
    arrays = jax.eval_shape(gpt(96, 12288, 50257))
    assert sum(a.size for a in arrays) == gpt_parameters(96, 12288, 50257)


def test_gpt_3_comes_out_to_a_fortieth_of_a_percent_and_llama_2_70b_6_percent_short():
    gpt3, llama = model("gpt3-175b"), model("llama2-70b")
    assert gpt_parameters(gpt3.layers, gpt3.embed, gpt3.vocab, tied=True) == pytest.approx(gpt3.parameters, rel=2.5e-4)
    assert gpt_parameters(llama.layers, llama.embed, llama.vocab) / llama.parameters == pytest.approx(0.9417, rel=1e-3)


BSH = 8 * 4096 * 5120


def test_13b_in_segments_of_4_layers_on_4_ranks_keeps_33_gigabytes_and_4_with_the_batch_over_8():
    layer_bytes = gpt_saved_bytes(8 * 4096, 4096, 5120, 40)
    assert layer_bytes == 194 * BSH
    split = segmented_bytes(40, 4, 2 * BSH, layer_bytes) / 4
    assert (split, split / 8) == pytest.approx((33.4e9, 4.17e9), rel=2e-3)
    assert split + model_state_bytes(13 * 10**9, 32, 3) + 5e9 < 80e9


def test_one_layer_a_segment_is_best_for_13b_and_two_with_flash_attention_and_80_layers():
    assert best_segment_layers(40, 2, 194) == pytest.approx(0.64, abs=0.005)
    assert best_segment_layers(80, 2, 194) == pytest.approx(0.91, abs=0.005)
    assert best_segment_layers(80, 2, 34) == pytest.approx(2.17, abs=0.005)


A = 4
"""Heads of a layer small enough to trace."""


def kept(forward, backward, saved):
    """A function whose backward pass keeps `saved(x, y)` of its input and output."""
    function = jax.custom_vjp(forward)

    def run(x):
        y = forward(x)
        return y, saved(x, y)

    function.defvjp(run, lambda left, g: (backward(left, g),))
    return function


norm = kept(lambda x: x - x.mean(-1, keepdims=True), lambda x, g: g * x, lambda x, y: x)
gelu = kept(lambda x: jax.nn.gelu(x), lambda x, g: g * x, lambda x, y: x)
softmax = kept(lambda x: jax.nn.softmax(x, -1), lambda y, g: g * y, lambda x, y: y)
dropout = kept(lambda x: jnp.where(x > 0, x, 0), lambda mask, g: g * mask, lambda x, y: x > 0)


def gpt_layer(x_BSH, qkv_H3H, o_HH, up_HF, down_FH):
    """In 16 bits; norms and GELU keep their input, softmax its output, dropout a mask of a byte."""
    y_BSH = norm(x_BSH)
    q, k, v = (part.reshape(*x_BSH.shape[:2], A, -1) for part in (y_BSH @ w for w in jnp.split(qkv_H3H, 3, -1)))
    weights_BAST = dropout(softmax(jnp.einsum("bsah,btah->bast", q, k)))
    x_BSH = x_BSH + dropout(jnp.einsum("bast,btah->bsah", weights_BAST, v).reshape(x_BSH.shape) @ o_HH)
    return x_BSH + dropout(gelu(norm(x_BSH) @ up_HF) @ down_FH)


@pytest.mark.parametrize(("batch", "length", "embed"), [(2, 64, 32), (3, 32, 64)])
def test_a_gpt_layer_keeps_34_and_5_a_s_over_h_bytes_a_token_and_embed(batch, length, embed):
    H = embed
    x_BSH, *weights = (
        jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in [(batch, length, H), (H, 3 * H), (H, H), (H, 4 * H), (4 * H, H)]
    )
    leaves = jax.eval_shape(lambda *args: jax.tree.leaves(jax.vjp(gpt_layer, *args)[1]), x_BSH, *weights)
    saved = sum(a.size * a.dtype.itemsize for a in leaves if a.shape[0] == batch)
    assert (
        saved
        == gpt_saved_bytes(batch * length, length, embed, A)
        == batch * length * embed * (34 + 5 * A * length / embed)
    )


def test_tensor_parallelism_over_4_leaves_56_of_194_and_with_sequence_parallelism_48_5():
    saved = [gpt_saved_bytes(8 * 4096, 4096, 5120, 40, 4, sequence_ranks) / BSH for sequence_ranks in (1, 4)]
    assert saved == [56, 48.5]


def test_13b_of_state_fill_3_gpus_and_70b_14():
    assert [devices_needed(model_state_bytes(n * 10**9), 80e9) for n in (13, 70)] == [3, 14]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: gpt_parameters(0, 8, 8), "layers=0"),
        (lambda: devices_needed(1e9, 0), "device_bytes=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
