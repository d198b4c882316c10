"""The reported cases whose programs do something that they need not: what a person is told, with array or operation,
line and bytes.

Those of matrix products that are read from a ledger alone, and those of the environment, stand in tests/cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.core.note import NoteKind
from tests.cases import test_gradients as gradients
from tests.cases import test_matmuls as matmuls
from tests.cases import test_pipeline as pipelines
from tests.cases import test_shard_map as mapped
from tests.cases.compiling import ahead_of_time_tpu, array, cpu, mesh_on, pinned, tpu
from tests.lab.diagnosis.diagnosing import diagnosed, kinds, line, only

pytestmark = pytest.mark.compiles

SCALAR = jax.ShapeDtypeStruct((), jnp.int32)
on_both = pytest.mark.parametrize("on", [cpu, pytest.param(tpu, marks=ahead_of_time_tpu)], ids=["cpu", "tpu"])


@on_both
def test_c01_between_clashing_tilings_a_is_rebuilt_whole_8_times_its_shard(on):
    mesh = on(x=4, y=2)
    after = P(None, ("x", "y"), None)

    def moved(a, b):
        return b + pinned(mesh, jnp.sin(a), *after)

    found = only(
        diagnosed(mesh, moved, array(mesh, (16, 32, 64), "y", None, "x"), array(mesh, (16, 32, 64), *after), out=after)
    )
    assert found.kind == "rebuilt_whole"
    assert found.sentence.startswith(
        "a f32[16,32,64] P('y', None, 'x') is gathered whole on every device, 8x its shard"
    )
    assert (found.origin, found.totals.wire_bytes) == (line(moved, 1), 114_688)
    assert "two steps" in found.advice
    # Where each device cuts says the spec, also without a compiler's remark.
    assert found.edit.write == "a constraint to P('y', 'x', None) before the one that is there"
    assert {row.axes: row.after for row in found.account.sent if row.after} == {"x": 12_288, "y": 8_192}


@pytest.mark.parametrize("fft", [lambda a: jnp.fft.fft(a, axis=1), jax.vmap(jnp.fft.fft)], ids=["axis", "vmap"])
def test_c02_fft_gathers_its_batch_of_131072_bytes_and_every_device_computes_all_of_it(fft):
    mesh = cpu(i=4)
    found = only(diagnosed(mesh, fft, array(mesh, (64, 256), "i", dtype=jnp.complex64), out=P("i")))
    assert found.sentence.startswith(
        "XLA does not partition fft here: a c64[64,256] P('i', None) is gathered, 4x its shard, and every device"
    )
    assert (found.totals.payload_bytes, "shard_map" in found.advice) == (131_072, True)


@ahead_of_time_tpu
def test_c02_on_tpu_fft_is_split():
    mesh = tpu(i=8)
    assert (
        kinds(
            diagnosed(
                mesh, lambda a: jnp.fft.fft(a, axis=1), array(mesh, (64, 256), "i", dtype=jnp.complex64), out=P("i")
            )
        )
        == []
    )


SPLIT_LAST = [
    (lambda a: jax.lax.top_k(a, 4), P(), "top_k", "; the best 4 of each device would be 1/128 of the bytes"),
    (lambda a: jnp.sort(a, axis=1), P(None, "d"), "sort", ""),
    (lambda a: jnp.cumsum(a, axis=1), P(None, "d"), "cumsum", ""),
    (lambda a: jnp.cumprod(a, axis=1), P(None, "d"), "cumprod", ""),
]


@pytest.mark.parametrize(("function", "out", "name", "more"), SPLIT_LAST, ids=[row[2] for row in SPLIT_LAST])
def test_c05_along_a_split_dim_the_whole_131072_bytes_are_gathered(function, out, name, more):
    mesh = cpu(d=8)
    found = only(diagnosed(mesh, function, array(mesh, (4, 8192), None, "d"), out=out))
    assert (found.kind, found.totals.payload_bytes, found.origin) == ("unsplit_operation", 131_072, line(function))
    assert found.sentence.startswith(f"XLA does not partition {name} here: ") and more in found.sentence


def test_c06_a_roll_by_a_traced_shift_moves_the_array_11_times():
    mesh = cpu(d=4)
    found = only(diagnosed(mesh, lambda a, k: jnp.roll(a, k, axis=0), array(mesh, (64, 128), "d"), SCALAR, out=P("d")))
    assert (found.kind, found.totals.payload_bytes) == ("gathered_for_slice", 90_112)
    assert "traced shift moves 90,112 B for a f32[64,128] P('d', None)" in found.sentence
    assert "static" in found.advice and "ppermute" in found.advice


def test_c10_and_c11_the_cpu_widens_16_bits_and_its_bytes_are_not_to_be_trusted():
    mesh = cpu(sp=8)

    def scores(q_BTHK, k_BTHK, positions_T):
        k_BTHK = pinned(mesh, pinned(mesh, matmuls.rope(k_BTHK, positions_T), None, "sp"))
        return jnp.einsum("bqhd,bkhd->bhqk", q_BTHK, k_BTHK)

    q_BTHK = array(mesh, (2, 1024, 8, 128), None, "sp", dtype=jnp.bfloat16)
    found = diagnosed(mesh, scores, q_BTHK, q_BTHK, array(mesh, (1024,), "sp"), out=P(None, None, "sp"))
    assert (kinds(found), widened(found)[0].count(f"8,388,608 B of payload, the first at {line(pinned, 2)}")) == ([], 1)
    assert "the CPU compiler widens them" in widened(found)[0] and "tpu:" in widened(found)[0]


def widened(found) -> list[str]:
    return [note for note in found.ledger.notes if note.kind == NoteKind.WIDENED_BY_CPU]


def bf16_step(w_DF, x_BD):
    return w_DF - 0.1 * jax.grad(lambda w_DF: jnp.sum((x_BD @ w_DF.astype(jnp.bfloat16)).astype(jnp.float32) ** 2))(
        w_DF
    )


@on_both
def test_c11_a_gradient_reduced_in_bf16_is_a_fault_of_cpu_bytes_and_a_note_on_tpu(on):
    mesh = on(data=8)
    w_DF, x_BD = array(mesh, (256, 512)), array(mesh, (64, 256), "data", dtype=jnp.bfloat16)
    found = diagnosed(mesh, bf16_step, w_DF, x_BD, out=P(), donate_argnums=0)
    assert kinds(found) == []
    if on is cpu:
        assert ", 524,288 B of payload, " in widened(found)[0]
    else:
        assert widened(found) == []
        assert any(
            f"summed over devices in bf16, 262,144 B a step, the first at {line(bf16_step, 1)}" in note
            for note in found.ledger.notes
        )


@pytest.mark.parametrize(
    "draw",
    [lambda key: jax.random.normal(key, (512, 256)), lambda key: jax.random.truncated_normal(key, -2, 2, (512, 256))],
)
def test_c12_threefry_that_is_not_partitionable_moves_851968_bytes(draw):
    with jax.threefry_partitionable(False):
        found = only(diagnosed(cpu(x=4, y=2), draw, jax.ShapeDtypeStruct((2,), jnp.uint32), out=P("x", "y")))
    assert (found.kind, found.totals.payload_bytes, found.origin) == ("random_numbers_moved", 851_968, line(draw))
    assert "jax_threefry_partitionable is off" in found.sentence


def three_layers(mesh: Mesh, function, width: int):
    micro_batches = (4,) if function is gradients.accumulated else ()
    x = array(mesh, (*micro_batches, 1024, width), *(None for _ in micro_batches), "fsdp")
    return diagnosed(mesh, function, 3 * [array(mesh, (width, width), "fsdp")], x, out=3 * [P("fsdp")])


@pytest.mark.parametrize(
    ("on", "width", "kept"),
    [(cpu, 256, 524_288), pytest.param(tpu, 1024, 4_194_304, marks=ahead_of_time_tpu)],
    ids=["cpu", "tpu"],
)
def test_c14_weights_gathered_once_are_kept_whole_for_the_backward_pass(on, width, kept):
    found = only(three_layers(on(fsdp=8), gradients.plain, width))
    assert (found.kind, found.memory_bytes, found.origin) == ("kept_whole", kept, line(gradients.layer, 1))
    largest = f"(the largest is ws[1] f32[{width},{width}] P('fsdp', None))"
    assert found.sentence.startswith(f"2 sharded arguments {largest} are gathered once")


def test_c14_with_remat_they_are_gathered_again_which_is_no_fault():
    found = three_layers(cpu(fsdp=8), gradients.rematerialized, 256)
    assert kinds(found) == []
    assert any(
        "3 weights are gathered again in the backward pass, 786,432 B a step more" in note
        for note in found.ledger.notes
    )


def accumulated_sharded(w, xs):
    zeros = jax.lax.with_sharding_constraint(jnp.zeros_like(w), P("data"))
    return jax.lax.scan(lambda g, x: (g + jax.grad(gradients.loss)([w], x)[0], None), zeros, xs)[0]


@on_both
@pytest.mark.parametrize("is_split", [False, True], ids=["replicated", "split"])
def test_c15_a_gradient_is_reduced_four_times_in_the_loop_that_adds_it_up(on, is_split):
    mesh = on(data=8)
    function, args, out = (
        (accumulated_sharded, array(mesh, (256, 256)), P("data"))
        if is_split
        else (gradients.accumulated, [array(mesh, (256, 256))], [P()])
    )
    with jax.set_mesh(mesh):
        found = diagnosed(mesh, function, args, gradients.micro_batches(mesh), out=out)
    if on is tpu and not is_split:  # Its compiler moves the sum out of the loop.
        assert kinds(found) == []
        return
    fault = only(found)
    assert (fault.kind, fault.totals.executions, fault.totals.payload_bytes, fault.axes) == (
        "reduced_in_loop",
        4,
        4 * 262_144,
        ("data",),
    )
    assert "reduced over devices 4 times a step" in fault.sentence and "a quarter of the bytes" in fault.sentence
    assert "one psum" in fault.advice


def gradient_of_mapped(mesh: Mesh, check: bool):
    layer = jax.shard_map(
        lambda w, x: jnp.tanh(x @ w), mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"), check_vma=check
    )
    return diagnosed(mesh, jax.grad(lambda w, x: jnp.sum(layer(w, x) ** 2)), *mapped.replicated_weight(mesh))


def test_c16_an_unchecked_shard_map_reduces_over_model_along_which_nothing_varies():
    found = only(gradient_of_mapped(cpu(data=4, model=2), check=False))
    assert (found.kind, found.axes, found.totals.payload_bytes) == ("reduced_for_nothing", ("data", "model"), 65_536)
    assert (
        "spans model, along which all devices have the same value" in found.sentence
        and "check_vma=True" in found.advice
    )
    assert kinds(gradient_of_mapped(cpu(data=4, model=2), check=True)) == []


@pytest.mark.parametrize("check", [True, False])
def test_c16_a_pmean_in_a_checked_shard_map_is_a_second_reduction(check):
    mesh = cpu(data=4, model=2)

    def gradient(w, x):
        return jax.lax.pmean(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), "data")

    function = jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check)
    found = diagnosed(mesh, function, *mapped.replicated_weight(mesh))
    assert kinds(found) == (["reduced_twice"] if check else [])
    if check:
        assert (found.findings[0].totals.executions, found.findings[0].origin) == (2, line(gradient, 1))


def on_the_host(x):
    return jax.pure_callback(
        lambda value: 2 * np.asarray(value), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims"
    )


def factor(a):
    results = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((), jnp.int32))
    return jax.ffi.ffi_call("lapack_spotrf_ffi", results)(a, uplo=np.uint8(ord("L")))[0]


@pytest.mark.parametrize(
    ("call", "name", "payload"), [(on_the_host, "pure_callback", 131_072), (factor, "ffi_call", 16_384)]
)
def test_c19_the_operand_of_an_opaque_call_is_gathered(call, name, payload):
    mesh = cpu(b=8)
    shape = (64, 256) if call is on_the_host else (64, 64)
    found = only(diagnosed(mesh, call, array(mesh, shape, "b"), out=P("b")))
    assert found.sentence.startswith(f"XLA cannot look into the call {name}: ")
    assert (found.totals.payload_bytes, "shard_map" in found.advice) == (payload, True)
    assert (
        kinds(
            diagnosed(
                mesh, jax.shard_map(call, mesh=mesh, in_specs=P("b"), out_specs=P("b")), array(mesh, (512, 64), "b")
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("function", "spec", "out", "wasted"),
    [
        (lambda a, g: a - g, P("x"), P(), 32_768),
        (lambda a, g: pinned(cpu(x=8), a - g, "x"), P(), None, 262_144),
        (lambda a, g: (a - g).astype(jnp.bfloat16), P("x"), P("x"), 32_768),
        (lambda a, g: a - g, P("x"), P("x"), 0),
    ],
    ids=["replicated output", "sharded inside", "another dtype", "same sharding"],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_c23_a_donation_in_vain_is_told_even_where_jax_is_silent(function, spec, out, wasted):
    mesh = cpu(x=8)
    state = array(mesh, (1024, 64), *spec)
    found = diagnosed(mesh, function, state, state, out=out, donate_argnums=0).findings
    donations = [finding for finding in found if finding.kind == "donation_unused"]
    assert [finding.memory_bytes for finding in donations] == ([wasted] if wasted else [])
    assert all("the donation of a f32[" in finding.sentence for finding in donations)


def test_c26_another_order_of_axes_permutes_every_whole_shard():
    mesh = cpu(x=4, y=2)
    found = only(diagnosed(mesh, lambda a: 2 * a, array(mesh, (64, 64), ("x", "y")), out=P(("y", "x"))))
    assert (found.kind, found.totals.payload_bytes) == ("axis_order", 2_048)
    assert "a f32[64,64] P(('x', 'y'), None)" in found.sentence


@pytest.mark.parametrize(("spec", "wasted"), [(P(), 917_504), (P("fsdp"), 0)], ids=["replicated", "split"])
def test_c28_replicated_adam_state_beside_split_weights_is_8_times_the_memory(spec, wasted):
    mesh = cpu(fsdp=8)
    w, x = array(mesh, (512, 256), "fsdp"), array(mesh, (4096, 512), "fsdp")
    state = {
        "count": array(mesh, (), dtype=jnp.int32),
        "m": array(mesh, w.shape, *spec),
        "v": array(mesh, w.shape, *spec),
    }
    found = diagnosed(mesh, gradients.adam_step, w, state, x)
    whole = [finding for finding in found.findings if finding.kind == "held_whole"]
    assert [finding.memory_bytes for finding in whole] == ([wasted] if wasted else [])
    if wasted:
        assert whole[0].sentence.startswith(
            "state['m'] f32[512,256] and state['v'] f32[512,256] are replicated, though each device uses only its own part"
        )


def test_c28_adam_state_made_under_jit_is_whole_though_the_weight_is_split():
    mesh = cpu(fsdp=8)
    found = only(diagnosed(mesh, gradients.adam_state, array(mesh, (512, 256), "fsdp")))
    assert (found.kind, "out_shardings" in found.advice, "8x the memory" in found.sentence) == (
        "held_whole",
        True,
        True,
    )


@pytest.mark.parametrize(("rows", "is_far"), [(64, True), (8192, False)])
def test_c29_a_weight_of_4_mb_is_gathered_where_activations_would_move_16_times_less(rows, is_far):
    mesh = cpu(d=8)
    found = diagnosed(mesh, jnp.matmul, array(mesh, (rows, 1024), "d"), array(mesh, (1024, 1024), "d"), out=P("d"))
    assert kinds(found) == (["larger_side_gathered"] if is_far else [])
    if is_far:
        assert "4,194,304 B; gathering its other operand would be 262,144 B, 1/16 of that" in found.findings[0].sentence


def pipeline(mesh: Mesh, shift):
    def run(w_SDE, xs_TRD):
        def tick(state_SRD, x_RD):
            state_SRD = jnp.tanh(jnp.einsum("srd,sde->sre", shift(mesh, state_SRD, x_RD), w_SDE))
            state_SRD = pinned(mesh, state_SRD, "stage", "data")
            return state_SRD, state_SRD[-1]

        start = pinned(mesh, jnp.zeros((pipelines.STAGES, pipelines.ROWS, pipelines.WIDTH)), "stage", "data")
        return jax.lax.scan(tick, start, xs_TRD)[1]

    weights = array(mesh, (pipelines.STAGES, pipelines.WIDTH, pipelines.WIDTH), "stage")
    inputs = array(mesh, (pipelines.TICKS, pipelines.ROWS, pipelines.WIDTH), None, "data")
    return run, diagnosed(mesh, run, weights, inputs, out=P(None, "data"))


@pytest.mark.parametrize("shift", [pipelines.by_roll, pipelines.by_padding, pipelines.by_permute])
def test_c32_the_shift_is_fine_and_taking_the_last_stage_broadcasts_it_every_tick(shift):
    run, diagnosis = pipeline(cpu(stage=4, data=2), shift)
    found, *first = diagnosis.findings
    # What is written as a permute hands on zeros first.
    assert [finding.kind for finding in first] == ["last_message_unused"] * (shift is pipelines.by_permute)
    assert (found.kind, found.axes, found.totals.payload_bytes) == ("last_stage_broadcast", ("stage",), 2 * 7 * 4_096)
    assert "in every tick" in found.sentence and found.origin == line(run, 4)


def test_c32_a_shift_by_concatenation_moves_three_all_to_alls_beside():
    found = pipeline(cpu(stage=4, data=2), pipelines.by_concatenation)[1]
    assert kinds(found) == ["last_stage_broadcast", "moved_to_reshape"]


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [((matmuls.BY_EXPERT,), ["experts_gathered"]), ((), []), ((matmuls.BY_GROUP, matmuls.BY_EXPERT), [])],
)
def test_c33_the_textbook_constraint_on_experts_gathers_tokens_and_sums_outputs(constraints, expected):
    mesh = cpu(ep=8)

    def layer(x_GTD, w_EDF, router_DE):
        sent_GTEC, _ = matmuls.dispatch(x_GTD, router_DE)
        z_EGCD = jnp.einsum("gtec,gtd->egcd", sent_GTEC, x_GTD)
        for spec in constraints:
            z_EGCD = pinned(mesh, z_EGCD, *spec)
        h_EGCF = jnp.einsum("egcd,edf->egcf", z_EGCD, w_EDF)
        for spec in reversed(constraints):
            h_EGCF = pinned(mesh, h_EGCF, *spec)
        return jnp.einsum("gtec,egcf->gtf", sent_GTEC, h_EGCF)

    found = diagnosed(mesh, layer, *matmuls.moe_arguments(mesh), out=P("ep"))
    assert kinds(found) == expected
    if expected:
        assert (found.findings[0].totals.payload_bytes, found.findings[0].axes) == (262_144 + 524_288, ("ep",))
        assert "groups over ep first" in found.findings[0].advice


@ahead_of_time_tpu
def test_c35_with_data_across_slices_524288_bytes_cross_the_network_which_is_a_note_and_model_across_them_a_fault():
    target = "tpu:v5e:2x4*2"
    mesh = mesh_on(target, data=2, model=8)
    halves = Mesh(np.moveaxis(mesh.devices.reshape(2, 2, 4), 0, 1).reshape(2, 8), ("data", "model"))
    right, wrong = (slices_step(on, target) for on in (mesh, halves))
    assert kinds(right) == []
    assert (
        "each device sends 524,288 B a step in groups that reach across the data-centre network along data, in 2 executions"
        in right.ledger.notes
    )
    fault = only(wrong)
    assert fault.kind == "on_slow_link" and "along model over the data-centre network" in fault.sentence
    assert fault.seconds > 0


def slices_step(mesh: Mesh, target: str):
    def step(w, x_BD):
        gradient = jax.grad(lambda w: jnp.sum((jnp.tanh(x_BD @ w["in"]) @ w["out"]) ** 2))(w)
        return jax.tree.map(jnp.subtract, w, gradient)

    weights = {"in": array(mesh, (512, 1024), None, "model"), "out": array(mesh, (1024, 512), "model")}
    return diagnosed(
        mesh,
        step,
        weights,
        array(mesh, (4096, 512), "data"),
        out={"in": P(None, "model"), "out": P("model")},
        target=target,
        donate_argnums=0,
    )


@pytest.mark.parametrize(
    ("function", "word", "payload"),
    [(lambda a: a.reshape(-1), "a reshape", 256), (lambda a: jnp.concatenate([a, a], 1), "a concatenation", 768)],
    ids=["reshape", "concatenate"],
)
def test_c37_explicit_sharding_does_not_stop_a_reshape_or_concatenation_from_moving(function, word, payload):
    mesh = mapped.explicit(cpu(x=4, y=2))
    with jax.set_mesh(mesh):
        found = only(diagnosed(mesh, function, array(mesh, (16, 32), "x", "y")))
    assert (found.kind, found.totals.payload_bytes) == ("moved_to_reshape", payload)
    assert found.sentence.startswith(word) and "a f32[16,32] P('x', 'y')" in found.sentence


@pytest.mark.parametrize(
    ("function", "does"),
    [
        (lambda x, u, k: x.at[0:3].set(u), "an update"),
        (lambda x, u, k: jax.lax.dynamic_update_slice(x, u, (k, 0)), "an update"),
        (lambda x, u, k: x[k], "a read"),
    ],
    ids=["slice", "dynamic slice", "x[k]"],
)
def test_c41_a_slice_at_a_static_or_traced_offset_gathers_all_65536_bytes(function, does):
    mesh = cpu(d=8)
    out = P("d") if does == "an update" else P()
    found = only(diagnosed(mesh, function, array(mesh, (64, 256), "d"), array(mesh, (3, 256)), SCALAR, out=out))
    assert (found.kind, found.totals.payload_bytes, found.origin) == ("gathered_for_slice", 65_536, line(function))
    assert f"x f32[64,256] P('d', None) is gathered whole, 65,536 B, for {does}" in found.sentence
    assert "index array" in found.advice


def routed(x, router, w):
    weights = jnp.tanh(x @ router)
    return jnp.tanh((x * weights[:, :1]) @ w)


def test_the_line_of_repeated_products_is_that_of_the_largest():
    args = [array(mesh := cpu(d=8), shape) for shape in ((4096, 512), (512, 8), (512, 2048))]
    found = only(diagnosed(mesh, routed, *args, out=P()))
    assert (found.kind, found.origin) == ("computed_redundantly", line(routed, 2))


@pytest.mark.parametrize("function", [jnp.matmul, lambda x, w: jnp.sum(jnp.abs(x))], ids=["matmul", "sum"])
def test_c44_replicated_work_is_done_8_times_for_no_communication(function):
    mesh = cpu(d=8)
    found = only(diagnosed(mesh, function, array(mesh, (4096, 512)), array(mesh, (512, 512)), out=P()))
    assert found.kind == "computed_redundantly" and "8x the work" in found.sentence
    assert (
        kinds(
            diagnosed(
                mesh, lambda x, w: pinned(mesh, x, "d") @ w, array(mesh, (4096, 512)), array(mesh, (512, 512)), out=P()
            )
        )
        == []
    )


@pytest.mark.parametrize(
    ("held", "told"), [(10, "a dim of 10 is padded to 16"), (7, "a dim of 7 is padded to 8"), (62, None)]
)
def test_c45_rows_that_do_not_divide_are_padded_and_60_percent_of_10_wasted(held, told):
    mesh = cpu(d=8)
    found = diagnosed(mesh, lambda a: jnp.sin(pinned(mesh, a, "d")), array(mesh, (held, 64)), out=P())
    assert [finding.sentence.startswith(told) for finding in found.findings] == ([True] if told else [])


@pytest.mark.parametrize(
    "spec", [(None, None, "model"), (P.UNCONSTRAINED, None, "model")], ids=["None", "unconstrained"]
)
def test_c53_none_in_a_constraint_gathers_over_data_and_cuts_back_to_the_same_shards(spec):
    mesh = cpu(data=4, model=2)
    found = diagnosed(
        mesh,
        lambda a: jnp.sin(pinned(mesh, jnp.cos(a), *spec)),
        array(mesh, (16, 64, 128), "data", None, "model"),
        out=P("data", None, "model"),
    )
    assert kinds(found) == (["constraint_undone"] if spec[0] is None else [])
    if spec[0] is None:
        assert (found.findings[0].axes, found.findings[0].totals.payload_bytes) == (("data",), 262_144)
        assert "UNCONSTRAINED" in found.findings[0].advice
