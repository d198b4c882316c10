"""Products and transfers that XLA runs again for lack of memory, told from those of the program."""

import pytest

from lab.core.note import NoteKind
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


GATHERS = """HloModule jit_f, is_scheduled=true, num_partitions=4

ENTRY %main (a: f32[2,4], b: f32[2,4]) -> f32[8,4] {
  %a = f32[2,4]{1,0} parameter(0)
  %b = f32[2,4]{1,0} parameter(1)
  %both.1 = (f32[2,4]{1,0}, f32[2,4]{1,0}) tuple(%a, %b)
  %element.1 = f32[2,4]{1,0} get-tuple-element(%both.1), index=1
  %bitcast.1 = f32[2,4]{1,0} bitcast(%element.1)
  %gather.5.2 = f32[8,4]{1,0} all-gather(%bitcast.1), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %both.1.remat4 = (f32[2,4]{1,0}, f32[2,4]{1,0}) tuple(%a, %b)
  %element.remat.2 = f32[2,4]{1,0} get-tuple-element(%both.1.remat4), index=1
  %bitcast.remat.3 = f32[2,4]{1,0} bitcast(%element.remat.2)
  %gather.5.2.remat2 = f32[8,4]{1,0} all-gather(%bitcast.remat.3), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  ROOT %add.1 = f32[8,4]{1,0} add(%gather.5.2, %gather.5.2.remat2)
}
"""
CLONE = "all-gather(%bitcast.remat.3), channel_id=7, replica_groups={{0,1,2,3}}"


def test_a_gather_that_xla_does_again_names_the_first():
    ledger = read_text(GATHERS)
    assert [t.repeats for t in ledger.transfers] == [None, "gather.5.2"]
    assert [note.kind for note in ledger.notes] == [NoteKind.REMATERIALIZED_TRANSFERS]


@pytest.mark.parametrize(
    ("of_the_clone", "other"),
    [
        ("%gather.5.2.remat2", "%gather.6"),
        ("bitcast(%element.remat.2)", "bitcast(%b)"),
        ("(%both.1.remat4), index=1", "(%both.1.remat4), index=0"),
        (CLONE, CLONE.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")),
        (
            f"f32[8,4]{{1,0}} {CLONE}, dimensions={{0}}",
            f"f32[2,16]{{1,0}} {CLONE}, dimensions={{1}}",
        ),
    ],
    ids=["name", "operand", "element", "groups", "dim"],
)
def test_a_gather_of_another_name_operand_group_or_dim_is_the_programs_own(of_the_clone, other):
    assert of_the_clone in GATHERS
    assert [t.repeats for t in read_text(GATHERS.replace(of_the_clone, other)).transfers] == [None, None]
