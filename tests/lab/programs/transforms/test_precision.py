"""Weights and gradients in 8 bits: what arrives, and what a step computes with it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lab.compile.equations import equations
from lab.core.ledger import Kind
from lab.harness.decoder.step import SMALL, random_tokens
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.strategy import is_split, split_dim
from lab.programs.strategies.wire import Narrow, Wire, on_wire, quantised, rounded, scattered, seen_as
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.precision import (
    RECIPES,
    gathered_in,
    multiplied_in,
    reduced_in,
    scaled_product,
    tiled_product,
)
from tests.cases.compiling import cpu

pytestmark = pytest.mark.compiles

TILES_OF_2 = Narrow("f8e4m3fn", block=2)


def drawn(*sizes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(sizes).astype(np.float32)


def test_one_scale_of_a_tensor_brings_its_largest_to_448():
    x_ADB = drawn(3, 8, 16)
    scale = np.abs(x_ADB).max() / np.float32(448)
    expected = (x_ADB / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    np.testing.assert_allclose(rounded(x_ADB, RECIPES["tensor"]), expected, rtol=1e-6)


@pytest.mark.parametrize(("sizes", "axis"), [((3, 4, 256), (3, 4, 2, 128)), ((256, 4, 1), (2, 128, 4, 1))])
def test_each_128_values_beside_the_split_dim_share_a_scale(sizes, axis):
    x_ADB = drawn(*sizes)
    parts = x_ADB.reshape(axis)
    scale = np.abs(parts).max(axis.index(128), keepdims=True) / np.float32(448)
    expected = (parts / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    np.testing.assert_allclose(rounded(x_ADB, RECIPES["tile128"]), expected.reshape(sizes), rtol=1e-6)


def test_a_microscaled_block_has_the_exponent_of_its_largest_less_eight():
    _, scale = quantised(jnp.full((1, 1, 32), 3.0), RECIPES["mxfp8"])
    assert (scale.dtype, scale.item()) == (jnp.uint8, 127 + 1 - 8)


def test_a_microscaled_value_beyond_448_is_the_largest_there_is():
    """500 has exponent 8, so that its block's scale is 1."""
    x_ADB = np.zeros((1, 1, 32), np.float32)
    x_ADB[..., 0] = 500
    assert rounded(x_ADB, RECIPES["mxfp8"])[0, 0, 0] == 448


@pytest.mark.parametrize("recipe", RECIPES.values())
def test_zeros_stay_zeros(recipe):
    np.testing.assert_array_equal(rounded(np.zeros((1, 2, 128), np.float32), recipe), 0)


def one_device(shape, weight):
    """Mean loss and gradients, each weight as `weight` makes it; the gradients pass."""
    hooks = CollectiveHooks(weight=lambda w, dims: w + jax.lax.stop_gradient(weight(w, dims) - w))
    return jax.value_and_grad(lambda state, *batch: program.mean_loss(state, *batch, shape, hooks))


def of_tiles(w, dims):
    if not is_split(dims):
        return w
    return rounded(w.reshape(seen_as(w.shape, split_dim(dims))), TILES_OF_2).reshape(w.shape)


def test_eight_ranks_compute_with_gathered_tiles_what_one_does_with_rounded_weights():
    shape, mesh = replace(SMALL, layers=2), cpu(fsdp=8)
    strategy = ZERO3 | gathered_in(TILES_OF_2)
    state, batch = program.initial_state(strategy, shape), random_tokens(shape)
    function, shapes = program.gradients(strategy, "explicit", shape, mesh)
    placed = jax.device_put((state, *batch), jax.tree.map(lambda x: x.sharding, shapes))
    with jax.default_matmul_precision("highest"):
        loss, found = function(*placed)
        wanted, expected = jax.jit(one_device(shape, of_tiles))(state.master, *batch)
        plain, _ = jax.jit(one_device(shape, lambda w, dims: w))(state.master, *batch)
    assert abs(loss - wanted) < 1e-5 < 1e-4 < abs(plain - wanted)
    for g, e in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(g, e, atol=1e-5 * np.abs(e).max())


@pytest.mark.parametrize("recipe", ["int8", "tensor"])
def test_what_a_rank_keeps_of_a_narrow_sum_is_the_sum_of_the_rounded_parts(recipe):
    """So it is of a gathered weight's gradient. The one scale of a tensor is that of all ranks' largest."""
    mesh, g_PDF = cpu(fsdp=8), drawn(8, 16, 256) * 2 ** np.arange(8, dtype=np.float32)[:, None, None]
    narrow, over = RECIPES[recipe], ("fsdp",)

    def kept(g_1DF, w_DF):
        def gathered(w_DF, dims):
            return jax.lax.all_gather(w_DF, over, axis=w_DF.ndim - 2, tiled=True)

        pull = jax.vjp(lambda w_DF: on_wire(gathered, Wire(gradients=narrow), over, 0, (), w_DF), w_DF)[1]
        return scattered(g_1DF[0], narrow, over, 0), *pull(g_1DF[0])

    on_ranks = jax.shard_map(kept, mesh=mesh, in_specs=P("fsdp"), out_specs=P("fsdp"))
    parts = g_PDF[None] if recipe == "tensor" else g_PDF[:, None]
    expected = np.asarray(rounded(parts, narrow)).reshape(g_PDF.shape).sum(0)
    for found in jax.jit(on_ranks)(g_PDF, drawn(16, 256)):
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert np.abs(expected - g_PDF.sum(0)).max() > 1e-3 * np.abs(expected).max()


def test_weights_and_gradients_travel_as_values_of_8_bits_and_a_scale_for_each_128():
    narrow, over = RECIPES["tile128"], ("fsdp",)

    def both(w_DF, g_1DF):
        def gathered(w_DF, dims):
            return jax.lax.all_gather(w_DF, over, axis=w_DF.ndim - 2, tiled=True)

        return on_wire(gathered, Wire(narrow), over, 0, (), w_DF), scattered(g_1DF[0], narrow, over, 0)

    on_ranks = jax.shard_map(both, mesh=cpu(fsdp=8), in_specs=P("fsdp"), out_specs=P("fsdp"))
    traced = jax.jit(on_ranks).trace(drawn(16, 256), drawn(8, 16, 256)).jaxpr
    sent = {
        (at.primitive, at.equation.invars[0].aval.dtype.name, at.equation.outvars[0].aval.size)
        for at in equations(traced)
        if at.primitive in ("all_gather", "all_to_all", "psum", "pmax")
    }
    values, scales = ("float8_e4m3fn", 16 * 256), ("float32", 16 * 256 // 128)
    assert sent == {(kind, *each) for kind in ("all_gather", "all_to_all") for each in (values, scales)}


def test_two_formats_of_one_wire_are_refused():
    with pytest.raises(UsageError, match="two formats for weights on the wire"):
        gathered_in(RECIPES["tensor"]) | gathered_in(RECIPES["int8"])


def test_a_format_of_gathered_weights_where_none_is_gathered_is_refused():
    with pytest.raises(UsageError, match="gathers no weights, so there are none to send in a format"):
        (DATA_PARALLEL | gathered_in(RECIPES["int8"])).predict(DecoderShape().shrunk(), Axes.of({"data": 8}))


def test_a_format_that_no_rounding_knows_is_refused():
    with pytest.raises(UsageError, match="found s4, expected one of f8e4m3fn, f8e5m2, s8"):
        Narrow("s4")


def test_weights_and_gradients_each_have_a_format():
    wire = (ZERO3 | gathered_in(RECIPES["tensor"]) | reduced_in(RECIPES["int8"])).wire
    assert (wire.weights, wire.gradients) == (RECIPES["tensor"], RECIPES["int8"])


@pytest.mark.parametrize(("recipe", "scale_bytes"), [("f32", 4), ("u8", 1)])
def test_every_narrow_message_has_its_scales_beside_it_and_is_half_of_bfloat16s(recipe, scale_bytes):
    blocks, axes, shape = Narrow("f8e4m3fn", block=16, scale=recipe), Axes.of({"fsdp": 8}), replace(SMALL, dtype="bf16")
    asked = (ZERO3 | gathered_in(blocks) | reduced_in(blocks)).predict(shape, axes).transfers
    narrow = sorted(about(t) for t in asked if t.dtype == "f8e4m3fn")
    scales = sorted(about(t) for t in asked if t.scope.endswith("/scale"))
    assert [(*rest, size * scale_bytes // 16) for *rest, size in narrow] == [
        (scope.removesuffix("/scale"), *rest) for scope, *rest in scales
    ]
    wide = [t for t in ZERO3.predict(shape, axes).transfers if t.kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)]
    assert [2 * size for *_, size in narrow] == [size for *_, size in sorted(map(about, wide))]


def about(t):
    return t.scope, str(t.phase), t.executions, t.payload_bytes


def test_of_each_tensor_one_largest_magnitude_is_found_for_each_message():
    strategy = ZERO3 | gathered_in(RECIPES["tensor"]) | reduced_in(RECIPES["tensor"])
    asked = strategy.predict(SMALL, Axes.of({"fsdp": 8})).transfers
    narrow = sorted(about(t)[:3] for t in asked if t.dtype == "f8e4m3fn")
    sums = [about(t) for t in asked if t.kind is Kind.ALL_REDUCE]
    assert all((*each, 4) in sums for each in narrow) and len(narrow) > 10
    assert sum(t.payload_bytes == 4 and t.scope in {scope for scope, *_ in narrow} for t in asked) == len(narrow)


def test_blocks_that_do_not_fill_a_weight_are_refused_with_its_sizes():
    strategy = ZERO3 | gathered_in(RECIPES["tile128"])
    with pytest.raises(UsageError, match=r"blocks of 128 do not divide the \d+ values beside the split dim"):
        strategy.predict(SMALL, Axes.of({"fsdp": 8}))


def in_float8(x, dtype=ml_dtypes.float8_e4m3fn, axis=None):
    """Rounded by NumPy, the largest of all or of each 128 along a dim at the format's; in float64."""
    tiles = x[None] if axis is None else np.moveaxis(x, axis, -1).reshape(*np.delete(x.shape, axis), -1, 128)
    scale = np.abs(tiles).max(None if axis is None else -1, keepdims=True) / np.float32(ml_dtypes.finfo(dtype).max)
    found = ((tiles / scale).astype(dtype).astype(np.float64) * scale).reshape(-1, *tiles.shape[1:])
    return found[0] if axis is None else np.moveaxis(found.reshape(*tiles.shape[:-2], -1), -1, axis)


@pytest.mark.parametrize("multiply", [scaled_product, tiled_product])
def test_products_are_those_of_float8_values_that_share_a_scale_along_what_is_summed(multiply):
    """And err by the rounding of both: 2.6 % a value of E4M3, in E5M2 (gradients, where a tensor has one scale) twice."""
    x_TK, w_KF, g_TF = drawn(256, 256), drawn(256, 128, seed=1), drawn(256, 128, seed=2)
    of, of_g = (lambda x, _: in_float8(x), lambda g, _: in_float8(g, ml_dtypes.float8_e5m2))
    if multiply is tiled_product:
        of = of_g = lambda x, axis: in_float8(x, axis=axis)
    y_TF, pull = jax.vjp(multiply, x_TK, w_KF)
    dx_TK, dw_KF = pull(g_TF)
    for found, expected, exact, most in (
        (y_TF, of(x_TK, 1) @ of(w_KF, 0), x_TK @ w_KF, 0.04),
        (dx_TK, of_g(g_TF, 1) @ of(w_KF, 1).T, g_TF @ w_KF.T, 0.065),
        (dw_KF, of(x_TK, 0).T @ of_g(g_TF, 0), x_TK.T @ g_TF, 0.065),
    ):
        assert 0.03 < np.std(found - exact) / np.std(exact) < most
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_products_in_no_known_recipe_are_refused():
    with pytest.raises(UsageError, match="products=mxfp9: expected one of tensor, tile128"):
        multiplied_in("mxfp9")


def test_products_of_microscaled_blocks_are_refused_with_what_compilers_do_to_them():
    with pytest.raises(UsageError, match=r"products=mxfp8: no step of the lab multiplies blocks .* \(G16\)"):
        multiplied_in("mxfp8")
