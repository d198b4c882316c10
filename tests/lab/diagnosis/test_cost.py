"""What findings cost, and how they are ordered by it: of compiled texts, with counts by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab.compile import inspection
from lab.core.ledger import Memory
from lab.diagnosis import cost
from lab.diagnosis.cost import Load, flops_per_s, seconds
from lab.meshes.hardware import chip
from lab.meshes.platforms import LinkName
from lab.meshes.targets import parse_target
from lab.report.diagnosis import finding_text
from lab.report.html import reports
from tests.cases.compiling import ahead_of_time_gpu, array, compiled, cpu, mesh_on
from tests.lab.diagnosis import diagnosing
from tests.lab.diagnosis.diagnosing import kinds, only, wasted
from tests.lab.diagnosis.test_memory import diagnosis, program

GPU = "gpu:h100:1x8"
BF16, F32, NVLINK, HBM, POOL = 989.5e12, 494.5e12, 450e9, 3.35e12, 63_763_120_128
ROWS, D, SUMMED = 4096, 8192, 1 << 20


def text(spread: str = "devices=[2,1,4]<=[8] last_tile_dim_replicate", dtype: str = "bf16", calls: str = "") -> str:
    """A product x @ w of [ROWS, D] rows a device, and a sum over all 8 devices of a value that all have."""
    return f"""HloModule step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main (x: {dtype}[{ROWS},{D}], w: {dtype}[{D},{D}], v: f32[{SUMMED}]) -> ({dtype}[{ROWS},{D}], f32[{SUMMED}]) {{
  %x = {dtype}[{ROWS},{D}]{{1,0}} parameter(0), sharding={{{spread}}}, metadata={{op_name="x"}}
  %w = {dtype}[{D},{D}]{{1,0}} parameter(1), sharding={{replicated}}, metadata={{op_name="w"}}
  %v = f32[{SUMMED}]{{0}} parameter(2), sharding={{replicated}}, metadata={{op_name="v"}}
  %dot = {dtype}[{ROWS},{D}]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %sum = f32[{SUMMED}]{{0}} all-reduce(%v), replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %t = ({dtype}[{ROWS},{D}]{{1,0}}, f32[{SUMMED}]{{0}}) tuple(%dot, %sum)
}}
"""


SPLIT = "devices=[8,1]<=[8]"
FLOPS = 2 * ROWS * D * D
SENT = 2 * 7 * 4 * SUMMED // 8


def diagnosed(text: str, target: str = GPU, memory: Memory | None = None):
    return diagnosis.of(program(text, target, memory, "data=2,tensor=4"))


def test_products_that_four_devices_repeat_stand_above_bytes_that_take_less_time():
    found = diagnosed(text())
    assert kinds(found) == ["computed_redundantly", "reduced_for_nothing"]
    repeated, summed = found.findings
    assert repeated.flops == {"bf16": 3 * FLOPS // 4} and repeated.totals.wire_bytes == 0
    assert repeated.cost.seconds == pytest.approx(0.75 * FLOPS / BF16)
    assert (wasted(summed), summed.cost.seconds) == (SENT, pytest.approx(SENT / NVLINK))


def test_the_order_turns_where_the_bytes_take_longer():
    slower = text().replace(f"f32[{SUMMED}]", f"f32[{256 * SUMMED}]")
    assert kinds(diagnosed(slower)) == ["reduced_for_nothing", "computed_redundantly"]


def test_shares_are_of_the_busiest_of_wires_products_and_memory():
    step = diagnosed(text()).step
    assert step.busiest == "products" and step.least == pytest.approx(FLOPS / BF16)
    read = 2 * (ROWS * D + D * D) + 4 * SUMMED
    assert step.seconds == pytest.approx({"NVLink 4": SENT / NVLINK, "products": FLOPS / BF16, "memory": read / HBM})
    assert diagnosed(text()).findings[0].cost.share_of_step == pytest.approx(0.75)


def test_a_donated_result_is_no_second_write():
    read = 2 * (ROWS * D + D * D) + 4 * SUMMED
    memory = Memory(arguments=1, outputs=1_000_000, temporaries=1, aliased=400_000, peak=None)
    assert diagnosed(text(), memory=memory).step.seconds["memory"] == pytest.approx((read + 600_000) / HBM)


def test_rows_that_a_lookup_takes_are_not_the_whole_table():
    looked_up = text().replace(
        "= bf16[4096,8192]{1,0} dot(%x, %w), lhs_c", "= bf16[4096,8192]{1,0} gather(%w, %x), lhs_c"
    )
    assert diagnosed(looked_up).step.seconds["memory"] == pytest.approx((2 * ROWS * D + 4 * SUMMED) / HBM)


def test_what_costs_less_than_a_hundredth_of_the_step_is_a_remark_of_one_line():
    small = text(SPLIT).replace(f"f32[{SUMMED}]", "f32[65536]")
    found = diagnosed(small)
    (remark,) = found.findings
    share = 2 * 7 * 4 * 65536 / 8 / NVLINK / (FLOPS / BF16)
    assert (remark.kind, remark.is_remark) == ("reduced_for_nothing", True)
    assert remark.cost.share_of_step == pytest.approx(share) and share < 0.01
    assert found.json_object().findings[0].remark
    assert not diagnosed(text(SPLIT)).findings[0].is_remark


@ahead_of_time_gpu
@pytest.mark.compiles
def test_what_costs_much_of_the_steps_in_which_a_rare_branch_does_not_run_is_no_remark():
    mesh = mesh_on(GPU, data=8)

    def step(w_DF, x_BD, number):
        def gathered(x):
            return jax.lax.all_gather(x, "data", tiled=True)

        checked = jax.lax.cond(number % 1000 == 0, lambda: jnp.sum(jnp.tanh(gathered(x_BD))), lambda: 0.0)
        return jax.lax.fori_loop(0, 8, lambda _, y_BF: jnp.tanh(y_BF @ gathered(w_DF)), jnp.ones((8, 256))), checked

    split = jax.shard_map(
        step, mesh=mesh, in_specs=(P("data"), P("data"), P()), out_specs=(P("data"), P()), check_vma=False
    )
    args = array(mesh, (256, 256), "data"), array(mesh, (8 * 8192, 4096), "data"), array(mesh, (), dtype=jnp.int32)
    finding = only(diagnosing.diagnosed(mesh, split, *args, target=GPU))
    assert (finding.kind, finding.is_remark) == ("repeated_in_loop", False)
    assert finding.cost.share_of_step < 0.01 < 0.05 < finding.cost.share_at_most < 1


def test_remarks_stand_last_and_without_advice_in_the_text(lab, tmp_path):
    (tmp_path / "step.hlo").write_text(text().replace(f"f32[{SUMMED}]", "f32[65536]"))
    told = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4", "--target", GPU).out
    assert told.startswith("step.hlo: 1 finding and 1 remark, worst first\npercentages are of 556 us, the least")
    assert "\n1. computed_redundantly: " in told and "417 us: 75 % of the step\n   try: " in told
    (line,) = [line for line in told.splitlines() if line.startswith("remark: ")]
    assert line.startswith("remark: reduced_for_nothing: ") and line.endswith(" of the step)")


def test_any_passes_remarks_and_a_kind_that_is_named_does_not(lab, tmp_path):
    (tmp_path / "step.hlo").write_text(text(SPLIT).replace(f"f32[{SUMMED}]", "f32[65536]"))
    inspect = ("inspect", "step.hlo", "--mesh", "data=2,tensor=4", "--target", GPU, "--fail-on")
    assert [lab(*inspect, kind).status for kind in ("any", "reduced_for_nothing")] == [0, 1]


def test_without_a_chip_the_order_is_that_of_a_host_of_h100s_and_no_share_is_said(lab, tmp_path):
    found = diagnosed(text(), target="cpu:8")
    assert kinds(found) == ["computed_redundantly", "reduced_for_nothing"] and found.step.is_reference
    assert all(f.cost.seconds is f.cost.share_of_step is f.cost.share_of_memory is None for f in found.findings)
    assert not any(f.is_remark for f in diagnosed(text(SPLIT).replace(f"[{SUMMED}]", "[65536]"), "cpu:8").findings)
    (tmp_path / "step.hlo").write_text(text())
    told = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4").out
    assert "\nordered by the rates of a host of NVIDIA H100 SXM 80 GB, for the target names no chip\n" in told
    assert "of the step" not in told


def test_memory_counts_by_its_share_of_what_jax_takes():
    found = diagnosed(text(), memory=Memory(arguments=1, outputs=1, temporaries=1, aliased=0, peak=1))
    held = replace(found.findings[1], kind="held_whole", transfers=(), memory_bytes=POOL * 8 // 10)
    asked = program(text(), GPU, None, "data=2,tensor=4")
    (first, second), _ = cost.priced(asked, (found.findings[0], held))
    assert (first.kind, second.kind) == ("held_whole", "computed_redundantly")
    assert first.cost.share_of_memory == pytest.approx(0.8, rel=1e-9)
    (first, second), _ = cost.priced(asked, (replace(held, memory_bytes=POOL // 200), found.findings[0]))
    assert (first.kind, second.kind, second.is_remark) == ("computed_redundantly", "held_whole", True)
    assert "waste: 0.5 % of the memory that JAX takes" in finding_text(1, second)


def test_what_runs_unknown_times_is_no_remark_and_has_no_share():
    found = diagnosed(text(SPLIT).replace(f"f32[{SUMMED}]", "f32[65536]"))
    (remark,) = found.findings
    unknown = replace(remark, transfers=tuple(replace(t, executions=None) for t in remark.transfers))
    (again,), _ = cost.priced(program(text(SPLIT), GPU, None, "data=2,tensor=4"), (unknown,))
    assert (again.cost.share_of_step, again.is_remark) == (None, False)


@pytest.mark.parametrize(
    ("name", "dtype", "rate"),
    [
        ("h100", "f32", 494.5e12),
        ("h100", "f64", 67e12),
        ("h100", "f8e4m3fn", 1979e12),
        ("a100", "f8e5m2", 312e12),
        ("v5e", "f32", 197e12),
        ("v5e", "s8", 393e12),
        ("h100", "f16", 989.5e12),
    ],
)
def test_products_run_at_the_rate_of_the_way_that_xla_takes_by_default(name, dtype, rate):
    assert flops_per_s(chip(name), dtype) == rate


def test_the_devices_of_a_chip_share_its_rates():
    half = chip("7x")
    taken = seconds(Load({LinkName.DCN: 10**9}, {"bf16": 10**12}, 10**9), half)
    assert half.devices_per_chip == 2 and taken["products"] == 2 * 10**12 / half.flops_per_s["bf16"].value
    assert taken[half.slow.name] == 2 * 10**9 / half.slow.value
    assert taken["memory"] == 2 * 10**9 / half.memory_bytes_per_s.value


def test_of_groups_over_two_hosts_of_four_a_seventh_leaves_them_and_the_rest_stays_inside():
    """In two steps: scattered and gathered inside, each device's quarter reduced over the hosts."""
    found = diagnosed(text(SPLIT), "gpu:h100:2x4")
    (summed,) = found.findings
    inside, between = 2 * 3 * 4 * SUMMED // 4, 2 * 4 * SUMMED // 4 // 2
    assert inside + between == SENT == summed.totals.wire_bytes
    assert summed.cost.wire_bytes == {LinkName.HOST: inside, LinkName.NETWORK: between}
    assert summed.seconds == pytest.approx(max(inside / NVLINK, between / 50e9))
    assert diagnosed(text(SPLIT), "gpu:h100:8x1").findings[0].cost.wire_bytes == {LinkName.NETWORK: SENT}


def test_of_an_exchange_over_two_hosts_of_four_four_of_seven_messages_leave_a_host():
    exchange = text(SPLIT).replace("all-reduce(%v)", "all-to-all(%v), dimensions={0}").replace(", to_apply=%add", "")
    step = diagnosed(exchange, "gpu:h100:2x4").step
    whole = 7 * 4 * SUMMED / 8
    assert (step.seconds["NVLink 4"], step.seconds["NDR InfiniBand"]) == pytest.approx(
        (whole * 3 / 7 / NVLINK, whole * 4 / 7 / 50e9)
    )


def test_a_page_says_what_is_wasted_and_lists_remarks_after_the_findings():
    page = reports.inspection([diagnosed(text().replace(f"f32[{SUMMED}]", "f32[65536]"))])
    assert "1 finding and 1 remark" in page and "percentages are of 556 us, the least that the step takes" in page
    assert page.index("waste: 412.3 GFLOP of bf16, 417 us: 75 % of the step") < page.index(
        "Remark: reduced_for_nothing"
    )


@pytest.mark.compiles
def test_the_flops_that_are_wasted_are_those_that_a_split_spares_by_xlas_own_count():
    mesh = cpu(data=2, tensor=4)

    def product(*spec):
        args = array(mesh, (1024, 512), *spec), array(mesh, (512, 512))
        built = compiled(mesh, lambda x, w: x @ w, *args, out=P(*spec))
        read = inspection.read_program(built, args, mesh, parse_target("cpu:8"), source="product")
        return diagnosis.of(read), built.cost_analysis()["flops"]

    (told, before), (better, after) = product("data"), product(("data", "tensor"))
    (finding,) = told.findings
    assert kinds(better) == [] and finding.flops == {"f32": before - after} == {"f32": 3 * 2 * 512**3 // 4}
