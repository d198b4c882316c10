"""Sums that gather: zeros but for the device's own part, added up over all."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.compile.inspection import inspect
from lab.core.ledger import Kind, Overlap, Transfer
from lab.hlo import read_text
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target

TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%placed (into: f32[64], part: f32[16], at: u32[]) -> f32[64] {
  %into = f32[64]{0} parameter(0)
  %part = f32[16]{0} parameter(1)
  %at = u32[] parameter(2)
  ROOT %u = f32[64]{0} dynamic-update-slice(%into, %part, %at)
}

ENTRY %main (w: f32[16], x: f32[64]) -> f32[64] {
  %w = f32[16]{0} parameter(0), metadata={op_name="w"}
  %x = f32[64]{0} parameter(1), metadata={op_name="x"}
  %id = u32[] partition-id()
  %size = u32[] constant(16)
  %at.1 = u32[] multiply(%id, %size)
  %zero = f32[] constant(0), metadata={op_name="jit(f)/transpose(jvp(embedding))/scatter-add"}
  %zeros = f32[64]{0} broadcast(%zero), dimensions={}, metadata={op_name="jit(f)/transpose(jvp(embedding))/scatter-add"}
  MADE
  %ar = f32[64]{0} all-reduce(%made), replica_groups={{0,1,2,3}}, to_apply=%add
  %copied = f32[64]{0} copy(%ar)
  ROOT %product = f32[64]{0} multiply(%x, %copied), metadata={op_name="jit(f)/jvp(mlp)/mul"}
}
"""
ALONE = "%made = f32[64]{0} dynamic-update-slice(%zeros, %w, %at.1)"
FUSED = "%made = f32[64]{0} fusion(%zeros, %w, %at.1), kind=kLoop, calls=%placed"
COPIED = f"{ALONE.replace('%made', '%placed.1')}\n  %made = f32[64]{{0}} copy(%placed.1)"


def summed(made: str) -> Transfer:
    (transfer,) = read_text(TEXT.replace("MADE", made)).transfers
    return transfer


@pytest.mark.parametrize("made", [ALONE, FUSED, COPIED], ids=["alone", "fused", "copied"])
def test_a_part_placed_in_zeros_and_summed_is_gathered_for_what_uses_it_not_for_what_has_the_same_zeros(made):
    found = summed(made)
    assert (found.kind, found.is_masked_gather, found.scope, found.phase, found.op_name) == (
        Kind.ALL_REDUCE,
        True,
        "mlp",
        "forward",
        None,
    )


ON_ALL_DEVICES = "  %ar = f32[64]{0} all-reduce(%made), replica_groups={{0,1,2,3}}, to_apply=%add\n"
OFFLOADED = """\
  %ready = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  %start = ((f32[64]{0}, token[]), f32[64]{0}) async-start(%made, %ready), async_execution_thread="sparsecore", calls=%ran
  %ar = f32[64]{0} async-done(%start)
"""
SPARSE_CORE = """\
%called (p.1: f32[64], t.1: token[]) -> f32[64] {
  %t.1 = token[] parameter(1)
  %p.1 = f32[64]{0} parameter(0)
  ROOT %sum.1 = f32[64]{0} all-reduce(%p.1), replica_groups={{0,1,2,3}}, to_apply=%add
}, execution_thread="sparsecore"

%ran (p.2: f32[64], t.2: token[]) -> f32[64] {
  %p.2 = f32[64]{0} parameter(0)
  %t.2 = token[] parameter(1)
  ROOT %call = f32[64]{0} call(%p.2, %t.2), to_apply=%called
}, execution_thread="sparsecore"

ENTRY"""


def offloaded(made: str) -> str:
    """As TPU 7x runs it: on the SparseCores, in a computation that takes what is made outside as a parameter."""
    return TEXT.replace(ON_ALL_DEVICES, OFFLOADED).replace("ENTRY", SPARSE_CORE).replace("MADE", made)


@pytest.mark.parametrize("made", [ALONE, FUSED, COPIED], ids=["alone", "fused", "copied"])
def test_a_sum_on_sparse_cores_gathers_what_is_placed_in_zeros_outside_for_what_uses_it(made):
    (found,) = read_text(offloaded(made)).transfers
    assert (found.kind, found.is_masked_gather, found.overlap) == (Kind.ALL_REDUCE, True, Overlap.ASYNC)
    assert (found.scope, found.phase) == ("mlp", "forward")


@pytest.mark.parametrize("made", [ALONE, FUSED], ids=["alone", "fused"])
def test_a_sum_on_sparse_cores_does_not_gather_what_is_placed_in_what_is_not_zero(made):
    (found,) = read_text(offloaded(made.replace("%zeros", "%x"))).transfers
    assert not found.is_masked_gather


def test_a_sum_that_another_call_gives_something_else_than_zeros_does_not_gather():
    again = f"  {ALONE}\n  %again = f32[64]{{0}} call(%made, %ready), to_apply=%called\n  %copied = "
    other = ALONE.replace("%zeros", "%x").replace("%made", "%other")
    text = offloaded(other).replace("async-start(%made", "async-start(%other").replace("  %copied = ", again)
    (found,) = read_text(text).transfers
    assert (found.executions, found.is_masked_gather) == (2, False)


ADDED = "%made = f32[64]{0} add(%x, %zeros)"


@pytest.mark.parametrize(
    "made", [ALONE.replace("%zeros", "%x"), FUSED.replace("%zeros", "%x"), ADDED], ids=["alone", "fused", "not placed"]
)
def test_a_part_placed_in_what_is_not_zero_is_not_gathered(made):
    assert not summed(made).is_masked_gather


@pytest.mark.parametrize("made", [ALONE, FUSED], ids=["alone", "fused"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("%w, %at.1)", "%w, %size)"), ("constant(16)", "constant(8)"), ("%w, %at.1)", "%w, %unknown)")],
    ids=["the same on all", "overlapping", "unknown"],
)
def test_a_part_at_a_place_that_is_not_its_own_is_not_gathered(made, before, after):
    (found,) = read_text(TEXT.replace("MADE", made).replace(before, after)).transfers
    assert not found.is_masked_gather


IN_TABLE = """\
  %places = u32[4]{0} constant({...})
  %place = u32[1]{0} dynamic-slice(%places, INDEX), dynamic_slice_sizes={1}
  %at.1 = u32[] bitcast(%place)
"""


@pytest.mark.parametrize(("index", "is_own"), [("%id", True), ("%size", False)], ids=["own", "one of all"])
def test_a_part_is_at_its_own_place_where_a_table_has_it_by_the_devices_number(index, is_own):
    computed = "  %at.1 = u32[] multiply(%id, %size)\n"
    assert computed in TEXT
    text = TEXT.replace(computed, IN_TABLE.replace("INDEX", index)).replace("MADE", ALONE)
    (found,) = read_text(text).transfers
    assert found.is_masked_gather is is_own


OF_SLICES = """\
  %slice = u32[] custom-call(), custom_call_target="CALLED"
  %devices = u32[] constant(4)
  %before = u32[] multiply(%slice, %devices)
  %number = u32[] add(%before, %id)
  %first = u32[] constant(0)
  %last = u32[] constant(LAST)
  %clamped = u32[] clamp(%first, %number, %last)
"""


@pytest.mark.parametrize(
    ("called", "last", "is_own"), [("SliceId", 7, True), ("SliceId", 2, False), ("Shuffled", 7, False)]
)
def test_a_device_of_several_slices_is_known_by_its_slice_and_its_number_there(called, last, is_own):
    computed = "  %at.1 = u32[] multiply(%id, %size)\n"
    number = OF_SLICES.replace("CALLED", called).replace("LAST", str(last))
    text = TEXT.replace(computed, number + IN_TABLE.replace("INDEX", "%clamped")).replace("MADE", ALONE)
    (found,) = read_text(text).transfers
    assert found.is_masked_gather is is_own


STATE = "(f32[16]{0}, u32[4]{0}, u32[1]{0}, f32[64]{0})"
LOOP = f"""\
%body (s: {STATE}) -> {STATE} {{
  %s = {STATE} parameter(0)
  %w = f32[16]{{0}} get-tuple-element(%s), index=0
  %table = u32[4]{{0}} get-tuple-element(%s), index=1
  %size = u32[1]{{0}} get-tuple-element(%s), index=2
  %id = u32[] partition-id()
  %place = u32[1]{{0}} dynamic-slice(%table, %id), dynamic_slice_sizes={{1}}
  %scaled = u32[1]{{0}} multiply(%place, %size)
  %at.1 = u32[] bitcast(%scaled)
  %zero = f32[] constant(0)
  %zeros = f32[64]{{0}} broadcast(%zero), dimensions={{}}
  {ALONE}
  %ar = f32[64]{{0}} all-reduce(%made), replica_groups={{{{0,1,2,3}}}}, to_apply=%add
  ROOT %next = {STATE} tuple(%w, %table, %size, %ar)
}}

%condition (c: {STATE}) -> pred[] {{
  %c = {STATE} parameter(0)
  ROOT %goes_on = pred[] custom-call(%c), custom_call_target="goes_on"
}}

ENTRY %main (w: f32[16], x: f32[64]) -> {STATE} {{
  %w.1 = f32[16]{{0}} parameter(0)
  %x = f32[64]{{0}} parameter(1)
  %table.1 = u32[4]{{0}} constant({{...}})
  %size.1 = u32[1]{{0}} constant({{16}})
  %start = {STATE} tuple(%w.1, %table.1, %size.1, %x)
  ROOT %loop = {STATE} while(%start), condition=%condition, body=%body
}}
"""

OTHER_SIZE = f"""\
%other = {STATE} custom-call(%s), custom_call_target="other"
  %size.2 = u32[1]{{0}} get-tuple-element(%other), index=2
  ROOT %next = {STATE} tuple(%w, %table, %size.2, %ar)"""


@pytest.mark.parametrize(
    ("before", "after", "is_own"),
    [
        ("", "", True),
        ("tuple(%w, %table, %size, %ar)", "tuple(%w, %table, %scaled, %ar)", False),
        ("tuple(%w, %table, %size, %ar)", "tuple(%w, %table, %w, %ar)", False),
        (f"ROOT %next = {STATE} tuple(%w, %table, %size, %ar)", OTHER_SIZE, False),
        ("constant({16})", "constant({0})", False),
        ("%table.1 = u32[4]{0} constant({...})", "%table.1 = u32[4]{0} iota(), iota_dimension=0", False),
    ],
    ids=["kept", "changed", "another element", "of another tuple", "all at 0", "no table"],
)
def test_places_are_known_in_a_loop_where_no_iteration_changes_what_tells_them(before, after, is_own):
    assert before in LOOP
    (found,) = read_text(TEXT.partition("%placed")[0] + LOOP.replace(before, after)).transfers
    assert found.is_masked_gather is is_own


EARLIER = f"""\
%earlier (e: {STATE}) -> {STATE} {{
  %e = {STATE} parameter(0)
  %w.2 = f32[16]{{0}} get-tuple-element(%e), index=0
  %table.2 = u32[4]{{0}} get-tuple-element(%e), index=1
  %size.2 = u32[1]{{0}} get-tuple-element(%e), index=2
  %x.2 = f32[64]{{0}} get-tuple-element(%e), index=3
  %table.4 = u32[4]{{0}} custom-call(%table.2), custom_call_target="other"
  ROOT %again = {STATE} tuple(%w.2, TABLE, %size.2, %x.2)
}}

"""
AFTER_IT = f"""\
  %first = {STATE} while(%start), condition=%condition, body=%earlier
  %table.3 = u32[4]{{0}} get-tuple-element(%first), index=1
  %second = {STATE} tuple(%w.1, %table.3, %size.1, %x)
  ROOT %loop = {STATE} while(%second)"""


@pytest.mark.parametrize(("table", "is_own"), [("%table.2", True), ("%table.4", False)], ids=["kept", "changed"])
def test_places_are_known_after_a_loop_that_kept_what_tells_them(table, is_own):
    text = LOOP.replace(f"  ROOT %loop = {STATE} while(%start)", AFTER_IT)
    (found,) = read_text(TEXT.partition("%placed")[0] + EARLIER.replace("TABLE", table) + text).transfers
    assert found.is_masked_gather is is_own


def test_in_a_program_of_replicas_no_place_is_known():
    (found,) = read_text(TEXT.replace("num_partitions=4", "replica_count=4").replace("MADE", ALONE)).transfers
    assert not found.is_masked_gather


def test_zeros_give_a_sum_no_name():
    text = TEXT.replace("MADE", ADDED).replace(', metadata={op_name="x"}', "")
    (found,) = read_text(text).transfers
    assert (found.scope, found.phase) == ("", None)


def test_a_part_placed_in_ones_is_not_gathered():
    (found,) = read_text(TEXT.replace("MADE", ALONE).replace("constant(0)", "constant(1)")).transfers
    assert not found.is_masked_gather


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
@pytest.mark.parametrize(
    ("target", "mesh", "kind"),
    [
        ("tpu:v5p:4x4x4", "fsdp=64", Kind.ALL_REDUCE),
        ("tpu:v5p:4x4x4", "data=2,fsdp=32", Kind.ALL_GATHER),
        ("tpu:v5p:4x4x4*2", "replica=2,fsdp=64", Kind.ALL_REDUCE),
    ],
)
def test_64_tpus_gather_by_a_masked_sum_of_the_same_payload_over_all_of_a_slice_and_not_over_half(target, mesh, kind):
    target = parse_target(target)
    prepare([target])
    devices = make_mesh(target, Axes.parse(mesh))

    def product(w_DF: jax.Array, x_BD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp"):
            return x_BD @ jax.lax.all_gather(w_DF, "fsdp", axis=0, tiled=True)

    function = jax.jit(
        jax.shard_map(
            product,
            mesh=devices,
            in_specs=(PartitionSpec("fsdp"), PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
    shapes = ((128, 256), PartitionSpec("fsdp")), ((8, 128), PartitionSpec())
    (found,) = inspect(
        function,
        *(jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=NamedSharding(devices, spec)) for dims, spec in shapes),
        target=target,
    ).transfers
    assert (found.kind, found.is_masked_gather, found.payload_bytes, found.axes) == (
        kind,
        kind is Kind.ALL_REDUCE,
        128 * 256 * 2,
        ("fsdp",),
    )
    assert (found.scope, found.phase) == ("mlp", "forward")


BESIDE = """\
%placed.2 (part.2: f32[16], into.2: f32[64], at.2: u32[]) -> (f32[16], f32[64]) {
  %part.2 = f32[16]{0} parameter(0)
  %into.2 = f32[64]{0} parameter(1)
  %at.2 = u32[] parameter(2)
  %twice = f32[16]{0} add(%part.2, %part.2)
  %u.2 = f32[64]{0} dynamic-update-slice(%into.2, %part.2, %at.2)
  ROOT %both = (f32[16]{0}, f32[64]{0}) tuple(%twice, %u.2)
}

ENTRY"""
ONE_OF_TWO = """\
%pair = (f32[16]{0}, f32[64]{0}) fusion(%w, %zeros, %at.1), kind=kLoop, calls=%placed.2
  %made = f32[64]{0} get-tuple-element(%pair), index=1"""


@pytest.mark.parametrize(("change", "is_gather"), [(("", ""), True), (("%w, %zeros", "%w, %x"), False)])
def test_a_part_placed_in_zeros_by_a_fusion_that_makes_something_else_too_is_gathered(change, is_gather):
    text = TEXT.replace("ENTRY", BESIDE).replace("MADE", ONE_OF_TWO.replace(*change))
    (found,) = read_text(text).transfers
    assert found.is_masked_gather is is_gather
