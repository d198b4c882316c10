"""XLA of jax 0.11 names the gather of a loop's result after the loop: it belongs to what uses it."""

from lab.hlo.read import read
from lab.meshes.axes import Axes

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=4

%body (s: f32[2,8]) -> f32[2,8] {
  %s = f32[2,8]{1,0} parameter(0)
  ROOT %twice = f32[2,8]{1,0} add(%s, %s), metadata={op_name="jit(step)/layers/while/body/add"}
}

ENTRY %main (x: f32[2,8]) -> f32[8,8] {
  %x = f32[2,8]{1,0} parameter(0)
  %made = f32[2,8]{1,0} call(%x), to_apply=%body, metadata={op_name="jit(step)/layers/while"}
  %whole = f32[8,8]{1,0} all-gather(%made), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(step)/NAME"}
  ROOT %used = f32[8,8]{1,0} negate(%whole), metadata={op_name="jit(step)/embedding/neg"}
}
"""


def scope_of_the_gather(name: str) -> str:
    (transfer,) = read(TEXT.replace("NAME", name), source="step", axes=Axes.parse("x=4")).ledger.transfers
    return transfer.scope


def test_a_gather_named_after_a_loop_is_of_what_uses_it():
    assert scope_of_the_gather("layers/while") == "embedding"


def test_a_gather_with_a_name_of_its_own_keeps_it():
    assert scope_of_the_gather("layers/while/body/enter/reshard") == "layers/enter"
