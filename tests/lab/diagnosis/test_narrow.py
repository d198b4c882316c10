"""Programs whose 8 bits are lost on the way: each is named, and what regains them was compiled."""

import re
from fractions import Fraction
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from lab import diagnosis
from lab.compile import inspection, remedies
from lab.compile.narrow_sends import narrow_in
from lab.core.ledger import Kind, Transfer
from lab.diagnosis.finding import Finding
from lab.diagnosis.kinds.narrow import _needed
from lab.diagnosis.program import NarrowValue
from lab.diagnosis.remedy import CastBefore, NotApplicable, SendNarrow
from lab.hlo.shapes import bits
from lab.meshes.targets import parse_target
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, cpu, mesh_on
from tests.lab.diagnosis import narrow_programs
from tests.lab.diagnosis.narrow_programs import LOSING, LOSING_NOTHING
from tests.long_tests import long

pytestmark = pytest.mark.compiles

KINDS = {"narrowed_after", "dequantised_before"}
GPU, TPU = "gpu:h100:1x8", "tpu:v5e:2x4"
GATHERS = "jit(gathered)/shard_map/all_gather"
KEPT_BY_GPUS = {
    "weight_cast_to_f8",
    "weight_cast_to_int8",
    "weight_scaled_in_blocks",
    "weight_gathered_then_cast",
    "int8_weight_dequantised_first",
    "layers_scanned",
    "activation_passed_on_wide",
}
"""XLA's GPU compiler moves these casts across the transfer itself."""
QUICK = ("weight_gathered_then_cast", "layers_scanned", "cache_dequantised_first", "gradient_scattered_wide")
"""The others of these are compiled in the long tests."""


def found(build, target: str, prove: bool = False) -> list[Finding]:
    mesh = mesh_on(target, fsdp=8)
    function, args = build(mesh)
    program = inspection.read_program(function, args, mesh, parse_target(target), source=build.__name__)
    return [each for each in diagnosis.of(program, prove=prove).findings if each.kind in KINDS]


def loses_and_regains(build, target: str) -> None:
    """The changed program sends what the finding says, which is a half of bfloat16 or a quarter of float32, and
    scales."""
    (finding,) = found(build, target, prove=True)
    assert finding.proof.not_tried is None and finding.proof.pays
    before, after = (sums.wire_bytes for sums in (finding.proof.before, finding.proof.after))
    moved = sum(t.wire_bytes * t.executions for t in finding.transfers)
    # TPUs gather the eight ranks' scales by a masked sum (T7): twice the bytes of 7 numbers.
    tiny = 7 * 4 if target == TPU else 0
    is_sum = {str(t.kind) for t in finding.transfers} == {"all_reduce"}
    share = Fraction(8, max(bits(t.dtype) for t in finding.transfers))
    # What an all-reduce comes to still travels wide.
    least = moved * ((1 + share) / 2 if is_sum else share)
    assert least <= after - (before - moved) <= Fraction(104, 100) * least
    # TPUs name what they gather of a cache after an operation of their own, so that its scales are not known.
    if finding.needed_bytes is None:
        assert (build.__name__, target) == ("cache_dequantised_first", TPU)
    else:
        assert 0 <= after - (before - moved + finding.needed_bytes) <= tiny


@ahead_of_time_gpu
@pytest.mark.parametrize("build", [b for b in LOSING if b.__name__ not in KEPT_BY_GPUS], ids=lambda b: b.__name__)
def test_what_the_gpu_compiler_sends_wide_is_named_and_regained(build):
    loses_and_regains(build, GPU)


@ahead_of_time_tpu
@pytest.mark.parametrize(
    "build", [pytest.param(b, marks=() if b.__name__ in QUICK else long, id=b.__name__) for b in LOSING]
)
def test_what_the_tpu_compiler_sends_wide_is_named_and_regained(build):
    loses_and_regains(build, TPU)


@ahead_of_time_gpu
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else long, id=name) for name in sorted(KEPT_BY_GPUS)]
)
def test_what_the_gpu_compiler_sends_narrow_is_not_blamed(name):
    assert found(getattr(narrow_programs, name), GPU) == []


@ahead_of_time_gpu
@pytest.mark.parametrize("build", LOSING_NOTHING, ids=lambda b: b.__name__)
def test_programs_that_lose_nothing_are_not_blamed(build):
    assert found(build, GPU) == []


@ahead_of_time_gpu
def test_scaled_tokens_that_a_constraint_redistributes_are_pinned_narrow_before_it():
    (finding,) = found(narrow_programs.tokens_redistributed_wide, GPU, prove=True)
    before, after = finding.proof.before, finding.proof.after
    numbers, scales = (64 * 8 * size // 64 * 7 for size in (1024, 2))
    # Scales are asked for by token, too, for what is cast.
    assert (before.wire_bytes, after.wire_bytes) == (2 * numbers + scales, numbers + 2 * scales) and finding.proof.pays


@ahead_of_time_gpu
def test_values_that_are_laid_out_anew_before_they_are_sent_are_named_with_what_stands_between():
    (finding,) = found(narrow_programs.blocks_flattened_first, GPU, prove=True)
    sent = 7 * 128 * 1024
    assert "of f8e4m3fn values, in bf16" in finding.sentence and finding.totals.wire_bytes == 2 * sent
    assert finding.needed_bytes == sent + sent // 128 * 2
    assert "a reshape stands between the value of 8 bits and the transfer" in finding.proof.not_tried


def test_what_fake_cpus_widen_is_not_blamed():
    """Integers they do not widen."""
    of_floats = [each for each in (*LOSING, *LOSING_NOTHING) if "int8" not in each.__name__]
    assert [found(build, "cpu:8") for build in of_floats] == [[]] * len(of_floats)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("f8_weight_dequantised_in_blocks", SendNarrow("jit(f)/shard_map/all_gather")),
        ("tokens_dispatched_wide", SendNarrow("jit(f)/shard_map/all_to_all")),
        ("activation_passed_on_wide", SendNarrow("jit(f)/shard_map/ppermute")),
        ("tokens_redistributed_wide", SendNarrow("jit(f)/sharding_constraint", (("fsdp",),))),
        ("gradient_scattered_wide", SendNarrow("jit(f)/shard_map/reduce_scatter")),
        ("gradient_scattered_in_blocks", SendNarrow("jit(f)/shard_map/reduce_scatter")),
        ("quantised_sum_in_float32", SendNarrow("jit(f)/shard_map/psum")),
        ("weight_gathered_then_cast", CastBefore("jit(f)/shard_map/all_gather", "f8e4m3fn")),
    ],
)
def test_the_changed_program_gives_what_the_program_gives(name, change):
    mesh = cpu(fsdp=8)
    function, args = getattr(narrow_programs, name)(mesh)
    traced = jax.jit(function).trace(*args)
    lowered, _, _ = remedies.changed(traced, mesh, (change,))
    draw = np.random.default_rng(0)
    values = [jax.device_put(draw.standard_normal(x.shape).astype(x.dtype), x.sharding) for x in args]
    expected, changed = (
        np.asarray(jax.tree.leaves(program.compile()(*values))[0], np.float32) for program in (traced.lower(), lowered)
    )
    np.testing.assert_allclose(changed, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_of_transfers_of_one_name_each_is_told_by_its_size_and_those_of_one_size_move_the_same_or_are_not_told():
    function, args = narrow_programs.gathered_under_one_name(cpu(fsdp=8))
    jaxpr = jax.jit(function).trace(*args).jaxpr
    values, scales, late, wide = (narrow_in(jaxpr, GATHERS, n << 10) for n in (1024, 128, 512, 256))
    assert values == NarrowValue("f8e4m3fn", is_cast_before=True) and (scales, late, wide) == (None, None, None)
    same = jax.jit(function).trace(args[0], args[1], jax.ShapeDtypeStruct((8192, 16), np.float32)).jaxpr
    assert narrow_in(same, GATHERS, 128 << 10) is None


def test_values_of_4_bits_travel_packed_and_their_scales_with_them():
    """So compiled for GPUs and TPUs: 460,544 B are sent of 1024 x 1024 in 4 bits and 1024 scales."""
    rows = jax.sharding.PartitionSpec("fsdp")

    def f(q, scale):
        return jax.lax.all_gather(q.astype("bfloat16") * scale, "fsdp", tiled=True)

    args = (jax.ShapeDtypeStruct((1024, n), dtype) for n, dtype in ((1024, "int4"), (1, "bfloat16")))
    jaxpr = jax.jit(jax.shard_map(f, mesh=cpu(fsdp=8), in_specs=rows, out_specs=rows)).trace(*args).jaxpr
    value = narrow_in(jaxpr, "jit(f)/shard_map/all_gather", 1024 * 1024)
    assert value == NarrowValue("s4", scale_bits=Fraction(16, 1024))
    wide = Transfer(Kind.ALL_GATHER, ("fsdp",), 8, 1, "bf16", 2 * 1024 * 1024)
    assert _needed(SimpleNamespace(transfer=wide, kind="all_gather"), value) == 460_544


def test_a_cast_before_one_of_several_gathers_of_a_name_leaves_the_others_in_float32():
    mesh = cpu(fsdp=8)
    function, args = narrow_programs.gathered_under_one_name(mesh)
    lowered, _, _ = remedies.changed(jax.jit(function).trace(*args), mesh, (CastBefore(GATHERS, "f8e4m3fn"),))
    gathers = re.findall(r"all_gather.*-> tensor<(\S+)>", lowered.as_text())
    assert gathers == ["1024x128x8xf8E4M3FN", "1024x128x1xf32", "512x1024xf8E4M3FN", "512x512xf32"]
    with pytest.raises(NotApplicable, match="several operations have its name"):
        remedies.changed(jax.jit(function).trace(*args), mesh, (CastBefore(GATHERS, "bf16"),))


def test_ranks_that_a_permute_sends_nothing_keep_zeros_where_values_are_divided_by_their_scales():
    mesh, rows = cpu(fsdp=8), jax.sharding.PartitionSpec("fsdp")

    def f(q, scale):
        return jax.lax.ppermute(q.astype(np.float32) / 16 / scale, "fsdp", [(0, 1), (1, 2)])

    args = np.arange(64, dtype=np.int8).reshape(16, 4), np.arange(1, 17, dtype=np.float32)[:, None]
    traced = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=rows, out_specs=rows)).trace(*args)
    lowered, _, _ = remedies.changed(traced, mesh, (SendNarrow("jit(f)/shard_map/ppermute"),))
    text = lowered.as_text()
    assert text.count("collective_permute") == 2 and "tensor<2x4xi8>" in text  # The literal is everyone's.
    expected, found = (jax.tree.leaves(program.compile()(*args)) for program in (traced.lower(), lowered))
    np.testing.assert_allclose(*found, *expected)


def test_what_is_not_narrow_stays_as_it_is_where_another_sum_of_its_name_is_sent_narrow():
    mesh = cpu(fsdp=8)

    def f(q, x):
        return tuple(jax.lax.psum_scatter(y, "fsdp", tiled=True) for y in (q.astype(np.float32) * 0.5, x))

    spec = jax.sharding.PartitionSpec("fsdp")
    args = tuple(jax.ShapeDtypeStruct((8192, 8), dtype) for dtype in (np.int8, np.float32))
    traced = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)).trace(*args)
    lowered, _, _ = remedies.changed(traced, mesh, (SendNarrow("jit(f)/shard_map/reduce_scatter"),))
    text = lowered.as_text()
    assert (text.count("all_to_all"), text.count("reduce_scatter")) == (1, 1)
