"""Trip counts from condition, start and step, against a loop that is simply run."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.hlo import loops
from lab.hlo.loops import Scope, derived_trip_count, printed_and_derived, trip_count
from lab.hlo.text import parse

COMPARE = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}

LOOP = """HloModule loop

%body (state: ({t}[], f32[4], {t}[])) -> ({t}[], f32[4], {t}[]) {{
  %state = ({t}[], f32[4], {t}[]) parameter(0)
  %counter = {t}[] get-tuple-element(%state), index=0
  %step = {t}[] constant({step})
  %next = {t}[] add(%counter, %step)
  %value = f32[4]{{0}} get-tuple-element(%state), index=1
  %bound = {t}[] get-tuple-element(%state), index=2
  ROOT %out = ({t}[], f32[4], {t}[]) tuple(%next, %value, %bound)
}}

%condition (state.1: ({t}[], f32[4], {t}[])) -> pred[] {{
  %state.1 = ({t}[], f32[4], {t}[]) parameter(0)
  %counter.1 = {t}[] get-tuple-element(%state.1), index=0
  {limit}
  ROOT %less = pred[] compare({sides}), direction={direction}
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  %start = {t}[] constant({start})
  %end = {t}[] constant({bound})
  %init = ({t}[], f32[4], {t}[]) tuple(%start, %x, %end)
  %loop = ({t}[], f32[4], {t}[]) while(%init), condition=%condition, body=%body
  ROOT %result = f32[4]{{0}} get-tuple-element(%loop), index=1
}}
"""


SIDES = "%counter.1, %limit"


def count(start=0, step=1, bound=10, direction="LT", t="s32", carried=False, mirrored=False) -> int | None:
    limit = f"%limit = {t}[] get-tuple-element(%state.1), index=2" if carried else f"%limit = {t}[] constant({bound})"
    sides = "%limit, %counter.1" if mirrored else "%counter.1, %limit"
    module = parse(LOOP.format(start=start, step=step, bound=bound, direction=direction, t=t, limit=limit, sides=sides))
    return trip_count(module.entry.by_name["loop"], Scope(module, module.entry))


def run(start, step, bound, direction, mirrored, most=500) -> int | None:
    trips = 0
    while COMPARE[direction](*((bound, start) if mirrored else (start, bound))):
        start, trips = start + step, trips + 1
        if trips > most:
            return None
    return trips


@given(
    start=st.integers(-20, 20),
    step=st.integers(-5, 5),
    bound=st.integers(-20, 20),
    direction=st.sampled_from(sorted(COMPARE)),
    carried=st.booleans(),
    mirrored=st.booleans(),
)
def test_every_direction_start_and_step_gives_the_trips_of_a_loop_that_is_run(
    start, step, bound, direction, carried, mirrored
):
    assert count(start, step, bound, direction, "s32", carried, mirrored) == run(
        start, step, bound, direction, mirrored
    )


def test_a_barrier_that_a_body_ends_with_hides_no_counter():
    text = LOOP.format(
        start=0,
        step=1,
        bound=7,
        direction="LT",
        t="s32",
        limit="%limit = s32[] constant(7)",
        sides="%counter.1, %limit",
    )
    result = "(s32[], f32[4], s32[])"
    held = text.replace(
        f"  ROOT %out = {result} tuple(%next, %value, %bound)",
        f"  %out = {result} tuple(%next, %value, %bound)\n  ROOT %held = {result} opt-barrier(%out)",
    )
    assert "opt-barrier" in held and [
        derived_trip_count(m.entry.by_name["loop"], Scope(m, m.entry)) for m in map(parse, (text, held))
    ] == [7, 7]


def test_loop_bound_four_with_step_two_runs_twice():
    assert count(bound=4, step=2, t="u32") == 2


def test_unsigned_counter_that_adds_the_largest_number_counts_down():
    assert count(start=126, step=4294967295, bound=0, direction="GT", t="u32") == 126


def test_a_counter_that_leaves_its_type_gives_no_count():
    assert count(step=100, bound=120, t="s8") is None  # 0, 100, -56, 44, ...
    assert count(step=100, bound=120, t="s32") == 2


@pytest.mark.parametrize(
    ("limit", "trips"),
    [
        ("%l = s32[] constant(266)\n  %n = s8[] convert(%l)\n  %limit = s32[] convert(%n)", 10),
        ("%l = s16[] constant(-1)\n  %n = u8[] convert(%l)\n  %limit = s32[] convert(%n)", 255),
        ("%l = s32[] constant(10)\n  %n = pred[] convert(%l)\n  %limit = s32[] convert(%n)", None),
        ("%l = bf16[] constant(257)\n  %n = f32[] convert(%l)\n  %limit = s32[] convert(%n)", None),
    ],
)
def test_a_conversion_keeps_what_the_new_type_holds(limit, trips):
    module = parse(LOOP.format(start=0, step=1, bound=0, direction="LT", t="s32", limit=limit, sides=SIDES))
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) == trips


def test_a_counter_that_is_narrowed_on_its_way_gives_no_count():
    wide = "%next = {t}[] add(%counter, %step)"
    narrow = "%s = s8[] convert(%step)\n  %c = s8[] convert(%counter)\n  %n = s8[] add(%c, %s)"
    text = LOOP.replace(wide, narrow + "\n  %next = {t}[] convert(%n)")
    limit = "%limit = s32[] constant(101)"
    module = parse(text.format(start=0, step=100, bound=0, direction="LT", t="s32", limit=limit, sides=SIDES))
    # 0, 100, -56, 44, -112, -12, 88, -68, 32, -124, -24, 76, -80, 20, 120
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) is None


def test_a_counter_of_floats_gives_no_count():
    assert count(start=254, step=3, bound=270, t="bf16") is None  # From 256 on every second number is there.


def test_a_loop_that_says_another_count_than_its_condition_is_damaged_or_counted_wrongly():
    # XLA's count of an unsigned counter that goes down; with it, XLA's CPU backend runs the loop once.
    printed = LOOP.replace("body=%body", 'body=%body, backend_config={{"known_trip_count":{{"n":"1"}}}}')
    limit = "%limit = u32[] constant(2)"
    text = printed.format(start=100, step=4294967293, bound=0, direction="GE", t="u32", limit=limit, sides=SIDES)
    module = parse(text)
    assert printed_and_derived(module.entry.by_name["loop"], Scope(module, module.entry)) == (1, 33)


def test_a_negated_comparison_is_the_opposite_one():
    negated = LOOP.replace(
        "ROOT %less = pred[] compare({sides}), direction={direction}",
        "%more = pred[] compare({sides}), direction={direction}\n  ROOT %not = pred[] not(%more)",
    )
    module = parse(
        negated.format(
            start=0,
            step=1,
            bound=10,
            direction="GE",
            t="s32",
            limit="%limit = s32[] constant(10)",
            sides="%counter.1, %limit",
        )
    )
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) == 10


def test_a_printed_trip_count_is_taken_as_it_stands():
    printed = LOOP.replace("body=%body", 'body=%body, backend_config={{"known_trip_count":{{"n":"7"}}}}')
    text = printed.format(
        start=0,
        step=1,
        bound=10,
        direction="LT",
        t="s32",
        limit="%limit = s32[] constant(10)",
        sides="%counter.1, %limit",
    )
    module = parse(text)
    loop = module.entry.by_name["loop"]
    assert trip_count(loop, Scope(module, module.entry)) == 7
    assert derived_trip_count(loop, Scope(module, module.entry)) == 10


def test_a_name_that_a_user_gave_is_no_trip_count():
    # A while without a bound that the text knows, in `jax.named_scope("known_trip_count n 7")`.
    named = LOOP.replace(
        "body=%body",
        'body=%body, metadata={{op_name="known_trip_count n 7/while \\"known_trip_count\\":{{\\"n\\":\\"7\\"}}"}}',
    )
    bound = {"t": "s32", "limit": "%limit = s32[] constant(10)", "sides": "%counter.1, %limit"}
    module = parse(named.format(start=0, step=0, bound=10, direction="LT", **bound))
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) is None


def test_a_bound_that_only_the_caller_knows_gives_no_count():
    unknown = LOOP.replace("%end = {t}[] constant({bound})", "%end = {t}[] custom-call(%x)")
    module = parse(
        unknown.format(
            start=0,
            step=1,
            direction="LT",
            t="s32",
            limit="%limit = s32[] get-tuple-element(%state.1), index=2",
            sides="%counter.1, %limit",
        )
    )
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) is None


@pytest.mark.parametrize("wrapped", ["fusion(%counter.1, %limit), kind=kLoop, calls=%compared"])
def test_a_comparison_inside_a_fusion_is_found(wrapped):
    fused = """%compared (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}}

ENTRY"""
    text = LOOP.replace("ENTRY", fused).replace("compare({sides}), direction={direction}", wrapped)
    module = parse(text.format(start=3, step=2, bound=10, t="s32", limit="%limit = s32[] constant(10)"))
    assert trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) == 4


def test_a_loop_that_starts_with_what_another_left_unchanged_counts_to_it():
    second = """  %kept = {t}[] get-tuple-element(%loop), index={left}
  %init.1 = ({t}[], f32[4], {t}[]) tuple(%start, %x, %kept)
  %loop.1 = ({t}[], f32[4], {t}[]) while(%init.1), condition=%condition, body=%body
  ROOT %result"""
    carried = {"t": "s32", "limit": "%limit = s32[] get-tuple-element(%state.1), index=2", "sides": SIDES}
    for left, trips in ((2, 10), (0, None)):  # The bound; the counter.
        text = LOOP.replace("  ROOT %result", second)
        module = parse(text.format(start=0, step=1, bound=10, direction="LT", left=left, **carried))
        assert derived_trip_count(module.entry.by_name["loop.1"], Scope(module, module.entry)) == trips


def test_a_bound_whose_type_is_not_written_is_counted_to():
    text = LOOP.replace("%loop = ({t}[], f32[4], {t}[]) while", "%loop = ({t}[], f32[4]) while")
    carried = {"t": "s32", "limit": "%limit = s32[] get-tuple-element(%state.1), index=2", "sides": SIDES}
    module = parse(text.format(start=0, step=1, bound=10, direction="LT", **carried))
    assert derived_trip_count(module.entry.by_name["loop"], Scope(module, module.entry)) == 10


def test_every_question_for_a_value_may_take_as_many_steps_as_the_limit(monkeypatch):
    monkeypatch.setattr(loops, "_MOST_STEPS", 2)
    module = parse(
        "ENTRY %e {\n  %three = s32[] constant(3)\n  %six = s32[] add(%three, %three)\n"
        "  ROOT %twelve = s32[] add(%six, %six)\n}\n"
    )
    scope = Scope(module, module.entry)
    assert [scope.value("six") for _ in range(3)] == [6, 6, 6]
    assert Scope(module, module.entry).value("twelve") is None
