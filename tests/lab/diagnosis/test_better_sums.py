"""What a later sum, one gather, or one round less would spare is what the better program, compiled, sends less."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.compile.inspection import read_texts
from lab.core.units import exact, scaled
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, cpu, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import compiled, diagnosed, kinds, only, wasted

ON = [None, pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu)]
AHEAD_OF_TIME = pytest.mark.parametrize(
    "target",
    [
        pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu),
        pytest.param("tpu:v5e:2x4", marks=ahead_of_time_tpu),
    ],
)
WINDOW = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
pytestmark = pytest.mark.compiles


def mesh_of(target):
    return mesh_on(target, data=8) if target else cpu(data=8)


def sent(found) -> int:
    return sum(t.wire_bytes * t.executions for t in found.ledger.transfers)


def own(mesh, function, **specs):
    return jax.shard_map(function, mesh=mesh, check_vma=False, **specs)


def tied_loss(lookup_VD, head_VD, tokens_B, target_BV):
    return jnp.sum((jnp.tanh(lookup_VD[tokens_B]) @ head_VD.T - target_BV) ** 2)


def tied(table_VD, tokens_B, target_BV):
    return jax.grad(lambda table_VD: tied_loss(table_VD, table_VD, tokens_B, target_BV))(table_VD)


def tied_summed_once(table_VD, tokens_B, target_BV):
    lookup_VD, head_VD = jax.grad(tied_loss, argnums=(0, 1))(table_VD, table_VD, tokens_B, target_BV)
    return jax.lax.psum(lookup_VD + head_VD, "data")


@ahead_of_time_gpu
def test_the_gradients_of_a_tables_two_uses_are_summed_apart_and_once_where_they_are_added_first():
    target = "gpu:h100:1x8"
    mesh = mesh_of(target)
    args = array(mesh, (256, 32)), array(mesh, (64,), "data", dtype=jnp.int32), array(mesh, (64, 256), "data")
    told = diagnosed(mesh, tied, *args, out=P(), target=target)
    once = own(mesh, tied_summed_once, in_specs=(P(), P("data"), P("data")), out_specs=P())
    better = diagnosed(mesh, once, *args, target=target)
    assert (only(told).kind, kinds(better)) == ("summed_apart", [])
    assert wasted(told.findings[0]) == sent(told) - sent(better) == sent(better) > 0


@pytest.mark.parametrize(
    ("target", "summed_by", "ring"),
    [
        pytest.param("gpu:h100:1x8", "reduce_scatter", {}, marks=ahead_of_time_gpu),
        pytest.param("tpu:v5e:2x4", "collective_permute", {WINDOW: "0"}, marks=ahead_of_time_tpu),
    ],
)
def test_a_split_tables_gradient_that_is_summed_and_gathered_for_another_could_be_summed_once(target, summed_by, ring):
    """XLA for TPUs also sums by permutes between the parts of a product."""
    mesh, split, bf16 = mesh_on(target, data=8), P("data"), jnp.bfloat16
    table_VD, target_BSV = (array(mesh, shape, "data", dtype=bf16) for shape in ((1024, 128), (64, 128, 1024)))
    args = table_VD, array(mesh, (64, 128), "data", dtype=jnp.int32), target_BSV
    told = diagnosed(mesh, tied, *args, out=split, target=target, compiler_options=ring)

    def summed_once(part_VD, tokens_BS, target_BSV):
        table_VD = jax.lax.all_gather(part_VD, "data", tiled=True)
        lookup_VD, head_VD = jax.grad(tied_loss, argnums=(0, 1))(table_VD, table_VD, tokens_BS, target_BSV)
        return jax.lax.psum_scatter(lookup_VD + head_VD, "data", tiled=True)

    better = diagnosed(mesh, own(mesh, summed_once, in_specs=(split,) * 3, out_specs=split), *args, target=target)
    apart, *twice = told.findings
    assert (apart.kind, apart.transfers[0].kind) == ("gathered_for_slice", summed_by)
    assert "the gradient of one use of a table is summed over data and gathered whole again" in apart.sentence
    assert wasted(apart) + sum(map(wasted, twice)) == sent(told) - sent(better) > 0


@ahead_of_time_tpu
def test_a_split_tables_gradient_is_known_for_a_sum_where_tpus_pad_its_shards():
    mesh, split = mesh_on("tpu:v5e:2x4", data=8), P("data")
    tokens_BS, target_BSV = array(mesh, (16, 64), "data", dtype=jnp.int32), array(mesh, (16, 64, 1000), "data")
    args = array(mesh, (1000, 128), "data"), tokens_BS, target_BSV
    apart = diagnosed(mesh, tied, *args, out=split, target="tpu:v5e:2x4").findings[0]
    assert "the gradient of one use of a table is summed over data and gathered whole again" in apart.sentence
    assert {transfer.kind for transfer in apart.transfers} == {"reduce_scatter", "all_gather"}


@ahead_of_time_tpu
def test_it_is_known_too_where_its_gather_has_the_name_of_the_product(tmp_path):
    """As the compiler of jax 0.11 names it."""
    mesh, split = mesh_on("tpu:v5e:2x4", data=8), P("data")
    args = array(mesh, (1000, 128), "data"), array(mesh, (16, 64), "data", dtype=jnp.int32)
    text = compiled(mesh, tied, *args, array(mesh, (16, 64, 1000), "data"), out=split).as_text()
    named = re.sub(r"(?m)^(.* all-gather\(.*transpose\(jvp\(\)\)/)scatter-add", r"\1dot_general", text)
    (tmp_path / "step.hlo").write_text(named)
    (program,) = read_texts(tmp_path / "step.hlo", Axes.parse("data=8"), parse_target("tpu:v5e:2x4"))
    assert "the gradient of one use of a table is summed" in diagnosis.of(program).findings[0].sentence
    assert named != text or jax.__version__ >= "0.11"


@ahead_of_time_gpu
def test_two_losses_gradients_with_weights_of_their_own_are_summed_apart_and_once_where_they_are_added_first():
    mesh = mesh_on("gpu:h100:1x8", data=8)

    def mixed(w_DF, x_BD, y_BD):
        gradient_DF = jax.grad(lambda w_DF, x_BD: jnp.sum(jnp.tanh(x_BD @ w_DF) ** 2))
        return 0.3 * gradient_DF(w_DF, x_BD) + 0.7 * gradient_DF(w_DF, y_BD)

    args = array(mesh, (128, 256)), array(mesh, (64, 128), "data"), array(mesh, (64, 128), "data")
    told = diagnosed(mesh, mixed, *args, out=P(), target="gpu:h100:1x8")
    once = own(
        mesh,
        lambda *args: jax.lax.psum(mixed(*args), "data"),
        in_specs=(P(), P("data"), P("data")),
        out_specs=P(),
    )
    better = diagnosed(mesh, once, *args, target="gpu:h100:1x8")
    assert (only(told).kind, kinds(better)) == ("summed_apart", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(better) > 0


def of_two(target, combined, is_summed_last=False):
    """The diagnosis of what is made of two values that are summed over devices, before it or after."""

    def step(x_BD, y_BD):
        if is_summed_last:
            return jax.lax.psum(combined(x_BD, y_BD), "data")
        return combined(jax.lax.psum(x_BD, "data"), jax.lax.psum(y_BD, "data"))

    mesh = mesh_of(target)
    function = own(mesh, step, in_specs=P("data"), out_specs=P())
    return diagnosed(mesh, function, *[array(mesh, (512, 64), "data")] * 2, target=target)


@AHEAD_OF_TIME
@pytest.mark.parametrize("combined", [lambda a, b: a - b, lambda a, b: -0.5 * a - b / 4], ids=["difference", "scaled"])
def test_sums_that_are_only_subtracted_from_each_other_are_one_sum_of_the_difference(target, combined):
    told, better = of_two(target, combined), of_two(target, combined, is_summed_last=True)
    assert (only(told).kind, kinds(better)) == ("summed_apart", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(better) > 0
    assert only(told).advice.startswith("jax.lax.psum(a - b, axis) for ")


@ahead_of_time_gpu
@pytest.mark.parametrize(
    "combined",
    [
        lambda a, b: (a - b, a),
        lambda a, b: jnp.abs(a) - b,
        lambda a, b: a - 3 / b,
        lambda a, b: jax.lax.axis_index("data") * a - b,
    ],
    ids=["read beside", "not linear", "a number over it", "a factor of each device"],
)
def test_sums_of_which_no_difference_can_be_taken_first_are_two(combined):
    assert kinds(of_two("gpu:h100:1x8", combined)) == []


NEXT = [[0, 1], [2, 3], [4, 5], [6, 7]]
OPPOSITE = [[0, 4], [1, 5], [2, 6], [3, 7]]
EVERY_SECOND = [[0, 2, 4, 6], [1, 3, 5, 7]]


@ahead_of_time_gpu
@pytest.mark.parametrize(("second", "told"), [(NEXT, ["summed_apart"]), (OPPOSITE, [])], ids=["same", "others"])
def test_sums_over_other_groups_of_an_axis_are_no_one_sum(second, told):
    def step(x_BD, y_BD):
        first = jax.lax.psum(x_BD, "data", axis_index_groups=NEXT)
        return first - jax.lax.psum(y_BD, "data", axis_index_groups=second)

    mesh = mesh_of("gpu:h100:1x8")
    function = own(mesh, step, in_specs=P("data"), out_specs=P("data"))
    assert kinds(diagnosed(mesh, function, *[array(mesh, (512, 64), "data")] * 2, target="gpu:h100:1x8")) == told


@pytest.mark.parametrize(("second", "told"), [(NEXT, ["reduced_twice"]), (EVERY_SECOND, [])], ids=["same", "others"])
def test_a_sum_in_two_stages_over_other_groups_is_no_second_reduction(second, told):
    def step(x_BD):
        first = jax.lax.psum(x_BD, "data", axis_index_groups=NEXT)
        return jax.lax.psum(first, "data", axis_index_groups=second)

    mesh = cpu(data=8)
    function = own(mesh, step, in_specs=P("data"), out_specs=P("data"))
    assert kinds(diagnosed(mesh, function, array(mesh, (512, 64), "data"))) == told


def test_what_the_cpu_compiler_alone_leaves_apart_blames_no_program():
    mesh = cpu(data=8)
    args = array(mesh, (256, 32)), array(mesh, (64,), "data", dtype=jnp.int32), array(mesh, (64, 256), "data")
    assert kinds(diagnosed(mesh, tied, *args, out=P())) == []


def own_rows(pages_NPD, at_N):
    """Of the pages that are asked for those that this device has, and zeros."""
    first = jax.lax.axis_index("data") * pages_NPD.shape[0]
    is_own_N = (at_N >= first) & (at_N < first + pages_NPD.shape[0])
    rows_NPD = pages_NPD[jnp.where(is_own_N, at_N - first, 0)]
    return jnp.where(is_own_N.reshape(*is_own_N.shape, 1, 1), rows_NPD, 0)


@pytest.mark.parametrize("target", ON)
def test_rows_of_split_pages_are_summed_for_scores_and_outputs_of_far_fewer_bytes(target):
    mesh = mesh_of(target)

    def rows_summed(query_HD, pages_NPD, at_N):
        rows_TD = pages_NPD[at_N].reshape(-1, 64)
        return query_HD @ rows_TD.T

    def product_summed(query_HD, pages_NPD, at_N):
        return jax.lax.psum(query_HD @ own_rows(pages_NPD, at_N).reshape(-1, 64).T, "data")

    args = array(mesh, (4, 64)), array(mesh, (128, 16, 64), "data"), array(mesh, (32,), dtype=jnp.int32)
    told = diagnosed(mesh, rows_summed, *args, out=P(), target=target)
    summed = own(mesh, product_summed, in_specs=(P(), P("data"), P()), out_specs=P())
    better = diagnosed(mesh, summed, *args, target=target)
    assert (only(told).kind, kinds(better)) == ("summed_before_product", [])
    assert wasted(only(told)) == sent(told) - sent(better) == 15 * sent(better)


@pytest.mark.parametrize("target", ON)
def test_rows_of_split_pages_that_are_scattered_over_a_split_batch_are_scores_of_far_fewer_bytes(target):
    mesh = mesh_of(target)

    def rows_summed(query_BHD, pages_NPD, at_BN):
        rows_BTD = pages_NPD[at_BN].reshape(len(at_BN), -1, 64)
        return jnp.einsum("bhd,btd->bht", query_BHD, rows_BTD)

    def product_summed(query_BHD, pages_NPD, at_BN):
        query_BHD, at_BN = (jax.lax.all_gather(x, "data", tiled=True) for x in (query_BHD, at_BN))
        rows_BTD = own_rows(pages_NPD, at_BN).reshape(len(at_BN), -1, 64)
        scores_BHT = jnp.einsum("bhd,btd->bht", query_BHD, rows_BTD)
        return jax.lax.psum_scatter(scores_BHT, "data", tiled=True)

    pages, at = array(mesh, (128, 16, 64), "data"), array(mesh, (8, 4), "data", dtype=jnp.int32)
    args = array(mesh, (8, 4, 64), "data"), pages, at
    told = diagnosed(mesh, rows_summed, *args, out=P("data"), target=target)
    better = diagnosed(mesh, own(mesh, product_summed, in_specs=P("data"), out_specs=P("data")), *args, target=target)
    assert (only(told).kind, kinds(better)) == ("summed_before_product", [])
    assert wasted(only(told)) == sent(told) - sent(better) > 6 * sent(better)
    assert scaled(better.ledger.flops - told.ledger.flops, "FLOP") + " more" in only(told).sentence


@pytest.mark.parametrize("target", ON)
def test_a_mean_of_rows_that_are_then_multiplied_is_taken_of_the_product_for_what_is_said(target):
    mesh = mesh_of(target)

    def before(query_HD, rows_TD):
        return query_HD @ jax.lax.pmean(rows_TD, "data").T

    def after(query_HD, rows_TD):
        return jax.lax.pmean(query_HD @ rows_TD.T, "data")

    args = array(mesh, (4, 64)), array(mesh, (4096, 64), "data")
    split = {"in_specs": (P(), P("data")), "out_specs": P()}
    told, better = (diagnosed(mesh, own(mesh, mean, **split), *args, target=target) for mean in (before, after))
    assert (only(told).kind, kinds(better)) == ("summed_before_product", [])
    assert wasted(only(told)) == sent(told) - sent(better) == 15 * sent(better)


@AHEAD_OF_TIME
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_mean_that_is_multiplied_by_a_narrow_matrix_is_taken_of_the_product(target, dtype):
    """GPUs multiply in parts of the dim that is summed over, and add these up in f32."""
    mesh = mesh_of(target)

    def before(x_BD, w_DF):
        return jax.lax.pmean(x_BD, "data") @ w_DF

    def after(x_BD, w_DF):
        return jax.lax.pmean(x_BD @ w_DF, "data")

    def as_well(x_BD, w_DF):
        return before(x_BD, w_DF), jax.lax.pmean(x_BD, "data")

    args = array(mesh, (4096, 512), "data", dtype=dtype), array(mesh, (512, 64), dtype=dtype)
    split = P("data"), P()
    told, better, beside = (
        diagnosed(mesh, own(mesh, step, in_specs=split, out_specs=P()), *args, target=target)
        for step in (before, after, as_well)
    )
    assert (only(told).kind, kinds(better), kinds(beside)) == ("summed_before_product", [], [])
    assert wasted(only(told)) == sent(told) - sent(better) == 7 * sent(better)


def test_a_sum_that_is_scaled_by_an_array_before_its_product_has_to_come_first():
    mesh = cpu(data=8)

    def scaled_rows(query_HD, rows_TD, scale_TD):
        return query_HD @ (jax.lax.psum(rows_TD, "data") * jnp.tanh(scale_TD)).T

    args = array(mesh, (4, 64)), array(mesh, (4096, 64), "data"), array(mesh, (512, 64))
    function = own(mesh, scaled_rows, in_specs=(P(), P("data"), P()), out_specs=P())
    assert kinds(diagnosed(mesh, function, *args)) == []


def test_parts_of_a_sum_whose_product_is_as_large_are_scattered_first():
    mesh = cpu(data=8)

    def product(x_BD, w_DF):
        return jax.lax.psum_scatter(x_BD, "data", tiled=True) @ w_DF

    args = array(mesh, (512, 64), "data"), array(mesh, (64, 64))
    function = own(mesh, product, in_specs=(P("data"), P()), out_specs=P("data"))
    assert kinds(diagnosed(mesh, function, *args)) == []


@pytest.mark.parametrize(
    "product",
    [
        lambda x_BD: x_BD @ x_BD.T,
        lambda x_BD: x_BD.T @ (x_BD @ jnp.ones((64, 1))),
        lambda x_BD: (x_BD @ jnp.ones((64, 2)), jnp.max(x_BD)),
    ],
    ids=["with itself", "with what follows from it", "and read beside"],
)
def test_a_sum_whose_product_is_not_linear_in_it_or_that_is_read_otherwise_has_to_come_first(product):
    mesh = cpu(data=8)
    function = own(mesh, lambda x_BD: product(jax.lax.psum(x_BD, "data")), in_specs=P("data"), out_specs=P())
    assert kinds(diagnosed(mesh, function, array(mesh, (64, 64), "data"))) == []


def test_a_sum_that_each_device_multiplies_with_columns_of_its_own_has_to_come_first():
    mesh, columns = cpu(data=8), P(None, "data")
    args = (array(mesh, (256, 64), *columns), array(mesh, (64, 512), "data"), array(mesh, (512, 256), *columns))

    def by_hand(x_BD, rows_DF, columns_FE):
        return jax.lax.psum(x_BD @ rows_DF, "data") @ columns_FE

    def by_constraint(x_BD, rows_DF, columns_FE):
        return pinned(mesh, x_BD @ rows_DF, None, None) @ columns_FE

    split = own(mesh, by_hand, in_specs=(columns, P("data"), columns), out_specs=columns)
    assert [kinds(diagnosed(mesh, step, *args, out=columns)) for step in (split, by_constraint)] == [[], []]


def ring(q_RD, k_RD, rounds: int, is_last_apart: bool, unroll: int = 1):
    def attended(total_RD, k_RD):
        return total_RD + jnp.tanh(q_RD @ k_RD.T) @ k_RD

    def step(_, carried):
        total_RD, k_RD = carried
        return attended(total_RD, k_RD), jax.lax.ppermute(k_RD, "data", [(i, (i + 1) % 8) for i in range(8)])

    total_RD, last_RD = jax.lax.fori_loop(0, rounds, step, (jnp.zeros_like(q_RD), k_RD), unroll=unroll)
    return attended(total_RD, last_RD) if is_last_apart else total_RD


@pytest.mark.parametrize("target", ON)
def test_a_ring_of_8_sends_its_last_message_to_nobody_and_7_rounds_and_the_last_part_send_what_is_said(target):
    mesh = mesh_of(target)
    split = {"in_specs": P("data"), "out_specs": P("data")}
    args = array(mesh, (256, 32), "data"), array(mesh, (256, 32), "data")
    told = diagnosed(mesh, own(mesh, partial(ring, rounds=8, is_last_apart=False), **split), *args, target=target)
    better = diagnosed(mesh, own(mesh, partial(ring, rounds=7, is_last_apart=True), **split), *args, target=target)
    assert (only(told).kind, kinds(better)) == ("last_message_unused", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(told) / 8


@ahead_of_time_gpu
def test_of_a_ring_of_which_two_rounds_are_unrolled_a_gpu_sends_the_last_message_first_and_drops_it():
    target = "gpu:h100:1x8"
    mesh, split = mesh_of(target), {"in_specs": P("data"), "out_specs": P("data")}
    args = array(mesh, (256, 32), "data"), array(mesh, (256, 32), "data")
    told, better = (
        diagnosed(mesh, own(mesh, partial(ring, rounds=rounds, is_last_apart=rounds < 8, unroll=2), **split), *args)
        for rounds in (8, 7)
    )
    assert (only(told).kind, kinds(better)) == ("last_message_unused", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(told) / 8
    assert "in each of 8 iterations for the next one, where the compiler sends it" in only(told).sentence


def test_a_permute_of_the_same_line_that_is_needed_in_each_round_is_no_copy_of_one_that_is_not():
    def gradient(q_RD, k_RD):
        """That of keys goes around with them, and home at last."""

        def step(carried, _):
            k_RD, gradient_RD = carried
            gradient_RD += jnp.tanh(q_RD @ k_RD.T).T @ q_RD
            return [
                jax.lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)]) for x in (k_RD, gradient_RD)
            ], None

        return jax.lax.scan(step, [k_RD, jnp.zeros_like(k_RD)], None, length=8)[0][1]

    mesh = cpu(data=8)
    args = array(mesh, (256, 32), "data"), array(mesh, (256, 32), "data")
    one = only(diagnosed(mesh, own(mesh, gradient, in_specs=P("data"), out_specs=P("data")), *args))
    assert "in each of 8 iterations" in one.sentence and wasted(one) == 256 * 32 * 4 // 8


@pytest.mark.parametrize("target", [None, pytest.param("tpu:v5e:2x4", marks=ahead_of_time_tpu)])
def test_a_loop_that_begins_with_a_permute_of_zeros_can_do_its_first_round_before(target):
    def summed(is_first_apart, x_RC, w_CD):
        part = partial(jax.lax.dynamic_slice_in_dim, w_CD, slice_size=32, axis=1)
        at = jax.lax.axis_index("data")

        def step(total_RD, tick):
            moved_RD = jax.lax.ppermute(total_RD, "data", [(i, (i + 1) % 8) for i in range(8)])
            return moved_RD + x_RC @ part((at - tick - 1) % 8 * 32), None

        first_RD = x_RC @ part((at - 1) % 8 * 32) if is_first_apart else jnp.zeros((64, 32))
        return jax.lax.scan(step, first_RD, jnp.arange(is_first_apart, 8))[0]

    mesh, columns = mesh_of(target), P(None, "data")
    args = array(mesh, (64, 256), None, "data"), array(mesh, (256, 256), "data")
    split = {"in_specs": (columns, P("data")), "out_specs": columns}
    told, better = (
        diagnosed(mesh, own(mesh, partial(summed, apart), **split), *args, target=target) for apart in (0, 1)
    )
    assert (only(told).kind, kinds(better)) == ("last_message_unused", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(told) / 8
    assert "before it, if it begins with the permute" in only(told).advice


@ahead_of_time_gpu
def test_keys_and_values_that_a_gpu_packs_into_one_message_are_sent_once_too_often_each():
    target = "gpu:h100:1x8"
    mesh, split = mesh_of(target), {"in_specs": P("data"), "out_specs": P("data")}

    def attended(rounds, is_last_apart, q_RD, k_RD, v_RD):
        def part(total_RD, k_RD, v_RD):
            return total_RD + jnp.tanh(q_RD @ k_RD.T) @ v_RD

        def step(carried, _):
            total_RD, pair = carried
            return (part(total_RD, *pair), jax.lax.ppermute(pair, "data", [(i, (i + 1) % 8) for i in range(8)])), None

        (total_RD, pair), _ = jax.lax.scan(step, (jnp.zeros_like(q_RD), (k_RD, v_RD)), None, length=rounds)
        return part(total_RD, *pair) if is_last_apart else total_RD

    args = [array(mesh, (256, 32), "data")] * 3
    told, better = (
        diagnosed(mesh, own(mesh, partial(attended, *how), **split), *args, target=target)
        for how in ((8, False), (7, True))
    )
    assert len(told.ledger.transfers) == 1 and "2 permutes hand" in only(told).sentence
    assert (only(told).kind, kinds(better)) == ("last_message_unused", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(told) / 8


@ahead_of_time_gpu
def test_stages_hand_on_a_constant_first_where_a_gpu_moves_the_permute_and_in_the_backward_pass():
    target = "gpu:h100:1x8"
    mesh = mesh_of(target)

    def pipeline(is_last_apart, w_SDD, x_MBD):
        stage, batches = jax.lax.axis_index("data"), x_MBD.shape[0]

        def work(x_BD, done_MBD, tick):
            first_BD = x_MBD[jnp.minimum(tick, batches - 1)]
            y_BD = jnp.tanh(jnp.where(stage == 0, first_BD, x_BD) @ w_SDD[0])
            return y_BD, done_MBD.at[jnp.maximum(tick - 7, 0)].set(jnp.where(stage == 7, y_BD, 0))

        def step(carried, tick):
            y_BD, done_MBD = work(*carried, tick)
            return (jax.lax.ppermute(y_BD, "data", [(i, i + 1) for i in range(7)]), done_MBD), None

        ticks, start = batches + 7, (jnp.zeros_like(x_MBD[0]), jnp.zeros_like(x_MBD))
        (x_BD, done_MBD), _ = jax.lax.scan(step, start, jnp.arange(ticks - is_last_apart))
        return work(x_BD, done_MBD, ticks - 1)[1] if is_last_apart else done_MBD

    def gradient(is_last_apart):
        split = own(mesh, partial(pipeline, is_last_apart), in_specs=(P("data"), P()), out_specs=P("data"))
        return jax.grad(lambda w_SDD, x_MBD: jnp.sum(split(w_SDD, x_MBD) ** 2))

    args = array(mesh, (8, 64, 64), "data"), array(mesh, (4, 16, 64))
    told, better = (diagnosed(mesh, gradient(apart), *args, target=target) for apart in (False, True))
    assert (kinds(told), kinds(better)) == (["last_message_unused"] * 2, [])
    assert sum(map(wasted, told.findings)) == sent(told) - sent(better) == sent(told) / 11


@pytest.mark.parametrize("target", ON)
def test_a_value_that_a_round_gathers_for_each_of_two_products_is_gathered_once_where_it_is_pinned(target):
    mesh = mesh_of(target)

    def rounds(is_pinned, x_RD):
        def body(_, x_RD):
            whole_RD = pinned(mesh, x_RD) if is_pinned else x_RD
            return x_RD + jnp.tanh(x_RD @ whole_RD.T) @ whole_RD

        return jax.lax.fori_loop(0, 5, body, x_RD)

    x_RD = array(mesh, (128, 256), "data")
    told, better = (
        diagnosed(mesh, jax.jit(partial(rounds, is_pinned)), x_RD, out=P("data"), target=target)
        for is_pinned in (False, True)
    )
    assert (only(told).kind, kinds(better)) == ("gathered_twice", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(better) > 0


@pytest.mark.parametrize("target", ON)
def test_a_value_and_its_sine_are_one_gather_where_the_sine_is_of_the_gathered_value(target):
    mesh, columns = mesh_of(target), P(None, "data")

    def both(is_pinned, a_RR):
        whole_RR = pinned(mesh, a_RR) if is_pinned else a_RR
        return whole_RR, jnp.sin(whole_RR) @ a_RR

    a_RR = array(mesh, (256, 256), *columns)
    told, better = (
        diagnosed(mesh, jax.jit(partial(both, is_pinned)), a_RR, out=(P(), columns), target=target)
        for is_pinned in (False, True)
    )
    assert (only(told).kind, kinds(better)) == ("gathered_twice", [])
    assert wasted(only(told)) == sent(told) - sent(better) == sent(better) > 0


@ahead_of_time_gpu
@pytest.mark.parametrize(
    "two",
    [
        lambda a, b: (jnp.sin(a).astype(jnp.bfloat16), jnp.cos(a).astype(jnp.bfloat16)),
        lambda a, b: (a, jnp.sin(a) * b),
    ],
    ids=["as many bytes as the wide value", "another value in it"],
)
def test_what_takes_as_much_or_more_than_one_value_to_compute_is_gathered_by_itself(two):
    target = "gpu:h100:1x8"
    mesh = mesh_of(target)
    args = [array(mesh, (256, 256), "data")] * 2
    found = diagnosed(mesh, two, *args, out=(P(), P()), target=target)
    assert sum(len(t.parts) or 1 for t in found.ledger.transfers) == 2 and kinds(found) == []


def test_the_highest_of_each_column_and_where_it_is_are_two_values_to_gather():
    mesh = cpu(data=8)

    def highest(x_RC):
        return jnp.sort(x_RC, 0), jnp.argmax(x_RC, 0)

    found = diagnosed(mesh, highest, array(mesh, (64, 64), "data"), out=(P(), P()))
    small = [t for t in found.ledger.transfers if t.kind == "all_gather" and t.payload_bytes == 2048]
    assert len(small) == 2 and "gathered_twice" not in kinds(found)


@ahead_of_time_gpu
@pytest.mark.parametrize(("target", "is_told"), [("gpu:h100:2x8", True), ("gpu:h100:1x8", False)])
def test_a_matrix_that_iterations_sum_over_hosts_is_gathered_once_for_what_is_said_and_not_over_a_fast_link(
    target, is_told
):
    devices = 16 if is_told else 8
    mesh = mesh_on(target, data=devices)

    def rounds(x_RC):
        return jax.lax.fori_loop(0, 5, lambda _, x_RC: 1.5 * x_RC - 0.5 * (x_RC @ x_RC.T) @ x_RC, x_RC)

    def gathered(x_RC):
        size = x_RC.shape[1]
        whole_RC = rounds(jax.lax.all_gather(x_RC, "data", axis=1, tiled=True))
        return jax.lax.dynamic_slice_in_dim(whole_RC, jax.lax.axis_index("data") * size, size, axis=1)

    columns, x_RC = P(None, "data"), array(mesh, (1024, 2048), None, "data")
    told = diagnosed(mesh, rounds, x_RC, out=columns, target=target)
    better = diagnosed(mesh, own(mesh, gathered, in_specs=columns, out_specs=columns), x_RC, target=target)
    assert kinds(told) == ["summed_every_round"] * is_told
    if is_told:
        assert wasted(only(told)) == sent(told) - sent(better) > 0
        assert scaled(better.ledger.flops - told.ledger.flops, "FLOP") + " more" in only(told).sentence


def stack(rows: int, columns: int):
    """Ten rounds of Newton-Schulz of each of three matrices, the columns split, as a compiler shares them out and with
    each matrix gathered before its rounds."""
    mesh, split = cpu(data=8), P(None, None, "data")

    def rounds(x_RC):
        def body(x_RC, bias_R):
            gram_RR = x_RC @ x_RC.T
            return 1.5 * x_RC - 0.5 * gram_RR @ x_RC, gram_RR[0] + bias_R

        return jax.lax.scan(body, x_RC, jnp.ones((10, rows)))

    def gathered(x_RC):
        size = x_RC.shape[1]
        whole_RC, first_NR = rounds(jax.lax.all_gather(x_RC, "data", axis=1, tiled=True))
        return jax.lax.dynamic_slice_in_dim(whole_RC, jax.lax.axis_index("data") * size, size, axis=1), first_NR

    x_LRC = array(mesh, (3, rows, columns), *split)
    own_rounds = own(mesh, lambda x: jax.lax.map(gathered, x), in_specs=split, out_specs=(split, P()))
    shared = diagnosed(mesh, lambda x_LRC: jax.lax.map(rounds, x_LRC), x_LRC, out=(split, P()))
    return shared, diagnosed(mesh, own_rounds, x_LRC)


@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (64, 512)])
def test_each_matrix_of_a_stack_is_gathered_before_its_loop_and_nothing_else_that_the_loop_carries(rows, columns):
    shared, gathered = stack(rows, columns)
    assert (only(shared).kind, kinds(gathered)) == ("summed_every_round", [])
    assert wasted(only(shared)) == sent(shared) - sent(gathered) > 0


def test_rounds_of_larger_matrices_are_shared_out_for_the_bytes_that_are_said():
    shared, gathered = stack(128, 8192)
    assert (kinds(shared), only(gathered).kind) == ([], "computed_redundantly")
    assert f"split, each device would send at least {exact(sent(shared))} B" in only(gathered).sentence
    assert sum(only(gathered).flops.values()) == gathered.ledger.flops - shared.ledger.flops


@pytest.mark.parametrize("unroll", [2, 4])
@pytest.mark.parametrize("target", ON)
def test_micro_batches_of_an_unrolled_loop_are_each_reduced_where_one_reduction_would_do(target, unroll):
    mesh = mesh_of(target)

    def step(w_DF, x_NBD):
        def add(total_DF, x_BD):
            return total_DF + jax.grad(lambda w_DF: jnp.sum(jnp.tanh(x_BD @ w_DF) ** 2))(w_DF), None

        return jax.lax.scan(add, jnp.zeros_like(w_DF), x_NBD, unroll=unroll)[0]

    args = array(mesh, (64, 128)), array(mesh, (8, 64, 64), None, "data")
    told = diagnosed(mesh, step, *args, out=P(), target=target)
    finding = told.findings[0]
    once = own(mesh, lambda w, x: jax.lax.psum(step(w, x), "data"), in_specs=(P(), P(None, "data")), out_specs=P())
    assert finding.kind == "reduced_in_loop"
    assert wasted(finding) == sent(told) - sent(diagnosed(mesh, once, *args, target=target))


PIPELINED = {f"xla_gpu_enable_pipelined_{kind}": True for kind in ("all_gather", "all_reduce", "reduce_scatter")}
DOUBLE = {"xla_gpu_enable_while_loop_double_buffering": True}
UNROLLED = {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_FULL_UNROLL"}
# XLA of jax 0.11 has no flags of their own for pipelined collectives.
FLAGS = {"pipelined": PIPELINED, "double": DOUBLE, "both": PIPELINED | DOUBLE, "unrolled": UNROLLED}


def under(flags: str, mesh, function, *args, **asked):
    """The diagnosis of a program compiled with flags, where XLA has them."""
    try:
        return diagnosed(mesh, function, *args, compiler_options=FLAGS[flags], **asked)
    except jax.errors.JaxRuntimeError as refusal:
        if "No such compile option" not in str(refusal):
            raise
        pytest.skip(str(refusal))


@ahead_of_time_gpu
def test_a_gather_that_is_written_into_a_loop_is_to_be_taken_out_and_no_constraint_is_tried_for_it():
    target = "gpu:h100:1x8"
    mesh, split = mesh_of(target), P(None, "data")

    def products(is_before, w_DF, x_NBD):
        def whole():
            return jax.lax.all_gather(w_DF, "data", tiled=True)

        w_EF = whole() if is_before else None
        return jax.lax.map(lambda x_BD: jnp.tanh(x_BD @ (whole() if w_EF is None else w_EF)), x_NBD)

    args = array(mesh, (256, 64), "data"), array(mesh, (4, 64, 256), None, "data")
    told, better = (
        diagnosed(mesh, own(mesh, partial(products, before), in_specs=(P("data"), split), out_specs=split), *args)
        for before in (False, True)
    )
    one = only(told)
    assert (one.kind, one.remedy, kinds(better)) == ("repeated_in_loop", (), [])
    assert wasted(one) == sent(told) - sent(better) > 0 and "out of the loop's body" in one.advice


@ahead_of_time_gpu
@pytest.mark.parametrize("flags", FLAGS)
def test_flags_that_take_iterations_out_of_a_loop_or_join_them_change_nothing_of_what_is_said(flags):
    target = "gpu:h100:1x8"
    mesh = mesh_of(target)

    def step(w_DF, x_NBD):
        def add(total_DF, x_BD):
            return total_DF + jax.grad(lambda w_DF: jnp.sum(jnp.tanh(x_BD @ w_DF) ** 2))(w_DF), None

        return jax.lax.scan(add, jnp.zeros_like(w_DF), x_NBD)[0]

    args = array(mesh, (64, 128), "data"), array(mesh, (8, 64, 64), None, "data")
    found = under(flags, mesh, step, *args, out=P("data"), target=target)
    is_loop = flags != "unrolled"
    expected = ["reduced_in_loop", "repeated_in_loop"] if is_loop else ["gathered_twice", "summed_apart"]
    assert sorted(kinds(found)) == sorted(expected)
    assert sum(map(wasted, found.findings)) == sent(found) * 7 / 8


@ahead_of_time_gpu
def test_a_ring_of_which_a_flag_joins_two_rounds_still_sends_one_message_of_8_too_many():
    target = "gpu:h100:1x8"
    mesh, split = mesh_of(target), {"in_specs": P("data"), "out_specs": P("data")}
    args = array(mesh, (256, 32), "data"), array(mesh, (256, 32), "data")
    joined = own(mesh, partial(ring, rounds=8, is_last_apart=False), **split)
    found = diagnosed(mesh, joined, *args, target=target, compiler_options=DOUBLE)
    assert len(found.ledger.transfers) == 2 and "each of 8 iterations" in only(found).sentence
    assert wasted(only(found)) == sent(found) / 8


@ahead_of_time_gpu
@pytest.mark.parametrize("flags", ["both", "unrolled"])
def test_layers_that_each_gather_weights_of_their_own_need_no_word_under_any_flag(flags):
    target = "gpu:h100:1x8"
    mesh = mesh_of(target)

    def loss(w_LDD, x_BD):
        return jnp.sum(jax.lax.scan(lambda x_BD, w_DD: (jnp.tanh(x_BD @ w_DD), None), x_BD, w_LDD)[0] ** 2)

    args = array(mesh, (8, 128, 128), None, "data"), array(mesh, (64, 128), "data")
    split = P(None, "data")
    found = under(flags, mesh, jax.grad(loss), *args, out=split, target=target)
    assert kinds(found) == []


def test_the_condition_of_a_loop_that_devices_agree_on_is_told_and_one_that_each_has_is_not():
    mesh = cpu(data=8)

    def settled(x_RD):
        def body(carried):
            x_RD, _ = carried
            moved_RD = jnp.cos(x_RD)
            return moved_RD, jnp.sqrt(jnp.max(jnp.abs(moved_RD - x_RD)))

        def is_moving(carried):
            return carried[1] > 1e-3

        return jax.lax.while_loop(is_moving, body, (x_RD, jnp.float32(1)))

    def rounds(x_RD):
        return jax.lax.while_loop(lambda carried: carried[1] > 0, lambda c: (jnp.cos(c[0]), c[1] // 2), (x_RD, 77))[0]

    x_RD = array(mesh, (256, 32), "data")
    told = diagnosed(mesh, lambda x_RD: settled(x_RD)[0], x_RD, out=P("data"))
    assert only(told).kind == "condition_reduced"
    assert kinds(diagnosed(mesh, rounds, x_RD, out=P("data"))) == []


@ahead_of_time_gpu
def test_state_that_every_device_updates_whole_and_has_no_room_for_is_told_with_what_a_split_one_holds():
    mesh = mesh_on("gpu:h100:1x8", data=8)

    def step(state_LDF, x_BD):
        def loss(w_LDF):
            return jnp.sum(jax.lax.scan(lambda x_BD, w_DF: (x_BD @ w_DF, None), x_BD, w_LDF)[0])

        return state_LDF - jax.grad(loss)(state_LDF)

    def inspected(spec):
        args = array(mesh, (256, 8192, 8192), None, spec), array(mesh, (64, 8192), "data")
        return diagnosed(mesh, step, *args, out=P(None, spec), target="gpu:h100:1x8", donate_argnums=0)

    whole, split = inspected(None), inspected("data")
    told = {finding.kind: finding for finding in whole.findings}
    assert [finding.kind for finding in whole.findings[:2]] == ["out_of_memory", "held_whole"]
    assert told["held_whole"].memory_bytes == whole.ledger.memory.arguments - split.ledger.memory.arguments > 0
    assert "held_whole" not in kinds(split)
