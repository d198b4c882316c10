"""Where values come from, in texts made by hand."""

from lab.diagnosis.flow import Flow
from lab.hlo.text import parse

HELD = """HloModule held

ENTRY %main (x: f32[4], y: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %y = f32[4]{0} parameter(1)
  %sum = f32[4]{0} add(%x, %y)
  %both = (f32[4]{0}, f32[4]{0}) tuple(%x, %sum)
  %held = (f32[4]{0}, f32[4]{0}) opt-barrier(%both)
  ROOT %second = f32[4]{0} get-tuple-element(%held), index=1
}
"""


def test_a_value_comes_through_a_barrier_and_goes_through_it():
    module = parse(HELD)
    flow, at = Flow(module), module.entry.by_name
    assert flow.source(at["second"], module.entry).instruction.name == "sum"
    assert [use.opcode for use in flow.uses(at["sum"], module.entry)] == [None]  # The result of the program.
