"""Where values come from, in texts made by hand."""

import pytest

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


STARTED = """HloModule started

%ran (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %half = f32[4]{0} negate(%p)
  ROOT %moved = f32[4]{0} copy(%half)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %sum = f32[4]{0} add(%x, %x)
  %start = ((f32[4]{0}), f32[4]{0}) START(%sum), CALLEE=%ran
  %done = f32[4]{0} DONE(%start)
  ROOT %last = f32[4]{0} abs(%done)
}
"""


@pytest.mark.parametrize("kind", ["fusion", "async", "call"])
def test_a_value_goes_into_what_is_started_and_comes_out_of_what_awaits_it(kind):
    text = STARTED.replace("START", f"{kind}-start").replace("DONE", f"{kind}-done")
    module = parse(text.replace("CALLEE", "to_apply" if kind == "call" else "calls"))
    flow, ran = Flow(module), module.computations["ran"]
    assert flow.source(module.entry.by_name["done"], module.entry).instruction.name == "half"
    assert flow.source(ran.by_name["p"], ran).instruction.name == "sum"
    assert [use.opcode for use in flow.uses(module.entry.by_name["sum"], module.entry)] == ["negate"]
    assert [use.opcode for use in flow.uses(ran.by_name["half"], ran)] == ["abs"]
