"""Faults of no reported case, and other programs with the faults of the cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshes import plugins
from tests.cases.compiling import ahead_of_time_tpu, array, cpu, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import diagnosed, kinds, only
from tests.lab.diagnosis.test_cases import slices_step

SCALAR = jax.ShapeDtypeStruct((), jnp.int32)


@settings(max_examples=8, deadline=None)
@given(rows=st.sampled_from((16, 32)), columns=st.sampled_from((64, 128)), axis=st.sampled_from(("x", "y")), name=st.sampled_from(("rfft", "ifft", "fft2")))
def test_every_fft_of_any_split_batch_is_told_with_its_factor(rows, columns, axis, name):
    mesh = cpu(x=4, y=2)
    function = {"rfft": jnp.fft.rfft, "ifft": jnp.fft.ifft, "fft2": jnp.fft.fft2}[name]
    found = only(diagnosed(mesh, lambda a: function(a), array(mesh, (8, rows, columns), axis), out=P(axis)))
    assert f"fft is an operation that XLA does not split here: a f32[8,{rows},{columns}]" in found.sentence
    assert (found.axes, f"gathered {mesh.shape[axis]}x" in found.sentence) == ((axis,), True)


@settings(max_examples=8, deadline=None)
@given(before=st.permutations(("y", None, "x")), after=st.permutations((("x", "y"), None, None)))
def test_whatever_the_specs_an_array_is_told_to_be_rebuilt_only_where_it_is_gathered(before, after):
    mesh = cpu(x=4, y=2)
    found = diagnosed(mesh, lambda a, b: b + pinned(mesh, jnp.sin(a), *after), array(mesh, (16, 32, 64), *before), array(mesh, (16, 32, 64), *after), out=P(*after))
    gathered = [t for t in found.ledger.transfers if t.kind == "all_gather"]
    assert ("rebuilt_whole" in kinds(found)) == bool(gathered)


@pytest.mark.parametrize(
    ("function", "out"), [(lambda x: jnp.sort(x, axis=0), P("d")), (lambda x: jax.lax.cummax(x, axis=0), P("d")), (lambda x: jax.lax.top_k(x.T, 2), P())]
)
def test_other_operations_along_the_split_dim_are_told(function, out):
    mesh = cpu(d=8)
    assert kinds(diagnosed(mesh, function, array(mesh, (64, 4), "d"), out=out)) == ["unsplit_operation"]


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the CUDA plugin is not installed: nothing compiles for GPUs")
def test_on_gpu_top_k_gathers_the_best_of_each_device_which_is_no_fault():
    mesh = mesh_on("gpu:h100:1x8", tensor=8)
    found = diagnosed(mesh, lambda x: jax.lax.top_k(x, 8), array(mesh, (32, 131_072), None, "tensor"), out=P())
    assert ([t.payload_bytes <= 16_384 for t in found.ledger.transfers], kinds(found)) == ([True], [])


def test_a_sort_of_16_columns_that_are_exchanged_for_it_is_split():
    mesh = cpu(d=8)
    found = diagnosed(mesh, lambda x: jnp.sort(x, axis=0), array(mesh, (64, 16), "d"), out=P("d"))
    assert ({str(t.kind) for t in found.ledger.transfers}, kinds(found)) == ({"all_to_all"}, [])


@pytest.mark.parametrize("spec", [P("d"), P(None, "d")], ids=["batch", "channels"])
def test_a_convolution_in_4_groups_gathers_its_operand_and_a_depthwise_one_does_not(spec):
    mesh = cpu(d=8)

    def convolution(groups: int):
        def convolve(x, k):
            return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=groups)

        return diagnosed(mesh, convolve, array(mesh, (8, 16, 32, 32), *spec), array(mesh, (16, 16 // groups, 3, 3)), out=spec)

    found = only(convolution(4))
    assert (found.kind, "grouped convolution" in found.sentence, "f32[8,16,32,32]" in found.sentence) == ("unsplit_operation", True, True)
    assert kinds(convolution(16)) == []


def test_a_psum_of_which_each_device_keeps_a_part_could_scatter():
    mesh = cpu(d=8)

    def part(x):
        total = jax.lax.psum(x, "d")
        size = total.shape[0] // 8
        return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index("d") * size, size)

    found = only(diagnosed(mesh, jax.shard_map(part, mesh=mesh, in_specs=P("d"), out_specs=P("d")), array(mesh, (512, 64), "d")))
    assert (found.kind, found.totals.payload_bytes, "psum_scatter" in found.advice) == ("not_scattered", 16_384, True)
    whole = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    assert kinds(diagnosed(mesh, whole, array(mesh, (512, 64), "d"))) == []


def attention(x_BSD, wq, wk, wv, *, heads: int, head_dim: int = 16):
    q, k, v = (jnp.reshape(x_BSD @ w, (*x_BSD.shape[:2], -1, head_dim)) for w in (wq, wk, wv))
    q = q.reshape(*q.shape[:2], heads, -1, head_dim)
    scores = jax.nn.softmax(jnp.einsum("bqkgd,bskd->bkgqs", q, k), -1)
    return jnp.einsum("bkgqs,bskd->bqkgd", scores, v)


@pytest.mark.parametrize(("heads", "is_split"), [(1, True), (2, True), (4, False), (8, False)])
def test_fewer_key_value_heads_than_the_tensor_axis_of_4_are_split_and_gathered(heads, is_split):
    mesh = cpu(data=2, tensor=4)
    wq, wkv = array(mesh, (64, 128), None, "tensor"), array(mesh, (64, heads * 16), None, "tensor")
    found = diagnosed(mesh, lambda x, wq, wk, wv: attention(x, wq, wk, wv, heads=heads), array(mesh, (4, 64, 64), "data"), wq, wkv, wkv)
    assert kinds(found) == (["heads_split_apart"] if is_split else [])
    if is_split:
        assert f"wv f32[64,{heads * 16}] P(None, 'tensor')" in found.findings[0].sentence


@pytest.mark.parametrize(("size", "is_large"), [(512, True), (64, False)])
def test_an_array_of_1048576_bytes_closed_over_is_a_constant_of_every_device(size, is_large):
    mesh = cpu(d=8)
    table = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    found = diagnosed(mesh, lambda x: x @ table, array(mesh, (64, size), "d"), out=P("d"))
    assert [(f.kind, f.memory_bytes) for f in found.findings] == ([("array_constant", 1_048_576)] if is_large else [])


def test_a_read_of_one_layer_of_a_split_stack_gathers_the_stack():
    mesh = cpu(d=8)
    found = only(diagnosed(mesh, lambda w, i: 2 * w[i], array(mesh, (8, 64, 64), "d"), SCALAR, out=P()))
    assert (found.kind, found.totals.payload_bytes) == ("gathered_for_slice", 131_072)


def test_a_lookup_of_64_rows_that_gathers_its_table_is_told_and_one_that_sums_is_not():
    mesh = cpu(d=8)
    table, rows = array(mesh, (4096, 64), "d"), array(mesh, (64,), "d", dtype=jnp.int32)
    found = only(diagnosed(mesh, lambda t, i: pinned(mesh, t)[i], table, rows, out=P("d")))
    assert (found.kind, found.totals.payload_bytes) == ("table_gathered", 1_048_576)
    assert "t f32[4096,64] P('d', None): 1,048,576 B for rows of 16,384 B in all" in found.sentence
    assert kinds(diagnosed(mesh, lambda t, i: t[i], table, rows, out=P("d"))) == []


@ahead_of_time_tpu
def test_a_mesh_that_does_not_follow_the_torus_is_told_with_its_hops():
    good = mesh_on("tpu:v5p:2x2x4", data=2, model=8)
    shuffled = np.random.default_rng(0).permutation(np.array(list(good.devices.flat)))
    found = only(slices_step(Mesh(shuffled.reshape(2, 8), ("data", "model")), "tpu:v5p:2x2x4"))
    assert found.kind == "not_neighbours" and "neighbours along model stand 2" in found.sentence and "torus 2x2x4" in found.sentence
    assert kinds(slices_step(good, "tpu:v5p:2x2x4")) == []


@pytest.mark.parametrize(("spec", "size"), [(("d", "t"), 8192), ((None, "d"), 16384)], ids=["rows and columns", "columns"])
def test_the_gradient_of_a_split_weight_that_is_given_back_whole_is_told_and_a_split_one_is_not(spec, size):
    mesh = cpu(d=4, t=2)
    w, x = array(mesh, (32, 128), *spec), array(mesh, (256, 32), "d")

    def gradient(w, x):
        whole = pinned(mesh, w, None, *(axis for axis in spec[1:] if axis == "t"))
        return jnp.sum(jnp.square(jnp.tanh(x @ whole)))

    found = diagnosed(mesh, jax.grad(gradient), w, x, out=P(None, *(axis for axis in spec[1:] if axis == "t")))
    (whole,) = [finding for finding in found.findings if finding.kind == "given_back_whole"]
    assert (whole.axes, whole.memory_bytes) == (("d",), size)
    assert "the gradient of w f32[32,128] P(" in whole.sentence and f"is summed over d and given back whole: {size:,} B on every device" in whole.sentence
    assert "given_back_whole" not in kinds(diagnosed(mesh, jax.grad(gradient), w, x, out=P(*spec)))


def test_the_gradient_of_a_weight_that_is_whole_anyway_is_no_fault():
    mesh = cpu(d=8)
    found = diagnosed(mesh, lambda w, x: jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(w), array(mesh, (32, 128)), array(mesh, (256, 32), "d"), out=P())
    assert kinds(found) == []
