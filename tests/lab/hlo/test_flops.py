"""FLOPs of products and convolutions, against counts by hand and against XLA's own of programs that hold nothing
else."""

import re

import jax
import jax.numpy as jnp
import pytest

from lab.core.note import NoteKind
from lab.hlo import read_text
from lab.hlo.flops import _valid_taps, products
from lab.hlo.text import parse
from tests.cases.compiling import cpu
from tests.data import kept
from tests.data.programs.products import PRODUCTS
from tests.paths import SHARED

REFEREE = SHARED / "cases/referee"
compiles = pytest.mark.compiles


def compiled(function, *shapes):
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


def flops(function, *shapes):
    program = compiled(function, *shapes)
    return read_text(program.as_text()).flops, program.cost_analysis()["flops"]


@compiles
@pytest.mark.parametrize(
    ("equation", "left", "right", "expected"),
    [
        ("ij,jk->ik", (8, 32), (32, 16), 2 * 8 * 32 * 16),
        ("bij,bjk->bik", (3, 8, 32), (3, 32, 16), 3 * 2 * 8 * 32 * 16),
        ("ijk,jkl->il", (8, 4, 32), (4, 32, 16), 2 * 8 * 4 * 32 * 16),
    ],
)
def test_a_product_counts_two_for_a_multiply_and_add(equation, left, right, expected):
    ours, xla = flops(lambda a, b: jnp.einsum(equation, a, b), left, right)
    assert ours == expected == xla


@compiles
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [[(0, 0), (0, 0)], [(2, 0), (1, 3)], [(4, 4), (3, 3)]])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 2)])
def test_a_convolution_counts_no_product_with_padding_or_holes(stride, padding, dilation):
    def convolve(x_NHWC, w_HWIO):
        options = {
            "lhs_dilation": (dilation[0],) * 2,
            "rhs_dilation": (dilation[1],) * 2,
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        }
        return jax.lax.conv_general_dilated(x_NHWC, w_HWIO, (stride, stride), padding, **options)

    ours, xla = flops(convolve, (2, 9, 10, 3), (3, 4, 3, 5))
    assert ours == xla


@compiles
def test_grouped_convolution_reads_only_its_group_of_channels():
    def convolve(x_NHWC, w_HWIO):
        return jax.lax.conv_general_dilated(
            x_NHWC, w_HWIO, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
        )

    ours, xla = flops(convolve, (2, 8, 8, 8), (3, 3, 2, 12))
    assert ours == xla


@compiles
def test_a_loop_of_twelve_products_counts_twelve():
    def scanned(w_LDD, x_BD):
        return jax.lax.scan(lambda x_BD, w_DD: (x_BD @ w_DD, None), x_BD, w_LDD)[0]

    ours, xla = flops(scanned, (12, 16, 16), (8, 16))
    assert ours == 12 * 2 * 8 * 16 * 16
    assert xla < ours / 6  # XLA's analysis visits a loop's body once


@compiles
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_cpu_program_has_the_flops_that_are_counted_by_hand(name):
    assert read_text(PRODUCTS[name].build(cpu(x=1)).as_text()).flops == PRODUCTS[name].flops


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_gpu_program_has_the_flops_that_are_counted_by_hand(name):
    assert kept.ledger(f"{name}.gpu").flops == PRODUCTS[name].flops


# Of two vectors none is repeated: their product looks like any sum of products.
BY_FORM = [name for name in PRODUCTS if re.search("vector(?!s$)|one_token", name)]


@pytest.mark.parametrize("name", BY_FORM)
def test_a_product_with_a_vector_is_known_by_its_form_where_no_name_tells(name):
    bare = re.sub(r", metadata=\{[^}]*\}", "", kept.text(f"{name}.gpu"))
    assert "op_name" not in bare and read_text(bare).flops == PRODUCTS[name].flops


@pytest.mark.parametrize(
    "name, flops",
    [
        ("gpu_h100_1x1_conv_transposed", 1_179_648),
        ("gpu_h100_1x1_conv_grad_w", 1_806_336),
        ("gpu_h100_1x1_matvec", 65_536),
        ("gpu_h100_1x1_complex_dot", 2_097_152),
        ("cpu_1_complex_dot", 2_097_152),
        ("gpu_h100_1x1_ragged_dot", 4 * 65_536),
        ("cpu_1_ragged_dot", 4 * 65_536),
    ],
)
@pytest.mark.skipif(not REFEREE.is_dir(), reason="the texts of others, ../shared/cases/referee, are absent")
def test_a_text_of_others_has_the_flops_that_they_counted_by_hand(name, flops):
    assert read_text((REFEREE / f"flops_{name}.hlo").read_text()).flops == flops


@compiles
def test_xla_counts_a_complex_product_as_a_real_one():
    program = PRODUCTS["complex_product"].build(cpu(x=1))
    assert 4 * program.cost_analysis()["flops"] == PRODUCTS["complex_product"].flops


@compiles
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_of_a_grouped_batch_each_kernel_reads_its_own_group(groups):
    def convolve(x_NHWC, w_HWIO):
        names = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x_NHWC, w_HWIO, (1, 1), "VALID", dimension_numbers=names, batch_group_count=groups
        )

    before = jax.jit(convolve).lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 9, 9, 3), (3, 3, 3, 4))))
    text = before.compiler_ir("hlo").as_hlo_text()
    assert read_text(text).flops == 2 * (8 // groups) * 4 * 7 * 7 * 9 * 3 == before.cost_analysis()["flops"]


SUM_OF_PRODUCTS = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%largest (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] maximum(%a, %b)
}

ENTRY %main (m: f32[64,8], v: f32[8], k: f32[64,8], s: f32[]) -> f32[64] {
  %m = f32[64,8]{1,0} parameter(0)
  %v = f32[8]{0} parameter(1)
  %k = f32[64,8]{1,0} parameter(2)
  %s = f32[] parameter(3)
  %repeated = f32[64,8]{1,0} broadcast(%v), dimensions={1}
  %scale = f32[64,8]{1,0} broadcast(%s), dimensions={}
  %p = f32[64,8]{1,0} multiply(%m, %repeated)
  %z = f32[] constant(0)
  ROOT %r = f32[64]{0} reduce(%p, %z), dimensions={1}, to_apply=%add
}
"""
NAMED = ', metadata={op_name="jit(f)/dot_general"}'


def summed(*changes: tuple[str, str]) -> int | None:
    text = SUM_OF_PRODUCTS
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return read_text(text).flops


@pytest.mark.parametrize(
    "changes, flops",
    [
        ([], 2 * 64 * 8),
        ([("multiply(%m, %repeated)", "multiply(%m, %k)")], 0),
        ([("multiply(%m, %repeated)", "multiply(%m, %scale)")], 0),
        ([("multiply(%m, %repeated)", "add(%m, %repeated)")], 0),
        ([("to_apply=%add", "to_apply=%largest")], 0),
        ([("%p = f32[64,8]{1,0}", "%p = s32[64,8]{1,0}")], 2 * 64 * 8),
    ],
    ids=["repeated", "of two arrays", "by one number", "of sums", "the largest", "of integers"],
)
def test_without_a_name_a_product_is_a_sum_over_an_array_times_a_smaller_one_that_is_repeated(changes, flops):
    assert summed(*changes) == flops


@pytest.mark.parametrize(
    "changes, flops",
    [
        ([], 2 * 64 * 8),
        ([("multiply(%m, %repeated)", "multiply(%m, %k)")], 2 * 64 * 8),
        ([("multiply(%m, %repeated)", "multiply(%m, %scale)")], 0),
        ([("reduce(%p, %z)", "reduce(%m, %z)")], 0),
        ([("multiply(%m, %repeated)", "add(%m, %repeated)")], 0),
    ],
    ids=["repeated", "of two arrays", "by one number", "the parts of a split product", "of sums"],
)
def test_a_sum_that_has_a_products_name_is_the_product_that_it_sums_and_nothing_where_it_sums_none(changes, flops):
    named = ("to_apply=%add\n", f"to_apply=%add{NAMED}\n")
    assert summed(named, *changes) == flops


def masked(groups: int, rows: int, dims: int) -> str:
    """A ragged product that is written as one of every group, all rows but a group's own set to zero."""
    every = f"[{groups},{rows},{dims}]{{2,1,0}}"
    return f"""%f (x: f32[{rows},{dims}]) -> f32[{groups},{rows},{dims}] {{
  %x = f32[{rows},{dims}]{{1,0}} parameter(0)
  %e = s32{every} iota(), iota_dimension=0
  %i = s32{every} iota(), iota_dimension=1
  %low = pred{every} compare(%e, %i), direction=LE
  %high = pred{every} compare(%i, %e), direction=LT
  %mask = pred{every} and(%low, %high)
  %repeated = f32{every} broadcast(%x), dimensions={{1,2}}
  %z = f32[] constant(0)
  %zeros = f32{every} broadcast(%z), dimensions={{}}
  ROOT %s = f32{every} select(%mask, %repeated, %zeros)
}}

ENTRY %main (x: f32[{rows},{dims}], w: f32[{groups},{dims},16]) -> f32[{rows},16] {{
  %x = f32[{rows},{dims}]{{1,0}} parameter(0)
  %w = f32[{groups},{dims},16]{{2,1,0}} parameter(1)
  %k = f32{every} fusion(%x), kind=kLoop, calls=%f
  ROOT %r = f32[{rows},16]{{1,0}} dot(%k, %w), lhs_contracting_dims={{0,2}}, rhs_contracting_dims={{0,1}}
}}
"""


def groups_of(text: str) -> int:
    (work,) = products(parse(text)).values()
    return work.groups


@pytest.mark.parametrize("sizes", [(4, 64, 32), (3, 1, 1), (1, 8, 8), (2, 8, 1)])
def test_a_ragged_product_of_masked_rows_has_as_many_groups_as_its_rows_are_repeated(sizes):
    text = masked(*sizes)
    assert groups_of(text) == sizes[0] and read_text(text).flops == 2 * sizes[0] * sizes[1] * sizes[2] * 16


@pytest.mark.parametrize(
    "before, after",
    [
        ("compare(%i, %e), direction=LT", "not(%low)"),
        ("and(%low, %high)", "or(%low, %high)"),
        ("and(%low, %high)", "and(%low, %low, %high)"),
        ("constant(0)", "constant(1)"),
        ("broadcast(%x), dimensions={1,2}", "iota(), iota_dimension=2"),
        ("select(%mask, %repeated, %zeros)", "clamp(%zeros, %repeated, %zeros)"),
    ],
    ids=["one bound", "either bound", "three bounds", "no zeros", "no repeated rows", "no choice"],
)
def test_a_product_of_rows_that_are_not_masked_between_two_bounds_has_one_group(before, after):
    assert before in masked(4, 64, 32)
    assert groups_of(masked(4, 64, 32).replace(before, after)) == 1


def test_a_ragged_product_says_that_it_counts_every_group():
    (note,) = (note for note in kept.ledger("ragged_product.gpu").notes if note.kind == NoteKind.RAGGED_PRODUCTS)
    assert "multiplies each row with all 4 groups" in note and "4 times the useful FLOPs" in note


@pytest.mark.parametrize(
    "result, flops", [("f32[64,16]{1,0}", 2 * 64 * 32 * 16), ("f32[4,32,16]{2,1,0}", 2 * 64 * 32 * 16)]
)
def test_an_instruction_for_ragged_products_counts_each_row_with_its_own_group(result, flops):
    """As a backend without one is given it: forward, and the gradient of the matrices."""
    other, dims = (
        (
            "f32[4,32,16]{2,1,0}",
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
        )
        if result.startswith("f32[64")
        else ("f32[64,16]{1,0}", "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}")
    )
    text = (
        "ENTRY %main {\n  %x = f32[64,32]{1,0} parameter(0)\n"
        f"  %w = {other} parameter(1)\n  %n = s32[4]{{0}} parameter(2)\n"
        f"  ROOT %r = {result} ragged-dot(%x, %w, %n), {dims}\n}}\n"
    )
    assert read_text(text).flops == flops


def test_a_scaled_product_counts_the_contracted_dim_of_its_left_side():
    text = (
        "ENTRY %main {\n  %x = f8e4m3fn[64,32]{1,0} parameter(0)\n  %w = f8e4m3fn[32,16]{1,0} parameter(1)\n"
        "  %s = f8e8m0fnu[64,1]{1,0} parameter(2)\n  %t = f8e8m0fnu[1,16]{1,0} parameter(3)\n"
        "  ROOT %r = f32[64,16]{1,0} scaled-dot(%x, %w, %s, %t), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n"
    )
    assert read_text(text).flops == 2 * 64 * 32 * 16


def unknown(text: str) -> list[str]:
    return [note for note in read_text(text).notes if note.kind == NoteKind.UNKNOWN_FLOPS]


@pytest.mark.parametrize(
    "name, what",
    [
        ("fft_of_a_sharded_batch.cpu", "fft"),
        ("fft_of_a_sharded_batch.gpu", "fft"),
        ("cholesky_of_a_sharded_batch.cpu", "lapack_spotrf_ffi"),
        ("cholesky_of_a_sharded_batch.gpu", "cusolver_potrf_ffi"),
        ("cholesky_of_a_sharded_batch.tpu", "Cholesky"),
        ("inverse_of_a_sharded_batch.cpu", "lapack_strsm_ffi"),
        ("inverse_of_a_sharded_batch.gpu", "__cublas$triangularSolve"),
        ("pallas_kernel_in_shard_map.tpu", "tpu_custom_call"),
        ("foreign_function.cpu", "the_function"),
    ],
)
def test_work_of_another_form_is_unknown_and_noted_not_0(name, what):
    if name.startswith("foreign"):
        what = re.search(r'custom_call_target="([^"]*)"', kept.text(name))[1]
    assert kept.ledger(name).flops is None
    assert any(note.startswith(f"{what}: the FLOPs of ") for note in unknown(kept.text(name)))


def test_a_librarys_product_that_does_not_say_what_it_contracts_is_noted_by_its_target():
    text = (
        "ENTRY %main {\n  %x = f32[8,8]{1,0} parameter(0)\n  ROOT %r = f32[8,8]{1,0} custom-call(%x, %x), "
        'custom_call_target="__cublas$gemm"BACKEND\n}\n'
    )
    (note,) = unknown(text.replace("BACKEND", ""))
    assert note.startswith("__cublas$gemm: the FLOPs of 1 instruction")
    dims = ', backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    assert read_text(text.replace("BACKEND", dims)).flops == 2 * 8**3


@pytest.mark.parametrize("opcode", ["fft", "cholesky", "triangular-solve"])
def test_opcodes_that_backends_take_apart_are_noted_in_texts_from_before(opcode):
    text = f"ENTRY %main {{\n  %x = f32[8,8]{{1,0}} parameter(0)\n  ROOT %r = f32[8,8]{{1,0}} {opcode}(%x, %x)\n}}\n"
    assert unknown(text) == [f"{opcode}: the FLOPs of 1 instruction cannot be read from the text; not counted"]


@pytest.mark.parametrize("name", ["top_k.cpu", "random_numbers.gpu", "callback.cpu", "sort.tpu", "top_k.tpu"])
def test_calls_that_multiply_nothing_are_0_and_no_note(name):
    assert kept.ledger(name).flops == 0 and not unknown(kept.text(name))


@compiles
def test_sums_of_squares_and_of_scaled_arrays_are_no_products():
    def norm(x_BD, g_D):
        return x_BD * jax.lax.rsqrt((x_BD * x_BD).mean(-1, keepdims=True)) * g_D + (x_BD * g_D).sum(-1, keepdims=True)

    assert read_text(compiled(norm, (8, 64), (64,)).as_text()).flops == 0


def test_every_window_that_fits_is_counted_as_one_by_one():
    for extent, kernel, outputs, stride, low, hole, spread in [
        (e, k, o, s, low, h, d)
        for e in (1, 4, 5)
        for k in (1, 3)
        for o in (1, 4, 7)
        for s in (1, 2, 3)
        for low in (-2, 0, 1, 3)
        for h in (1, 2, 3, 4)
        for d in (1, 2)
    ]:
        positions = [out * stride + tap * spread - low for out in range(outputs) for tap in range(kernel)]
        expected = sum(0 <= at <= (extent - 1) * hole and at % hole == 0 for at in positions)
        assert _valid_taps(extent, kernel, outputs, stride, low, hole, spread) == expected


def test_a_window_is_unknown_where_kernel_and_output_are_longer_than_a_million_and_where_it_steps_nowhere():
    long = 1_048_576
    assert _valid_taps(2 * long - 1, long, long, 1, 0, 1, 1) == long * long
    assert _valid_taps(2 * long - 1, long, long, 3, 0, 3, 3) == long * long
    assert _valid_taps(4 * long, 3, 4 * long - 2, 1, 0, 1, 1) == 3 * (4 * long - 2)
    assert _valid_taps(2 * long + 1, long + 1, long + 1, 1, 0, 1, 1) is None
    for steps in (0, 1, 1), (1, 0, 1), (1, 1, 0), (2, 2, -1):
        stride, hole, spread = steps
        assert _valid_taps(8, 3, 6, stride, 0, hole, spread) is None


def test_a_window_of_a_damaged_text_is_unknown_at_once():
    text = (
        "ENTRY %main {\n  %x = f32[2,16,8]{2,1,0} parameter(0)\n  %k = f32[3,8,4]{2,1,0} parameter(1)\n"
        "  ROOT %r = f32[2,14,4]{2,1,0} convolution(%x, %k), window={size=3}, dim_labels=b0f_0io->b0f\n}\n"
    )
    assert read_text(text).flops == 2 * 2 * 14 * 3 * 8 * 4
    for before, after in [
        ("b0f_0io", "b0f_0oo"),
        ("b0f_0io", "b0x_0io"),
        ("size=3}", "size=3 stride=0}"),
        ("size=3}", "size=3 pad=1_1x1_1}"),
        ("[3,8,4]", "[3,8]"),
        ("[3,8,4]", "[99999999999,8,4]"),
    ]:
        mutant = text.replace(before, after).replace(
            "[2,14,4]", "[2,14,4]" if "9999" not in after else "[2,99999999999,4]"
        )
        assert read_text(mutant).flops is None
