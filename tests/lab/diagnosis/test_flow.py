"""Where values come from, in texts made by hand."""

import pytest

from lab.diagnosis.flow import Flow, Place
from lab.diagnosis.numbers import number_on
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


NUMBERS = """HloModule numbers

ENTRY %main () -> s32[] {
  %id = u32[] partition-id()
  %one = u32[] constant(1)
  %half = u32[] shift-right-logical(%id, %one)
  %twice = u32[] shift-left(%id, %one)
  %signed = s32[] convert(%id)
  %four = s32[] constant(4)
  %before = s32[] subtract(%signed, %four)
  %rest = s32[] remainder(%before, %four)
  ROOT %part = s32[] divide(%before, %four)
}
"""


@pytest.mark.parametrize(
    ("name", "of_device_3"), [("half", 1), ("twice", 6), ("before", -1), ("rest", -1), ("part", 0)]
)
def test_a_number_of_a_device_is_what_xla_computes_of_negative_ones_too(name, of_device_3):
    module = parse(NUMBERS)
    place = Place(module.entry.by_name[name], module.entry)
    assert number_on(Flow(module), place, 3) == of_device_3
