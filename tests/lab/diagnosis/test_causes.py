"""A finding checks its cause: programs that look like one with a fault and have none, or another."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.compile import inspection
from lab.core.units import exact
from lab.diagnosis import Findings
from lab.diagnosis.kinds.reductions import T1_FLAG
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.report.diagnosis import findings_text
from lab.settle.behaviours import INSTALLED
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, cpu, mesh_on, pinned
from tests.data import kept
from tests.data.catalogue import PROGRAMS
from tests.lab.diagnosis.diagnosing import diagnosed, kinds, only, wasted

TWO_HOSTS = "gpu:h100:2x8"


def explicit(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * len(mesh.axis_names))


def over_network(found) -> int:
    return sum(t.wire_bytes * t.executions for t in found.ledger.transfers if t.link == "network")


@ahead_of_time_gpu
@pytest.mark.compiles
def test_a_small_sum_between_hosts_is_no_fault_where_the_other_axis_would_send_more():
    def summed(x_RD, w_DF):
        return jax.lax.psum(x_RD @ jax.lax.all_gather(w_DF, "fsdp", axis=0, tiled=True), "stage")

    mesh = mesh_on(TWO_HOSTS, stage=2, fsdp=8)
    function = jax.shard_map(
        summed, mesh=mesh, in_specs=(P("fsdp", "stage"), P(("stage", "fsdp"))), out_specs=P("fsdp")
    )
    x_RD, w_DF = array(mesh, (64, 2048), "fsdp", "stage"), array(mesh, (2048, 512), ("stage", "fsdp"))
    found = diagnosed(mesh, function, x_RD, w_DF, target=TWO_HOSTS)
    assert ({t.axes: t.link for t in found.ledger.transfers}, kinds(found)) == (
        {("stage",): "network", ("fsdp",): "host"},
        [],
    )


@ahead_of_time_gpu
@pytest.mark.compiles
def test_the_order_of_axes_that_is_advised_sends_over_the_network_what_was_said():
    def step(up_DF, down_FD, x_BD):
        return jax.grad(lambda up_DF: jnp.sum((jnp.tanh(x_BD @ up_DF) @ down_FD) ** 2))(up_DF)

    def inspected(**axes: int):
        mesh = mesh_on(TWO_HOSTS, **axes)
        columns, rows = array(mesh, (256, 512), None, "tensor"), array(mesh, (512, 256), "tensor")
        x_BD = array(mesh, (8192, 256), "data")
        return diagnosed(mesh, step, columns, rows, x_BD, out=P(None, "tensor"), target=TWO_HOSTS)

    wrong, right = inspected(tensor=2, data=8), inspected(data=8, tensor=2)
    finding = only(wrong)
    assert finding.kind == "on_slow_link" and "order the mesh's axes data, tensor" in finding.advice
    now, then = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) B", finding.sentence))
    assert (now, then) == (over_network(wrong), over_network(right)) and then < now
    assert kinds(right) == []


@ahead_of_time_gpu
@pytest.mark.compiles
def test_an_order_in_which_fewer_bytes_cross_and_more_have_to_leave_a_host_is_not_advised():
    mesh = mesh_on(TWO_HOSTS, data=8, tensor=2)
    args = array(mesh, (256, 512), None, "tensor"), array(mesh, (1024, 256), "data")

    def step(w_DF, x_BD):
        return jax.grad(lambda w_DF: jnp.sum((x_BD @ w_DF @ w_DF.T) ** 2))(w_DF)

    found = diagnosed(mesh, step, *args, out=P(None, "tensor"), target=TWO_HOSTS)
    sent = {t.axes: t.wire_bytes for t in found.ledger.transfers}
    # A gradient over eight ranks, four in each host: of seven parts one leaves it; activations over two would, all.
    assert sent == {("data",): 2 * 256 * 256 * 4 * 7 // 8, ("tensor",): 128 * 256 * 4} and kinds(found) == []


@ahead_of_time_gpu
@pytest.mark.compiles
def test_where_only_one_axis_communicates_the_network_needs_0_bytes():
    mesh = mesh_on(TWO_HOSTS, tensor=2, data=8)
    args = array(mesh, (1024, 256), "data", "tensor"), array(mesh, (256, 64), "tensor")
    finding = only(diagnosed(mesh, lambda x, w: x @ w, *args, out=P("data"), target=TWO_HOSTS))
    assert finding.kind == "on_slow_link" and finding.sentence.endswith(
        "with data outermost in the mesh it needs 0 B, and the rest goes over the fast link"
    )
    (row,) = (each for each in finding.account.sent if each.link == "network")
    assert (row.axes, row.before, row.after) == ("tensor", 32_768, 0)


@pytest.mark.compiles
def test_a_lookup_whose_layout_changes_in_steps_names_no_axes_in_another_order():
    mesh = cpu(fsdp=4, tp=2)

    def looked_up(table_VD, tokens_BS):
        return pinned(mesh, table_VD[(tokens_BS,)], "fsdp", None, "tp")

    table_VD = array(mesh, (64, 128), "tp", "fsdp")
    found = diagnosed(mesh, looked_up, table_VD, array(mesh, (16, 32), "fsdp", dtype=jnp.int32))
    moved = [t for t in found.ledger.transfers if t.kind == "collective_permute"]
    assert 16 * 32 * 4 // 4 in [t.payload_bytes for t in moved] and kinds(found) == []


@pytest.mark.compiles
def test_a_gather_that_is_cut_up_to_be_exchanged_moves_no_padding():
    mesh = cpu(fsdp=4, tensor=2)

    def step(table_VD, w_DF, tokens_BS):
        def loss(table_VD):
            x_BSD = pinned(mesh, jnp.take(table_VD.astype(jnp.bfloat16), tokens_BS, axis=0), "fsdp")
            return jnp.sum(jnp.tanh(x_BSD @ w_DF))

        return jax.value_and_grad(loss)(table_VD)

    table_VD = array(mesh, (8192, 1024), "tensor", "fsdp")
    w_DF = array(mesh, (1024, 1024), "fsdp", "tensor", dtype=jnp.bfloat16)
    found = diagnosed(mesh, step, table_VD, w_DF, array(mesh, (16, 511), "fsdp", dtype=jnp.int32))
    assert "all_to_all" in {t.kind for t in found.ledger.transfers} and "padded" not in kinds(found)


@ahead_of_time_gpu
@pytest.mark.compiles
def test_a_table_with_two_uses_is_summed_twice_and_once_where_both_are_differentiated_in_one_shard_map():
    target = "gpu:h100:1x8"
    mesh = mesh_on(target, fsdp=8)
    table_VD, tokens_BS = array(mesh, (1024, 64), "fsdp"), array(mesh, (64, 32), "fsdp", dtype=jnp.int32)

    def loss(table_VD, tokens_BS):
        return jnp.sum(jax.nn.logsumexp(jnp.tanh(table_VD[tokens_BS]) @ table_VD.T, -1))

    def once(table_VD, tokens_BS):
        return jax.grad(lambda own: loss(jax.lax.all_gather(own, "fsdp", tiled=True), tokens_BS))(table_VD)

    told = diagnosed(mesh, jax.grad(loss), table_VD, tokens_BS, out=P("fsdp"), target=target)
    better = jax.shard_map(once, mesh=mesh, in_specs=(P("fsdp"), P("fsdp")), out_specs=P("fsdp"))
    better = diagnosed(mesh, better, table_VD, tokens_BS, target=target)
    assert sorted(kinds(told)) == ["gathered_for_slice", "gathered_twice"] and kinds(better) == []
    wasted = sum(sum(finding.cost.wire_bytes.values()) for finding in told.findings)
    assert wasted == wire_bytes(told) - wire_bytes(better)


@pytest.mark.compiles
def test_a_weight_of_three_dims_beside_heads_is_no_expert():
    """Latent attention with the latent dim split: heads are the batch dim of the product, not the first dim."""
    mesh = cpu(model=8)

    def absorbed(q_BHD, w_RHD, v_RHD):
        x_BHR = jnp.tanh(jnp.einsum("bhd,rhd->bhr", q_BHD, w_RHD))
        return jnp.einsum("bhr,rhd->bhd", x_BHR, v_RHD)

    weight = array(mesh, (64, 16, 32), "model")
    found = diagnosed(mesh, absorbed, array(mesh, (32, 16, 32), None, "model"), weight, weight)
    assert {str(t.kind) for t in found.ledger.transfers} == {"all_gather", "all_reduce"}
    assert "experts_gathered" not in kinds(found)


@pytest.mark.compiles
def test_a_lookup_in_a_split_table_in_a_loop_is_no_pipeline():
    mesh = cpu(model=4)

    def step(table_VD, ids_NT):
        def micro(total, ids_T):
            x_TD = pinned(mesh, jnp.take(table_VD, ids_T, axis=0), "model")
            return total + jnp.sum(pinned(mesh, jnp.tanh(x_TD), None, "model") ** 2), None

        return jax.lax.scan(micro, jnp.float32(0), ids_NT)[0]

    found = diagnosed(mesh, step, array(mesh, (1024, 256), "model"), array(mesh, (4, 512), dtype=jnp.int32))
    assert {"all_reduce", "all_to_all"} <= {str(t.kind) for t in found.ledger.transfers}
    assert kinds(found) == []


@ahead_of_time_gpu
@pytest.mark.compiles
def test_the_gradient_of_a_broadcast_is_no_reshape_of_a_split_dim():
    """JAX names the dims of 1 that it drops a reshape: of a norm's split scale beside activations that are whole. From
    0.11 on XLA names the gather after the product behind the reshape."""
    mesh = explicit(mesh_on("gpu:h100:1x8", fsdp=2, tensor=4))

    def loss(scale_D, w_DF, x_BTD):
        h_BTF = jnp.einsum("btd,df->btf", jnp.tanh(x_BTD) * scale_D, w_DF, out_sharding=P("fsdp", None, "tensor"))
        return jnp.sum(h_BTF**2)

    with jax.set_mesh(mesh):
        x_BTD, scale_D = array(mesh, (16, 32, 64), "fsdp"), array(mesh, (64,), "tensor")
        found = diagnosed(
            mesh, jax.grad(loss, argnums=(0, 1, 2)), scale_D, array(mesh, (64, 64), None, "tensor"), x_BTD
        )
    served = "transpose(jvp())/reshape" if INSTALLED < (0, 11) else "transpose(jvp())/mul"
    assert any((t.op_name or "").endswith(served) for t in found.ledger.transfers)
    assert "moved_to_reshape" not in kinds(found)


@ahead_of_time_gpu
@pytest.mark.compiles
def test_rows_of_two_lookups_whose_gradients_xla_joins_are_no_concatenation_of_the_program():
    target = "gpu:h100:1x8"
    mesh = mesh_on(target, data=8)

    def loss(table_VD, one_B, other_B):
        return jnp.sum(jnp.tanh(table_VD[one_B]) ** 2) + jnp.sum(jnp.sin(table_VD[other_B]) ** 2)

    rows = [array(mesh, (size,), "data", dtype=jnp.int32) for size in (256, 512)]
    found = diagnosed(mesh, jax.grad(loss), array(mesh, (1024, 64)), *rows, out=P(), target=target)
    joined = [t for t in found.ledger.transfers if (t.op_name or "").endswith("concatenate")]
    assert kinds(found) == [] and bool(joined) == (INSTALLED < (0, 11))


@pytest.mark.compiles
def test_a_split_is_told_once_with_its_gradient_and_the_product_that_it_splits():
    mesh = cpu(model=8)

    def loss(wide_DE, qkv_DF, x_BD):
        q, k, v = jnp.split(jnp.tanh(x_BD @ qkv_DF), 3, axis=-1)
        return jnp.sum(q * k * jnp.sin(v)) + jnp.sum(jnp.square(x_BD @ wide_DE))

    found = diagnosed(
        mesh,
        jax.grad(loss, argnums=(0, 1)),
        array(mesh, (64, 4096), None, "model"),
        array(mesh, (64, 384), None, "model"),
        array(mesh, (32, 64)),
    )
    assert kinds(found) == ["moved_to_reshape"]
    assert "splitting" in found.findings[0].sentence and " B forward and backward" in found.findings[0].sentence
    assert "the product with qkv_DF f32[64,384] P(None, 'model')" in found.findings[0].sentence


def test_with_axes_in_another_order_a_text_is_not_diagnosed_and_the_order_that_fits_is_named(tmp_path):
    name, text = "constraint_of_none.gpu", tmp_path / "step.hlo"
    text.write_text(kept.text(name))
    target = parse_target(PROGRAMS[name].target)
    right, wrong = (
        diagnosis.of(inspection.read_texts(text, Axes.parse(mesh), target)[0])
        for mesh in ("data=4,model=2", "model=2,data=4")
    )
    assert right.unknown_axes is None and right.findings
    assert wrong.unknown_axes is not None and "add --mesh data=4,model=2" in wrong.unknown_axes
    said = findings_text(Findings(diagnosis.Diagnosis(wrong.ledger, (), wrong.misfit)))
    assert "not diagnosed: the groups of devices" in said and "no finding" not in said


@pytest.mark.compiles
def test_gradients_weighted_by_their_tokens_are_reduced_in_every_micro_batch_which_one_reduction_spares():
    mesh = cpu(data=4)

    def add(total, batch, w_DF):
        x_BD, mask_B = batch
        tokens = jnp.sum(mask_B)
        g_DF = jax.grad(lambda w_DF: jnp.sum(jnp.square(x_BD @ w_DF) * mask_B[:, None]) / tokens)(w_DF)
        return (total[0] + g_DF * tokens, total[1] + tokens), None

    def accumulated(w_DF, x_NBD, mask_NB):
        start = jnp.zeros_like(w_DF), jnp.float32(0)
        (g_DF, tokens), _ = jax.lax.scan(lambda total, batch: add(total, batch, w_DF), start, (x_NBD, mask_NB))
        return g_DF / tokens

    def local(w_DF, x_NBD, mask_NB):
        start = jax.lax.pcast((jnp.zeros_like(w_DF), jnp.float32(0)), "data", to="varying")
        w_DF = jax.lax.pcast(w_DF, "data", to="varying")
        (g_DF, tokens), _ = jax.lax.scan(lambda total, batch: add(total, batch, w_DF), start, (x_NBD, mask_NB))
        return jax.lax.psum(g_DF, "data") / jax.lax.psum(tokens, "data")

    args = array(mesh, (64, 64)), array(mesh, (6, 16, 64), None, "data"), array(mesh, (6, 16), None, "data")
    once = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(None, "data"), P(None, "data")), out_specs=P())
    finding, better = only(diagnosed(mesh, accumulated, *args, out=P())), diagnosed(mesh, once, *args)
    assert (finding.kind, "a sixth of the bytes" in finding.sentence) == ("reduced_in_loop", True)
    arrays = [part for t in better.ledger.transfers for part in t.split() if part.payload_bytes > 4]
    once = sum(part.wire_bytes for part in arrays)
    assert (finding.totals.wire_bytes, wasted(finding), finding.cost.at_most) == (6 * once, 5 * once, False)
    assert kinds(better) == []


@pytest.mark.compiles
def test_a_reduction_that_the_loop_reads_too_has_to_stay_in_it():
    mesh = cpu(data=4)

    def clipped(w_DF, x_NBD):
        def add(total, x_BD):
            g_DF = jax.grad(lambda w_DF: jnp.sum(jnp.square(x_BD @ w_DF)))(w_DF)
            return (total[0] + g_DF, jnp.maximum(total[1], jnp.max(jnp.abs(g_DF)))), None

        return jax.lax.scan(add, (jnp.zeros_like(w_DF), jnp.float32(0)), x_NBD)[0]

    # More rows than one gather before the loop would spare.
    found = diagnosed(mesh, clipped, array(mesh, (64, 64)), array(mesh, (6, 64, 64), None, "data"), out=(P(), P()))
    assert [t.executions for t in found.ledger.transfers if t.payload_bytes > 4] == [6]
    assert kinds(found) == []


def gradient(w_DF, x_BD):
    return jax.grad(lambda w_DF: jnp.sum(jnp.square(x_BD @ w_DF)))(w_DF)


def shown_on_the_way(w_DF, x_NBD):
    def add(total, x_BD):
        total += gradient(w_DF, x_BD)
        return total, total[0]

    return jax.lax.scan(add, jnp.zeros_like(w_DF), x_NBD)


def asked_for_on_the_way(w_DF, x_NBD):
    def add(state):
        number, total = state
        return number + 1, total + gradient(w_DF, x_NBD[number])

    start = 0, jnp.zeros_like(w_DF)
    return jax.lax.while_loop(lambda state: (state[0] < 6) & (jnp.max(state[1]) < 10), add, start)


@pytest.mark.parametrize("function", [shown_on_the_way, asked_for_on_the_way])
@pytest.mark.compiles
def test_a_running_sum_that_each_iteration_shows_or_the_loops_condition_reads_needs_all_its_reductions(function):
    mesh = cpu(data=4)
    args = array(mesh, (64, 64)), array(mesh, (6, 64, 64), None, "data")
    assert "reduced_in_loop" not in kinds(diagnosed(mesh, function, *args, out=(P(), P())))


@ahead_of_time_tpu
@pytest.mark.compiles
def test_a_tpu_compilers_all_reduce_of_shards_is_told_with_the_flag_that_spares_what_is_said():
    target = "tpu:v5p:2x2x4"
    mesh = mesh_on(target, fsdp=16)
    rows = array(mesh, (1024, 1024), "fsdp")
    gradient = jax.grad(lambda w_DF, x_BD: jnp.mean(jnp.square(x_BD @ w_DF)))
    lowered = jax.jit(gradient, out_shardings=rows.sharding).lower(rows, rows)

    def inspected(**options: str):
        compiled = lowered.compile(options)
        return diagnosis.of(inspection.read_program(compiled, (rows, rows), mesh, parse_target(target), source="step"))

    told, scattered = inspected(), inspected(**{T1_FLAG: "true"})
    finding = only(told)
    assert (finding.kind, T1_FLAG in finding.advice) == ("not_scattered", True)
    sums = [t for t in scattered.ledger.transfers if t.kind == "reduce_scatter"]
    assert f"would send {exact(sum(t.wire_bytes for t in sums))} B a step instead of " in finding.sentence
    assert kinds(scattered) == []


def wire_bytes(found) -> int:
    return sum(t.wire_bytes * t.executions for t in found.ledger.transfers)


@pytest.mark.compiles
def test_a_table_that_no_chunk_changes_is_gathered_for_each_and_once_where_it_is_whole_before_the_loop():
    mesh = cpu(fsdp=4)

    def inspected(is_whole_before: bool):
        def loss(chunks_NTD, table_VD):
            table_VD = pinned(mesh, table_VD) if is_whole_before else table_VD

            @jax.checkpoint
            def tile(total, h_TD):
                return total + jnp.sum(jax.nn.logsumexp(h_TD @ table_VD.T, axis=-1)), None

            return jax.lax.scan(tile, jnp.float32(0), chunks_NTD)[0]

        chunks_NTD, table_VD = array(mesh, (5, 32, 64), None, "fsdp"), array(mesh, (256, 64), None, "fsdp")
        return diagnosed(mesh, jax.grad(loss), chunks_NTD, table_VD, out=P(None, "fsdp"))

    told, better = inspected(False), inspected(True)
    finding = only(told)
    assert (finding.kind, "table_VD f32[256,64]" in finding.sentence) == ("repeated_in_loop", True)
    assert finding.totals.wire_bytes == wire_bytes(told) == 5 * wire_bytes(better)
    assert wasted(finding) == wire_bytes(told) - wire_bytes(better)
    assert "a fifth of the bytes" in finding.sentence and kinds(better) == []


@pytest.mark.compiles
def test_weights_gathered_again_in_every_micro_batch_a_layer_at_a_time_need_no_word():
    mesh = cpu(fsdp=4)

    def step(w_LDD, head_DV, x_NBD):
        layer = jax.checkpoint(lambda x_BD, w_DD: (jnp.tanh(x_BD @ w_DD), None))

        @jax.checkpoint
        def loss(x_BD):
            return jnp.sum(jax.nn.logsumexp(jax.lax.scan(layer, x_BD, w_LDD)[0] @ head_DV, axis=-1))

        return jax.lax.scan(lambda total, x_BD: (total + jax.grad(loss)(x_BD), None), x_NBD[0], x_NBD)[0]

    weights, head_DV = array(mesh, (3, 64, 64), None, "fsdp"), array(mesh, (64, 128), "fsdp")
    found = diagnosed(mesh, step, weights, head_DV, array(mesh, (5, 32, 64), None, "fsdp"), out=P("fsdp"))
    assert {t.executions for t in found.ledger.transfers if t.kind == "all_gather"} == {5, 15}
    assert kinds(found) == []


@pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu)])
@pytest.mark.compiles
def test_a_sum_of_own_parts_and_zeros_is_told_with_what_the_gather_sends(target):
    mesh = mesh_on(target, x=8)

    def over(function, **options):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P(), **options)
        return diagnosed(mesh, mapped, array(mesh, (128, 64), "x"))

    def put_together(x_RD, place):
        zeros = jax.lax.pcast(jnp.zeros((128, 64)), "x", to="varying")
        return jax.lax.psum(jax.lax.dynamic_update_slice(zeros, x_RD, (place(jax.lax.axis_index("x")), 0)), "x")

    told = over(lambda x_RD: put_together(x_RD, lambda device: 16 * device))
    gathered = over(lambda x_RD: jax.lax.all_gather(x_RD, "x", axis=0, tiled=True), check_vma=False)
    finding = only(told)
    assert finding.kind == "summed_to_gather"
    assert f"would send {exact(wire_bytes(gathered))} B instead of {exact(wire_bytes(told))}" in finding.sentence
    assert kinds(over(lambda x_RD: put_together(x_RD, lambda device: 16 * (device // 2)))) == []
    # In any order but the ranks' a gather gives something else.
    assert kinds(over(lambda x_RD: put_together(x_RD, lambda device: 16 * (7 - device)))) == []
    # Windows that overlap are added up.
    assert kinds(over(lambda x_RD: put_together(x_RD, lambda device: 8 * device))) == []


def times_its_number(x_RD):
    return x_RD * jax.lax.axis_index("x")


def handed_to_one(x_RD):
    return jax.lax.ppermute(x_RD, "x", [(0, 1)])


def read_from_the_host(x_RD):
    return jax.pure_callback(lambda: np.ones((64, 64), np.float32), x_RD)


@pytest.mark.parametrize("own", [times_its_number, handed_to_one, read_from_the_host])
@pytest.mark.compiles
def test_a_sum_of_what_a_branch_gives_is_for_nothing_only_where_no_branch_has_values_of_its_own(own):
    mesh = cpu(x=8)

    def over(branch):
        def summed(x_RD, asked):
            return jax.lax.psum(jax.lax.cond(asked > 0, branch, jnp.sin, x_RD), "x")

        mapped = jax.shard_map(summed, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        return diagnosed(mesh, mapped, array(mesh, (64, 64)), array(mesh, (), dtype=jnp.int32))

    assert (kinds(over(own)), kinds(over(jnp.cos))) == ([], ["reduced_for_nothing"])


@pytest.mark.parametrize(
    ("reduced", "axis", "rows", "told", "place"),
    [
        (jax.lax.psum, "data", 16, ["not_scattered"], lambda rank: rank),
        (jax.lax.psum, "data", 16, [], lambda rank: 3 - rank),
        (jax.lax.psum, "data", 16, [], lambda rank: (rank + 1) % 4),
        (jax.lax.psum, "model", 16, [], lambda rank: rank),
        (jax.lax.psum, "data", 48, [], lambda rank: rank),
        (jax.lax.pmax, "data", 16, [], lambda rank: rank),
    ],
    ids=["shares", "in another order", "the next rank's", "of another axis", "more than a share", "a maximum"],
)
@pytest.mark.compiles
def test_a_scatter_is_advised_only_where_each_device_keeps_a_share_of_its_own(reduced, axis, rows, told, place):
    mesh = cpu(data=4, model=2)

    def cut(x_RD):
        at = place(jax.lax.axis_index(axis)) * min(rows, 64 - rows)
        return jax.lax.dynamic_slice_in_dim(reduced(x_RD, "data"), at, rows)

    mapped = jax.shard_map(cut, mesh=mesh, in_specs=P("data"), out_specs=P(axis), check_vma=False)
    assert kinds(diagnosed(mesh, mapped, array(mesh, (256, 64), "data"))) == told


@pytest.mark.compiles
def test_a_gradient_that_calls_add_to_a_donated_sum_sends_nothing_where_it_stays_unreduced():
    mesh = cpu(data=4)

    def loss(w_DF, x_BD):
        return jnp.mean(jnp.square(jnp.tanh(x_BD @ w_DF)))

    def add(total_DF, w_DF, x_BD):
        return total_DF + jax.grad(loss)(w_DF, x_BD)

    w_DF, x_BD = array(mesh, (64, 64)), array(mesh, (32, 64), "data")
    told = diagnosed(mesh, add, w_DF, w_DF, x_BD, out=P(), donate_argnums=0)
    own = explicit(mesh)

    def unreduced(w_DF, x_BD):
        reduced = jax.NamedSharding(own, P(None, None, reduced={"data"}))
        return jax.grad(loss)(jax.reshard(w_DF, reduced), x_BD)

    with jax.set_mesh(own):
        better = diagnosed(own, unreduced, array(own, (64, 64)), array(own, (32, 64), "data"))
    finding = only(told)
    assert finding.kind == "summed_across_calls" and "total_DF f32[64,64] P()" in finding.sentence
    assert (wire_bytes(better), wasted(finding)) == (0, wire_bytes(told))
    assert f"a call would send {exact(wire_bytes(told))} B less" in finding.sentence


@pytest.mark.compiles
def test_a_step_of_gradient_descent_is_no_sum_across_calls():
    mesh = cpu(data=4)

    def step(w_DF, x_BD):
        return w_DF + jax.grad(lambda w_DF: jnp.mean(jnp.square(x_BD @ w_DF)))(w_DF)

    found = diagnosed(mesh, step, array(mesh, (64, 64)), array(mesh, (32, 64), "data"), out=P(), donate_argnums=0)
    assert len(found.ledger.transfers) == 1 and kinds(found) == []


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu),
        pytest.param("tpu:v5e:2x4", marks=ahead_of_time_tpu),
    ],
)
@pytest.mark.compiles
def test_a_weight_of_8_bits_that_is_gathered_wide_is_told_with_what_it_sends_where_it_is_pinned_first(target):
    mesh = mesh_on(target, fsdp=8)

    def inspected(is_pinned: bool):
        def product(w_DF, x_BD):
            w_DF = (w_DF.astype(jnp.float32) * 16).astype(jnp.float8_e4m3fn)
            w_DF = pinned(mesh, w_DF, "fsdp") if is_pinned else w_DF
            return x_BD @ pinned(mesh, w_DF, None, None).astype(jnp.bfloat16)

        rows = array(mesh, (512, 512), "fsdp", dtype=jnp.bfloat16)
        return diagnosed(mesh, product, rows, array(mesh, (1024, 512), "fsdp", dtype=jnp.bfloat16), target=target)

    told, better = inspected(False), inspected(True)
    finding = only(told)
    assert finding.kind == "narrowed_after" and "cast to f8e4m3fn" in finding.sentence
    said = f"{exact(wire_bytes(better))} B a step sent by each device instead of {exact(wire_bytes(told))}"
    assert said in finding.sentence and kinds(better) == []
    assert wasted(finding) == wire_bytes(told) - wire_bytes(better)


@pytest.mark.compiles
def test_a_known_order_of_blocks_gathers_all_and_as_permutes_sends_what_is_said_to_the_same_places():
    n, rows = 8, 128
    mesh = cpu(context=n)
    half = rows // (2 * n)
    pieces = np.arange(rows).reshape(2 * n, half)
    order = np.concatenate([np.concatenate([pieces[i], pieces[2 * n - 1 - i]]) for i in range(n)])

    def permuted(x_RD):
        def to(piece: int) -> int:
            return min(piece, 2 * n - 1 - piece)

        even = jax.lax.ppermute(x_RD[:half], "context", [(d, to(2 * d)) for d in range(n)])
        odd = jax.lax.ppermute(x_RD[half:], "context", [(d, to(2 * d + 1)) for d in range(n)])
        is_even = jax.lax.axis_index("context") % 2 == 0
        return jnp.concatenate([jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)])

    split = jax.NamedSharding(mesh, P("context"))
    by_permutes = jax.jit(jax.shard_map(permuted, mesh=mesh, in_specs=P("context"), out_specs=P("context")))
    by_indices = jax.jit(lambda x_RD: jnp.take(x_RD, order, axis=0), out_shardings=split)
    x_RD = jax.device_put(jnp.arange(rows * 4.0).reshape(rows, 4), split)
    assert np.array_equal(by_indices(x_RD), by_permutes(x_RD))

    shape = array(mesh, (rows, 64), "context")
    told, better = (diagnosed(mesh, function, shape) for function in (by_indices, by_permutes))
    finding = only(told)
    assert finding.kind == "permuted_by_gather"
    assert f"of which each device keeps {exact(wire_bytes(better))} B" in finding.sentence
    assert wasted(finding) == wire_bytes(told) - wire_bytes(better)
    assert kinds(better) == []


@pytest.mark.compiles
def test_rows_at_indices_of_an_argument_are_not_known():
    mesh = cpu(d=8)
    function = jax.grad(lambda x_RD, i_R: jnp.sum(jnp.sin(jnp.take(x_RD, i_R, axis=0))))
    found = diagnosed(mesh, function, array(mesh, (128, 64), "d"), array(mesh, (128,), "d", dtype=jnp.int32))
    assert "permuted_by_gather" not in kinds(found)


@pytest.mark.compiles
def test_heads_that_are_gathered_for_a_weight_split_elsewhere_stay_where_they_are_once_it_is_split_by_heads():
    mesh = cpu(model=8)

    def inspected(*spec):
        q_BHD, w_RHD = array(mesh, (32, 16, 32), None, "model"), array(mesh, (64, 16, 32), *spec)
        return diagnosed(mesh, lambda q_BHD, w_RHD: jnp.einsum("bhd,rhd->bhr", q_BHD, w_RHD), q_BHD, w_RHD)

    told, better = inspected("model"), inspected(None, "model")
    finding = only(told)
    assert finding.kind == "batch_dim_gathered" and "q_BHD f32[32,16,32]" in finding.sentence
    assert "the product moves nothing" in finding.sentence and better.ledger.transfers == ()
    assert wasted(finding) == wire_bytes(told)


@ahead_of_time_gpu
@pytest.mark.compiles
def test_activations_gathered_for_a_split_scale_alone_are_told_with_what_a_whole_scale_spares():
    target = "gpu:h100:1x8"
    mesh = explicit(mesh_on(target, fsdp=2, tensor=4))

    def loss(scale_D, w_DF, v_FD, x_BTD):
        x_BTD = jnp.tanh(x_BTD)
        h_BTF = jnp.einsum("btd,df->btf", x_BTD * scale_D, w_DF, out_sharding=P("fsdp", None, "tensor"))
        return jnp.sum((x_BTD + jnp.einsum("btf,fd->btd", h_BTF, v_FD, out_sharding=P("fsdp", None, None))) ** 2)

    def inspected(*spec):
        with jax.set_mesh(mesh):
            w_DF, v_FD = array(mesh, (64, 128), None, "tensor"), array(mesh, (128, 64), "tensor")
            step = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
            x_BTD = array(mesh, (16, 32, 64), "fsdp", None, None)
            return diagnosed(mesh, step, array(mesh, (64,), *spec), w_DF, v_FD, x_BTD, target=target)

    told, better = inspected("tensor"), inspected()
    (finding,) = [finding for finding in told.findings if finding.kind == "cut_for_small"]
    assert "scale_D f32[64] P('tensor') is split" in finding.sentence
    assert {str(t.kind) for t in finding.transfers} == {"all_gather"}
    # All-reduces over fsdp hold 192 B more of a whole scale's gradient.
    spared = wire_bytes(told) - wire_bytes(better)
    assert finding.totals.wire_bytes == wasted(finding) == spared + 192 and "cut_for_small" not in kinds(better)


@pytest.mark.compiles
def test_a_large_weight_in_another_order_of_axes_is_told_with_what_its_tokens_and_output_would_send():
    mesh = cpu(batch=2, model=4)

    def inspected(*spec, is_moved: bool = False):
        def logits(h_TD, head_DV):
            h_TD = pinned(mesh, h_TD) if is_moved else h_TD
            return pinned(mesh, h_TD @ head_DV, *spec) if is_moved else h_TD @ head_DV

        h_TD, head_DV = array(mesh, (16, 64), "batch"), array(mesh, (64, 2048), *spec)
        return diagnosed(mesh, logits, h_TD, head_DV, out=P("batch", "model"))

    told, better = inspected(None, ("batch", "model")), inspected(None, ("model", "batch"), is_moved=True)
    # Of the permute all is spared, of the gather what the tokens and the output do not send.
    assert kinds(told) == ["axis_order", "larger_side_gathered"]
    assert sum(map(wasted, told.findings)) == wire_bytes(told) - wire_bytes(better)
    reordered, gathered = told.findings
    assert "gathers head_DV f32[64,2048]" in gathered.sentence
    sent = {str(t.kind): exact(t.payload_bytes) for t in better.ledger.transfers}
    assert f"other operand would be {sent['all_gather']} B" in gathered.sentence
    assert f"scattering the output {sent['all_to_all']} B" in gathered.sentence
    assert sum(finding.totals.wire_bytes for finding in told.findings) == wire_bytes(told)

    def permuted(found):
        return sum(t.wire_bytes for t in found.ledger.transfers if t.kind == "collective_permute")

    in_order = inspected(None, ("model", "batch"))
    assert (permuted(told), permuted(in_order)) == (reordered.totals.wire_bytes, 0)
    assert kinds(better) == []
