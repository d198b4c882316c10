"""What a kernel reads of a stack of which it takes a slice, however deep in fusions and past whatever relabels it."""

import pytest

from lab.hlo.kernels import steps

TEXT = """HloModule jit_step, is_scheduled=true

%relabelled (p: bf16[8,64]) -> bf16[8,64] {
  %p = bf16[8,64]{1,0} parameter(0)
  ROOT %same = bf16[8,64]{1,0} copy(%p)
}

%taken (q: bf16[8,64], i: s32[]) -> bf16[1,64] {
  %q = bf16[8,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %row = bf16[1,64]{1,0} dynamic-slice(%q, %i, %zero), dynamic_slice_sizes={1,64}
}

%put (stack: bf16[8,64], new: bf16[1,64], j: s32[]) -> bf16[8,64] {
  %stack = bf16[8,64]{1,0} parameter(0)
  %new = bf16[1,64]{1,0} parameter(1)
  %j = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %written = bf16[8,64]{1,0} dynamic-update-slice(%stack, %new, %j, %z)
}

%kernel (x: bf16[8,64], n: s32[]) -> bf16[8,64] {
  %x = bf16[8,64]{1,0} parameter(0)
  %n = s32[] parameter(1)
BODY
}

ENTRY %main (a: bf16[8,64], m: s32[]) -> bf16[8,64] {
  %a = bf16[8,64]{1,0} parameter(0)
  %m = s32[] parameter(1)
  ROOT %k = RESULT fusion(%a, %m), kind=kLoop, calls=%kernel
}
"""
ROW = "%row = bf16[1,64]{1,0} fusion(OF, %n), kind=kLoop, calls=%taken"


def moved(*body: str, result: str = "bf16[1,64]{1,0}") -> int:
    (kernel,) = steps(TEXT.replace("BODY", "\n".join(f"  {line}" for line in body)).replace("RESULT", result))
    return kernel.bytes


def test_a_row_that_a_fusion_inside_slices_is_all_that_is_read():
    assert moved(f"ROOT {ROW.replace('OF', '%x')}") == 2 * 128 + 4


@pytest.mark.parametrize(
    "through",
    [
        "%y = bf16[8,64]{1,0} copy(%x)",
        "%y = bf16[8,64]{1,0} bitcast(%x)",
        "%y = bf16[8,64]{1,0} fusion(%x), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%relabelled",
    ],
    ids=["copied", "relabelled", "by a fusion in its place"],
)
def test_a_stack_that_is_relabelled_first_is_still_read_by_rows(through):
    assert moved(through, f"ROOT {ROW.replace('OF', '%y')}") == 2 * 128 + 4


def test_a_stack_that_is_reversed_first_is_read_whole():
    assert (
        moved("%y = bf16[8,64]{1,0} reverse(%x), dimensions={0}", f"ROOT {ROW.replace('OF', '%y')}") == 1024 + 128 + 4
    )


def test_a_row_that_a_fusion_inside_puts_into_a_stack_is_all_that_is_written():
    row = ROW.replace("OF", "%x")
    put = "ROOT %out = bf16[8,64]{1,0} fusion(%x, %row, %n), kind=kLoop, calls=%put"
    assert moved(row, put, result="bf16[8,64]{1,0}") == 2 * 128 + 4


def test_what_lies_in_a_scratchpad_is_no_traffic():
    near = "bf16[8,64]{1,0:T(8,128)(2,1)S(1)}"
    text = TEXT.replace("BODY", "  ROOT %y = bf16[8,64]{1,0} negate(%x)").replace("RESULT", near)
    (kernel,) = steps(text)
    assert kernel.bytes == 1024
