"""Products that XLA runs again for lack of memory, told from those of the program."""

from lab.hlo.read import read_text

TEXT = """HloModule jit_f, is_scheduled=true

%fused_computation (p: f32[4,4]) -> f32[4,4] {
  %p = f32[4,4]{1,0} parameter(0)
  %dot.1 = f32[4,4]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %dot.2 = f32[4,4]{1,0} dot(%dot.1, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused_computation.clone (p.1: f32[4,4]) -> f32[4,4] {
  %p.1 = f32[4,4]{1,0} parameter(0)
  %dot.3 = f32[4,4]{1,0} dot(%p.1, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %dot.4 = f32[4,4]{1,0} dot(%dot.3, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (a: f32[4,4]) -> f32[4,4] {
  %a = f32[4,4]{1,0} parameter(0)
  %fusion.5 = f32[4,4]{1,0} fusion(%a), kind=kOutput, calls=%fused_computation
  %fusion.5.remat = f32[4,4]{1,0} fusion(%a), kind=kOutput, calls=%fused_computation.clone
  %dot.7 = f32[4,4]{1,0} dot(%fusion.5, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %dot.8.remat = f32[4,4]{1,0} dot(%fusion.5.remat, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %dot.8.remat2 = f32[4,4]{1,0} dot(%fusion.5.remat, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %add.1 = f32[4,4]{1,0} add(%dot.7, %dot.8.remat)
  ROOT %add.2 = f32[4,4]{1,0} add(%add.1, %dot.8.remat2)
}
"""
ONE = 2 * 4 * 4 * 4


def test_clones_are_counted_as_repeats_and_of_clones_whose_original_is_gone_all_but_one():
    ledger = read_text(TEXT)
    # Four in two fusions, and dot.7 with two clones of dot.8: both products of a fusion's clone, and one of these two.
    assert (ledger.flops, ledger.flops_rematerialized) == (7 * ONE, {"": 3 * ONE})


def test_without_clones_nothing_is_repeated():
    assert read_text(TEXT.replace(".remat2", ".9").replace(".remat", ".6")).flops_rematerialized == {}
