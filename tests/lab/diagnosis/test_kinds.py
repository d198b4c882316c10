"""Faults of no reported case, and other programs with the faults of the cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.meshes import plugins
from tests.cases.compiling import ahead_of_time_tpu, array, cpu, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import diagnosed, kinds, only
from tests.lab.diagnosis.test_cases import slices_step

pytestmark = pytest.mark.compiles

SCALAR = jax.ShapeDtypeStruct((), jnp.int32)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.sampled_from((16, 32)),
    columns=st.sampled_from((64, 128)),
    axis=st.sampled_from(("x", "y")),
    name=st.sampled_from(("rfft", "ifft", "fft2")),
)
def test_every_fft_of_any_split_batch_is_told_with_its_factor(rows, columns, axis, name):
    mesh = cpu(x=4, y=2)
    function = {"rfft": jnp.fft.rfft, "ifft": jnp.fft.ifft, "fft2": jnp.fft.fft2}[name]
    found = only(diagnosed(mesh, lambda a: function(a), array(mesh, (8, rows, columns), axis), out=P(axis)))
    assert f"XLA does not partition fft here: a f32[8,{rows},{columns}]" in found.sentence
    assert (found.axes, f"gathered, {mesh.shape[axis]}x its shard" in found.sentence) == ((axis,), True)


@settings(max_examples=8, deadline=None)
@given(before=st.permutations(("y", None, "x")), after=st.permutations((("x", "y"), None, None)))
def test_whatever_the_specs_an_array_is_told_to_be_rebuilt_only_where_it_is_gathered(before, after):
    mesh = cpu(x=4, y=2)
    found = diagnosed(
        mesh,
        lambda a, b: b + pinned(mesh, jnp.sin(a), *after),
        array(mesh, (16, 32, 64), *before),
        array(mesh, (16, 32, 64), *after),
        out=P(*after),
    )
    gathered = [t for t in found.ledger.transfers if t.kind == "all_gather"]
    assert ("rebuilt_whole" in kinds(found)) == bool(gathered)


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (lambda x: jnp.sort(x, axis=0), P("d")),
        (lambda x: jax.lax.cummax(x, axis=0), P("d")),
        (lambda x: jax.lax.top_k(x.T, 2), P()),
    ],
)
def test_other_operations_along_the_split_dim_are_told(function, out):
    mesh = cpu(d=8)
    assert kinds(diagnosed(mesh, function, array(mesh, (64, 4), "d"), out=out)) == ["unsplit_operation"]


@pytest.mark.parametrize(
    "show",
    [lambda x: jax.debug.print("{}", x), lambda x: jax.debug.callback(lambda value: None, x)],
    ids=["print", "callback"],
)
def test_to_show_a_split_array_gathers_all_65536_bytes_of_it(show):
    mesh = cpu(d=8)

    def doubled(x):
        show(x)
        return 2 * x

    found = only(diagnosed(mesh, doubled, array(mesh, (64, 256), "d"), out=P("d")))
    assert (
        found.kind,
        found.totals.payload_bytes,
        found.sentence.startswith("XLA cannot look into the call debug_"),
    ) == (
        "unsplit_operation",
        65_536,
        True,
    )


on_gpu = pytest.mark.skipif(
    not plugins.installed("gpu"), reason="the CUDA plugin is not installed: nothing compiles for GPUs"
)


@on_gpu
def test_on_gpu_top_k_gathers_the_best_of_each_device_which_is_no_fault():
    mesh = mesh_on("gpu:h100:1x8", tensor=8)
    found = diagnosed(mesh, lambda x: jax.lax.top_k(x, 8), array(mesh, (32, 131_072), None, "tensor"), out=P())
    assert ([t.payload_bytes <= 16_384 for t in found.ledger.transfers], kinds(found)) == ([True], [])


def test_a_sort_of_16_columns_that_are_exchanged_for_it_is_split():
    mesh = cpu(d=8)
    found = diagnosed(mesh, lambda x: jnp.sort(x, axis=0), array(mesh, (64, 16), "d"), out=P("d"))
    assert ({str(t.kind) for t in found.ledger.transfers}, kinds(found)) == ({"all_to_all"}, [])


@pytest.mark.parametrize(
    ("target", "spec"),
    [("cpu:8", P("d")), ("cpu:8", P(None, "d")), pytest.param("gpu:h100:1x8", P("d"), marks=on_gpu)],
    ids=["batch", "channels", "batch on gpu"],
)
def test_a_convolution_in_4_groups_gathers_its_operand_and_a_depthwise_one_does_not(target, spec):
    mesh = mesh_on(target, d=8)

    def convolution(groups: int):
        def convolve(x, k):
            return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", feature_group_count=groups)

        return diagnosed(
            mesh, convolve, array(mesh, (8, 16, 32, 32), *spec), array(mesh, (16, 16 // groups, 3, 3)), out=spec
        )

    found = only(convolution(4))
    assert (found.kind, "grouped convolution" in found.sentence, "f32[8,16,32,32]" in found.sentence) == (
        "unsplit_operation",
        True,
        True,
    )
    assert target != "cpu:8" or kinds(convolution(16)) == []


@pytest.mark.parametrize("reduce", [jax.lax.psum, jax.lax.pmean])
def test_a_sum_of_which_each_device_keeps_a_part_could_scatter(reduce):
    mesh = cpu(d=8)

    def part(x):
        total = reduce(x, "d")
        size = total.shape[0] // 8
        return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index("d") * size, size)

    found = only(
        diagnosed(mesh, jax.shard_map(part, mesh=mesh, in_specs=P("d"), out_specs=P("d")), array(mesh, (512, 64), "d"))
    )
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
    found = diagnosed(
        mesh,
        lambda x, wq, wk, wv: attention(x, wq, wk, wv, heads=heads),
        array(mesh, (4, 64, 64), "data"),
        wq,
        wkv,
        wkv,
    )
    assert kinds(found) == (["heads_split_apart"] if is_split else [])
    if is_split:
        assert f"wv f32[64,{heads * 16}] P(None, 'tensor')" in found.findings[0].sentence


def repeated_heads(x_BSD, wq, wk, wv):
    q, k, v = (jnp.reshape(x_BSD @ w, (*x_BSD.shape[:2], -1, 16)) for w in (wq, wk, wv))
    k, v = (jnp.repeat(heads, q.shape[2] // heads.shape[2], axis=2) for heads in (k, v))
    return jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bshd->bhqs", q, k), -1), v)


@pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:1x8", marks=on_gpu)])
def test_two_heads_repeated_to_the_queries_eight_are_told_though_a_gpu_gathers_both_at_once(target):
    mesh = mesh_on(target, data=2, tensor=4)
    wq, wkv = array(mesh, (64, 128), None, "tensor"), array(mesh, (64, 32), None, "tensor")
    found = diagnosed(mesh, repeated_heads, array(mesh, (4, 64, 64), "data"), wq, wkv, wkv)
    assert kinds(found) == ["heads_split_apart"]
    assert (
        len(found.findings[0].transfers) == 2
        and "wk f32[64,32]" in found.findings[0].sentence
        and "wv f32[64,32]" in found.findings[0].sentence
    )


def gated(x, w):
    gate, up = jnp.split(x @ w, 2, axis=-1)
    return jax.nn.silu(gate) * up


@pytest.mark.parametrize(
    ("function", "spec", "out", "words"),
    [
        (
            gated,
            P(),
            P(None, "d"),
            "splitting an array along a sharded dim moves 40,960 B (collective-permute): a shard of the result is made "
            "of parts of several shards of the product with w f32[256,512]",
        ),
        (
            lambda x, w: 2 * x.reshape(4, 16, 256),
            P("d"),
            P(None, "d"),
            "a reshape that merges or splits a sharded dim moves 16,384 B (all-to-all and collective-permute)",
        ),
        (lambda x, w: jnp.tile(x, (2, 1)), P("d"), P("d"), "a repetition along a sharded dim moves 24,576 B"),
    ],
    ids=["gate and up in one weight", "micro-batches", "tile"],
)
def test_dims_taken_apart_cut_and_repeated_along_the_split_one_are_told(function, spec, out, words):
    mesh = cpu(d=8)
    found = only(diagnosed(mesh, function, array(mesh, (64, 256), *spec), array(mesh, (256, 512), None, "d"), out=out))
    assert found.kind == "moved_to_reshape" and found.sentence.startswith(words)


def test_a_sum_every_tick_of_what_all_stages_but_one_mask_is_a_broadcast():
    mesh = cpu(stage=4, data=2)

    def stages(w_1DD, xs_TRD):
        at = jax.lax.axis_index("stage")

        def tick(state_RD, x_RD):
            state_RD = jnp.tanh(jnp.where(at == 0, x_RD, state_RD) @ w_1DD[0])
            last_RD = jax.lax.psum(jnp.where(at == 3, state_RD, 0), "stage")
            return jax.lax.ppermute(state_RD, "stage", [(i, (i + 1) % 4) for i in range(4)]), last_RD

        return jax.lax.scan(tick, jnp.zeros_like(xs_TRD[0]), xs_TRD)[1]

    function = jax.shard_map(
        stages, mesh=mesh, in_specs=(P("stage"), P(None, "data")), out_specs=P(None, "data"), check_vma=False
    )
    told = diagnosed(mesh, function, array(mesh, (4, 64, 64), "stage"), array(mesh, (7, 32, 64), None, "data"))
    assert kinds(told) == ["last_stage_broadcast", "last_message_unused"]
    assert (told.findings[0].totals.executions, told.findings[0].totals.payload_bytes) == (7, 7 * 4_096)


@pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:1x8", marks=on_gpu)])
def test_tokens_gathered_to_one_expert_a_device_are_told(target):
    mesh = mesh_on(target, ep=8)

    def layer(x_TD, sent_TEC, w_EDF):
        z_ECD = pinned(mesh, jnp.einsum("tec,td->ecd", sent_TEC, x_TD), "ep")
        h_ECF = pinned(mesh, jnp.einsum("ecd,edf->ecf", z_ECD, w_EDF), "ep")
        return jnp.einsum("tec,ecf->tf", sent_TEC, h_ECF)

    found = diagnosed(
        mesh,
        layer,
        array(mesh, (256, 64), "ep"),
        array(mesh, (256, 8, 32), "ep"),
        array(mesh, (8, 64, 128), "ep"),
        out=P("ep"),
    )
    assert kinds(found) == ["experts_gathered"]
    assert found.findings[0].totals.payload_bytes == 65_536 + 131_072


@pytest.mark.parametrize(("size", "is_large"), [(512, True), (64, False)])
def test_an_array_of_1048576_bytes_closed_over_is_a_constant_of_every_device(size, is_large):
    mesh = cpu(d=8)
    table = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    found = diagnosed(mesh, lambda x: x @ table, array(mesh, (64, size), "d"), out=P("d"))
    assert [(f.kind, f.memory_bytes) for f in found.findings] == ([("array_constant", 1_048_576)] if is_large else [])
    assert all("test_kinds.py" in finding.origin for finding in found.findings)


def test_a_read_of_one_layer_of_a_split_stack_gathers_the_stack():
    mesh = cpu(d=8)
    found = only(diagnosed(mesh, lambda w, i: 2 * w[i], array(mesh, (8, 64, 64), "d"), SCALAR, out=P()))
    assert (found.kind, found.totals.payload_bytes) == ("gathered_for_slice", 131_072)


def test_an_addition_to_four_rows_gathers_all_64_and_one_by_an_index_array_none():
    mesh = cpu(d=8)
    x, rows = array(mesh, (64, 256), "d"), array(mesh, (4, 256))
    found = only(diagnosed(mesh, lambda x, u: x.at[5:9].add(u), x, rows, out=P("d")))
    assert (found.kind, found.totals.payload_bytes) == ("gathered_for_slice", 65_536)
    assert kinds(diagnosed(mesh, lambda x, u: x.at[jnp.arange(5, 9)].add(u), x, rows, out=P("d"))) == []


def test_a_lookup_of_64_rows_that_gathers_its_table_is_told_and_one_that_sums_is_not():
    mesh = cpu(d=8)
    table, rows = array(mesh, (4096, 64), "d"), array(mesh, (64,), "d", dtype=jnp.int32)
    found = only(diagnosed(mesh, lambda t, i: pinned(mesh, t)[i], table, rows, out=P("d")))
    assert (found.kind, found.totals.payload_bytes) == ("table_gathered", 1_048_576)
    assert "t f32[4096,64] P('d', None), 1,048,576 B, to read rows of 16,384 B in all" in found.sentence
    assert kinds(diagnosed(mesh, lambda t, i: t[i], table, rows, out=P("d"))) == []


@ahead_of_time_tpu
def test_a_mesh_that_does_not_follow_the_torus_is_told_once_with_its_hops_along_each_axis():
    good = mesh_on("tpu:v5p:2x2x4", data=2, model=8)
    shuffled = np.random.default_rng(0).permutation(np.array(list(good.devices.flat)))
    one, both = (
        only(slices_step(Mesh(shuffled.reshape(sizes), ("data", "model")), "tpu:v5p:2x2x4"))
        for sizes in ((2, 8), (4, 4))
    )
    assert (one.kind, one.axes, one.edit.value) == ("not_neighbours", ("model",), "the mesh")
    assert one.sentence.startswith("neighbours in the mesh are on average 2")
    assert one.sentence.endswith("hops apart along model (1.1 with jax.make_mesh), in the torus of 2x2x4 chips")
    assert (both.kind, set(both.axes)) == ("not_neighbours", {"data", "model"})
    assert "apart along data (1 with jax.make_mesh) and " in both.sentence
    assert kinds(slices_step(good, "tpu:v5p:2x2x4")) == []


@pytest.mark.parametrize(
    ("spec", "size"), [(("d", "t"), 8192), ((None, "d"), 16384)], ids=["rows and columns", "columns"]
)
def test_the_gradient_of_a_split_weight_that_is_given_back_whole_is_told_and_a_split_one_is_not(spec, size):
    mesh = cpu(d=4, t=2)
    w, x = array(mesh, (32, 128), *spec), array(mesh, (256, 32), "d")

    def gradient(w, x):
        whole = pinned(mesh, w, None, *(axis for axis in spec[1:] if axis == "t"))
        return jnp.sum(jnp.square(jnp.tanh(x @ whole)))

    found = diagnosed(mesh, jax.grad(gradient), w, x, out=P(None, *(axis for axis in spec[1:] if axis == "t")))
    (whole,) = [finding for finding in found.findings if finding.kind == "given_back_whole"]
    assert (whole.axes, whole.memory_bytes) == (("d",), size)
    assert (
        "the gradient of w f32[32,128] P(" in whole.sentence
        and f"is summed over d and returned whole: {size:,} B on every device" in whole.sentence
    )
    assert "given_back_whole" not in kinds(diagnosed(mesh, jax.grad(gradient), w, x, out=P(*spec)))


def test_the_gradient_of_a_weight_is_not_that_of_a_batch_which_is_as_large():
    mesh = cpu(data=2, tensor=4)

    def loss(w_DF, x_BD):
        return jnp.mean(jnp.square(jnp.tanh(x_BD @ w_DF)))

    args = array(mesh, (64, 256), None, "tensor"), array(mesh, (64, 64), "data")
    found = diagnosed(mesh, jax.grad(loss), *args, out=P(None, "tensor"))
    assert [(str(t.kind), t.axes) for t in found.ledger.transfers] == [("all_reduce", ("data",))]
    assert kinds(found) == []


def test_of_two_weights_whose_gradients_have_the_same_shape_each_is_told_by_its_name():
    mesh = cpu(d=8)
    up, down, x = (array(mesh, shape, "d") for shape in ((32, 128), (128, 32), (256, 32)))

    def loss(w_up, w_down, x):
        return jnp.sum(jnp.square(jnp.tanh(x @ pinned(mesh, w_up)) @ pinned(mesh, w_down)))

    found = diagnosed(mesh, jax.grad(loss, argnums=(0, 1)), up, down, x, out=P())
    told = {f.sentence.split()[3]: f.memory_bytes for f in found.findings if f.kind == "given_back_whole"}
    assert told == {"w_up": 16_384, "w_down": 16_384}


def test_the_gradient_of_a_weight_that_is_whole_anyway_is_no_fault():
    mesh = cpu(d=8)
    found = diagnosed(
        mesh,
        lambda w, x: jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(w),
        array(mesh, (32, 128)),
        array(mesh, (256, 32), "d"),
        out=P(),
    )
    assert kinds(found) == []


def scanned(w_LDD, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w_LDD)[0] ** 2)


def test_gradients_that_a_scan_stacks_are_given_back_whole_where_nothing_splits_them():
    mesh = cpu(fsdp=8)
    w, x = array(mesh, (4, 64, 64), None, "fsdp"), array(mesh, (1024, 64), "fsdp")
    found = only(diagnosed(mesh, jax.grad(scanned), w, x, out=P()))
    assert (found.kind, found.totals.executions, found.memory_bytes) == ("given_back_whole", 4, 65_536)
    assert "the gradient of w_LDD f32[4,64,64] P(None, 'fsdp', None) is summed over fsdp" in found.sentence


def test_a_stack_of_four_layers_gathered_before_the_scan_is_kept_whole():
    mesh = cpu(fsdp=8)
    w, x = array(mesh, (4, 64, 64), None, "fsdp"), array(mesh, (1024, 64), "fsdp")
    found = only(diagnosed(mesh, jax.grad(lambda w, x: scanned(pinned(mesh, w), x)), w, x, out=P(None, "fsdp")))
    assert (found.kind, found.memory_bytes) == ("kept_whole", 65_536)
    assert found.sentence.startswith(
        "1 sharded argument (w f32[4,64,64] P(None, 'fsdp', None), a stack of 4) is gathered once"
    )


def test_a_product_that_is_asked_for_whole_is_no_fault_though_an_argument_has_its_shape():
    mesh = cpu(d=8)
    assert (
        kinds(diagnosed(mesh, jnp.matmul, array(mesh, (64, 512), None, "d"), array(mesh, (512, 512), "d"), out=P()))
        == []
    )


@on_gpu
def test_on_gpu_weights_that_are_gathered_at_once_are_told_one_by_one():
    mesh = mesh_on("gpu:h100:1x8", fsdp=8)
    weights = {
        "up": array(mesh, (256, 1024), "fsdp"),
        "down": array(mesh, (1024, 256), "fsdp"),
        "out": array(mesh, (256, 256), "fsdp"),
    }

    def loss(w, x):
        return jnp.mean((jax.nn.gelu(jax.nn.gelu(x @ w["up"]) @ w["down"]) @ w["out"]) ** 2)

    found = diagnosed(
        mesh, jax.grad(loss), weights, array(mesh, (4096, 256), "fsdp"), out=dict.fromkeys(weights, P("fsdp"))
    )
    assert [(str(t.kind), len(t.parts)) for t in found.ledger.transfers if t.kind == "all_gather"] == [
        ("all_gather", 3)
    ]
    assert (only(found).kind, only(found).memory_bytes) == ("kept_whole", 1_048_576 + 262_144)
