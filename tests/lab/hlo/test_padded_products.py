"""XLA splits a long sum into equal parts, and fills both operands up with zeros where it does not divide."""

from lab.hlo.read import read

TEXT = """HloModule jit_step, is_scheduled=true

%filled (p: bf16[6,8]) -> bf16[8,8] {
  %p = bf16[6,8]{1,0} parameter(0)
  %zero = bf16[] constant(0)
  ROOT %pad = bf16[8,8]{1,0} pad(%p, %zero), padding=0_2x0_0
}

ENTRY %main (x: bf16[6,8], y: bf16[6,8]) -> f32[2,8,8] {
  %x = bf16[6,8]{1,0} parameter(0)
  %y = bf16[6,8]{1,0} parameter(1)
  %fx = bf16[8,8]{1,0} fusion(%x), kind=kLoop, calls=%filled
  %zero = bf16[] constant(0)
  %fy = bf16[8,8]{1,0} pad(%y, %zero), padding=0_2x0_0
  %bx = bf16[2,4,8]{2,1,0} bitcast(%fx)
  %by = bf16[2,4,8]{2,1,0} bitcast(%fy)
  ROOT %dot = f32[2,8,8]{2,1,0} dot(%bx, %by), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={0}, rhs_contracting_dims={1}, metadata={op_name="jit(step)/mlp/dot_general"}
}
"""


def test_zeros_that_fill_both_operands_are_counted_apart():
    ledger = read(TEXT, source="step").ledger
    assert ledger.flops == 2 * 8 * 8 * 8
    assert ledger.flops_padded == {"mlp": 2 * 8 * 8 * 2} == dict(ledger.flops_added)


def test_what_fills_one_operand_alone_or_is_no_zero_is_not():
    for text in (
        TEXT.replace("%by = bf16[2,4,8]{2,1,0} bitcast(%fy)", "%by = bf16[2,4,8]{2,1,0} bitcast(%fx)").replace(
            "constant(0)\n  ROOT", "constant(1)\n  ROOT"
        ),
        TEXT.replace(
            "%fy = bf16[8,8]{1,0} pad(%y, %zero), padding=0_2x0_0",
            "%fy = bf16[8,8]{1,0} broadcast(%zero), dimensions={}",
        ),
    ):
        assert read(text, source="step").ledger.flops_padded == {}
