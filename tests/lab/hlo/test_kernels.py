"""Kernels of a GPU program from its text: bytes that each touches, FLOPs of its products, collectives and loops in
their order."""

import pytest

from lab.hlo.kernels import Choice, Collective, Does, Kernel, Loop, steps
from lab.hlo.multiplied import Product

HEAD = """HloModule jit_step, is_scheduled=true, num_partitions=2

%fused_add (a: f32[64], b: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  %b = f32[64]{0} parameter(1)
  ROOT %sum = f32[64]{0} add(%a, %b)
}

%fused_take (stack: f32[8,64], i: s32[]) -> f32[64] {
  %stack = f32[8,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,64]{1,0} dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={1,64}
  ROOT %flat = f32[64]{0} bitcast(%row)
}

%fused_put (stack: f32[8,64], row: f32[1,64], i: s32[]) -> f32[8,64] {
  %stack = f32[8,64]{1,0} parameter(0)
  %row = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %new = f32[8,64]{1,0} dynamic-update-slice(%stack, %row, %i, %zero)
}

%fused_turn (a: f32[16,4]) -> f32[4,16] {
  %a = f32[16,4]{1,0} parameter(0)
  ROOT %turned = f32[4,16]{1,0} transpose(%a), dimensions={1,0}
}

%fused_product (a: f32[8,64], b: f32[64,4]) -> f32[8,4] {
  %a = f32[8,64]{1,0} parameter(0)
  %b = f32[64,4]{1,0} parameter(1)
  ROOT %dot = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%condition (p: (s32[], f32[64])) -> pred[] {
  %p = (s32[], f32[64]{0}) parameter(0)
  %count = s32[] get-tuple-element(%p), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%count, %five), direction=LT
}

%body (p: (s32[], f32[64])) -> (s32[], f32[64]) {
  %p = (s32[], f32[64]{0}) parameter(0)
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %twice = f32[64]{0} fusion(%x, %x), kind=kLoop, calls=%fused_add
  %count = s32[] get-tuple-element(%p), index=0
  ROOT %next = (s32[], f32[64]{0}) tuple(%count, %twice)
}

ENTRY %main (x: f32[64], stack: f32[8,64], w: f32[64,4], i: s32[], t: f32[16,4]) -> f32[64] {
  %x = f32[64]{0} parameter(0)
  %stack = f32[8,64]{1,0} parameter(1)
  %w = f32[64,4]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %t = f32[16,4]{1,0} parameter(4)
"""
TAIL = "\n}\n"
SORTED = Kernel("k", 4 * 256, 0, does=Does.SORT, variant="short rows")


def entry(*lines: str) -> tuple:
    return steps(HEAD + "\n".join(f"  {line}" for line in lines) + TAIL)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("ROOT %k = f32[64]{0} fusion(%x, %x), kind=kLoop, calls=%fused_add", Kernel("k", 3 * 256, 0, elements=64)),
        (
            "ROOT %k = f32[64]{0} fusion(%stack, %i), kind=kLoop, calls=%fused_take",
            Kernel("k", 2 * 256 + 4, 0, elements=64),
        ),
        (
            "ROOT %k = f32[8,64]{1,0} fusion(%stack, %x, %i), kind=kLoop, calls=%fused_put",
            Kernel("k", 2 * 256 + 4, 0, elements=64),
        ),
        (
            "ROOT %k = f32[4,16]{1,0} fusion(%t), kind=kLoop, calls=%fused_turn",
            Kernel("k", 2 * 256, 0, does=Does.TRANSPOSE),
        ),
        ("ROOT %k = f32[4,16]{1,0} fusion(%t), kind=kInput, calls=%fused_turn", Kernel("k", 2 * 256, 0, elements=64)),
        (
            "ROOT %k = f32[8,4]{1,0} fusion(%stack, %w), kind=kCustom, calls=%fused_product",
            Kernel("k", 2048 + 1024 + 128, 2 * 8 * 64 * 4, does=Does.PRODUCT, product=Product(1, 8, 4, 64, "tf32")),
        ),
        ("ROOT %k = f32[64]{0} copy(%x)", Kernel("k", 2 * 256, 0, elements=64)),
        ("ROOT %k = (f32[64]{0}, f32[64]{0}) sort(%x, %x), dimensions={0}", SORTED),
        (
            'ROOT %k = () custom-call(%x), custom_call_target="their_kernel"',
            Kernel("k", 256, 0, does=Does.UNKNOWN, target="their_kernel"),
        ),
    ],
    ids=[
        "all of two operands",
        "a slice of a stack",
        "a slice put into a stack",
        "a transpose by threads",
        "a transpose by tiles",
        "a product",
        "a copy",
        "two results",
        "no result",
    ],
)
def test_a_kernel_touches_what_it_needs_and_no_more(line, expected):
    assert entry(line) == (expected,)


GATHER = "offset_dims={%s}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1%s}"
SCATTER = "update_window_dims={%s}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"
MOVED = """
  %rows = f32[100,64]{1,0} parameter(5)
  %halves = bf16[100,64]{1,0} parameter(6)
  %numbers = f32[100]{0} parameter(7)
  %at = s32[8,1]{1,0} parameter(8)
  %news = f32[8,64]{1,0} parameter(9)
  %new_halves = bf16[8,64]{1,0} parameter(10)
  %few = f32[8]{0} parameter(11)
"""


@pytest.mark.parametrize(
    "line, moved, does, variant",
    [
        (f"f32[8,64]{{1,0}} gather(%rows, %at), {GATHER % (1, ',64')}", 2 * 2048, Does.GATHER, "rows"),
        (f"f32[8]{{0}} gather(%numbers, %at), {GATHER % ('', '')}", 2 * 32, Does.GATHER, "elements"),
        (f"f32[100,64]{{1,0}} scatter(%rows, %at, %news), {SCATTER % 1}", 3 * 2048 + 32, Does.SCATTER, "rows"),
        (
            f"bf16[100,64]{{1,0}} scatter(%halves, %at, %new_halves), {SCATTER % 1}",
            3 * 1024 + 32,
            Does.SCATTER,
            "narrow rows",
        ),
        (f"f32[100]{{0}} scatter(%numbers, %at, %few), {SCATTER % ''}", 3 * 32 + 32, Does.SCATTER, "elements"),
        (
            '(f32[64]{0}, f32[64]{0}) custom-call(%x, %x), custom_call_target="xla.gpu.ext.cub_sort_pairs", '
            "backend_config={descending = false, batch_size = 1 : i64}",
            3 * 256,
            Does.SORT,
            "library",
        ),
        (
            '(f32[64]{0}, f32[64]{0}) custom-call(%x, %x), custom_call_target="xla.gpu.ext.cub_sort_pairs", '
            "backend_config={descending = false, batch_size = 16 : i64}",
            3 * 256,
            Does.SORT,
            "library, rows",
        ),
    ],
)
def test_what_moves_touches_its_rows_and_says_what_they_are(line, moved, does, variant):
    (kernel,) = entry(*MOVED.strip().splitlines(), f"ROOT %k = {line}")
    assert (kernel.bytes, kernel.does, kernel.variant) == (moved, does, variant)


@pytest.mark.parametrize("times, does", [(3, Does.PASS), (30, Does.ARITHMETIC)])
def test_a_pass_that_computes_more_than_it_moves_is_arithmetic(times, does):
    chain = "".join(f"  %t{i} = f32[64]{{0}} tanh(%{f't{i - 1}' if i else 'a'})\n" for i in range(times))
    fused = f"%fused_more (a: f32[64]) -> f32[64] {{\n  %a = f32[64]{{0}} parameter(0)\n{chain}"
    fused += f"  ROOT %r = f32[64]{{0}} negate(%t{times - 1})\n}}\n\n%fused_add"
    line = "  ROOT %k = f32[64]{0} fusion(%x), kind=kLoop, calls=%fused_more"
    (kernel,) = steps(HEAD.replace("%fused_add", fused, 1) + line + TAIL)
    assert (kernel.bytes, kernel.does) == (512, does)


def test_the_workspace_of_a_library_is_no_traffic():
    config = 'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    (kernel,) = entry(
        f'ROOT %k = (f32[8,4]{{1,0}}, s8[33554432]{{0}}) custom-call(%stack, %w), custom_call_target="__cublas$gemm", '
        f"{config}"
    )
    assert (kernel.bytes, kernel.flops) == (2048 + 1024 + 128, 2 * 8 * 64 * 4)


def test_a_loop_holds_its_kernels_once_and_says_how_often():
    init = "%init = (s32[], f32[64]{0}) tuple(%i, %x)"
    (loop,) = entry(
        init,
        "ROOT %w0 = (s32[], f32[64]{0}) while(%init), condition=%condition, body=%body, "
        'backend_config={"known_trip_count":{"n":"5"}}',
    )
    assert loop == Loop(5, (Kernel("twice", 3 * 256, 0, elements=64),))


def test_a_pair_of_start_and_done_frames_what_runs_meanwhile():
    found = entry(
        "%s = f32[64]{0} all-reduce-start(%x), replica_groups={{0,1}}, to_apply=%fused_add",
        "%k = f32[64]{0} copy(%x)",
        "ROOT %d = f32[64]{0} all-reduce-done(%s)",
    )
    assert [type(step) for step in found] == [Collective, Kernel, Collective]
    assert (found[0].starts, found[0].awaits, found[2].starts, found[2].awaits) == (True, False, False, True)
    assert found[0].name == found[2].name == "s"


def test_a_collective_without_a_pair_is_waited_for_at_once():
    assert entry("ROOT %a = f32[64]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%fused_add") == (
        Collective("a", starts=True, awaits=True),
    )


def test_a_collective_that_is_a_kernel_of_its_own_starts_and_ends_with_it():
    fused = """%fused_sum (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  ROOT %inside = f32[64]{0} all-reduce(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%fused_add
}

ENTRY"""
    lines = (
        "%s = ((f32[64]{0}), f32[64]{0}) fusion-start(%x), kind=kCustom, calls=%fused_sum",
        "%k = f32[64]{0} copy(%x)",
        "%d = f32[64]{0} fusion-done(%s)",
        "ROOT %whole = f32[64]{0} fusion(%d), kind=kCustom, calls=%fused_sum",
    )
    text = HEAD.replace("ENTRY", fused) + "\n".join(f"  {line}" for line in lines) + TAIL
    assert steps(text) == (
        Collective("inside", starts=True, awaits=False),
        Kernel("k", 2 * 256, 0, elements=64),
        Collective("inside", starts=False, awaits=True),
        Collective("inside", starts=True, awaits=True),
    )


def test_a_computation_that_stands_for_two_branches_is_two_choices():
    (choice,) = steps("""HloModule m

%branch (x: f32[64]) -> f32[64] {
  ROOT %x = f32[64]{0} parameter(0)
}

ENTRY %e (i: s32[], y: f32[64]) -> f32[64] {
  %i = s32[] parameter(0)
  %y = f32[64]{0} parameter(1)
  ROOT %r = f32[64]{0} conditional(%i, %y, %y), branch_computations={%branch, %branch}
}
""")
    assert choice == Choice(((), ()), ((), ()))


PUT = """HloModule m, is_scheduled=true

%fused (stack: f32[64,1024], row: f32[1,1024], i: s32[]) -> {result} {{
  %stack = f32[64,1024]{{1,0}} parameter(0)
  %row = f32[1,1024]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
{lines}
}}

ENTRY %e (stack: f32[64,1024], row: f32[1,1024], i: s32[]) -> {result} {{
  %stack = f32[64,1024]{{1,0}} parameter(0)
  %row = f32[1,1024]{{1,0}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %k = {result} fusion(%stack, %row, %i), kind=kLoop, calls=%fused
}}
"""
WHOLE, ROW, NUMBER = 4 * 64 * 1024, 4 * 1024, 4


@pytest.mark.parametrize(
    "result, lines, expected",
    [
        ("f32[64,1024]", ["ROOT %new = f32[64,1024] dynamic-update-slice(%stack, %row, %i, %zero)"], ROW + ROW),
        (
            "f32[64,1024]",
            [
                "%none = f32[] constant(0)",
                "%empty = f32[64,1024] broadcast(%none), dimensions={}",
                "%part = f32[1,1024] slice(%stack), slice={[0:1], [0:1024]}",
                "%both = f32[1,1024] add(%row, %part)",
                "ROOT %new = f32[64,1024] dynamic-update-slice(%empty, %both, %i, %zero)",
            ],
            ROW + ROW + WHOLE,
        ),
        (
            "bf16[64,1024]",
            [
                "%short = bf16[64,1024] convert(%stack)",
                "%some = bf16[1,1024] convert(%row)",
                "ROOT %new = bf16[64,1024] dynamic-update-slice(%short, %some, %i, %zero)",
            ],
            WHOLE + ROW + WHOLE // 2,
        ),
        (
            "bf16[64,1024]",
            [
                "%new = f32[64,1024] dynamic-update-slice(%stack, %row, %i, %zero)",
                "ROOT %short = bf16[64,1024] convert(%new)",
            ],
            WHOLE + ROW + WHOLE // 2,
        ),
    ],
    ids=["into an operand", "into what it makes", "into what it casts", "and then cast"],
)
def test_a_slice_that_is_put_into_a_value_moves_all_of_it_but_where_an_operand_becomes_a_result(
    result, lines, expected
):
    (kernel,) = steps(PUT.format(result=result, lines="\n".join(f"  {line}" for line in lines)))
    assert kernel.bytes == expected + NUMBER


def test_an_operand_that_is_cast_into_the_result_is_read_whole_whatever_is_sliced_out_of_it():
    lines = (
        "%part = f32[1,1024] slice(%stack), slice={[0:1], [0:1024]}",
        "ROOT %short = bf16[64,1024] convert(%stack)",
    )
    (kernel,) = steps(PUT.format(result="bf16[64,1024]", lines="\n".join(f"  {line}" for line in lines)))
    assert kernel.bytes == WHOLE + WHOLE // 2
