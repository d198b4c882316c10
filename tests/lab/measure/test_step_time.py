"""The time of a step from its text and measured rates, where it can be told by hand."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger
from lab.hlo import read_text
from lab.hlo.kernels import Choice, Collective, Copy, Does, Kernel, Loop, steps
from lab.measure import step_time as step_time_module
from lab.measure.rates.curves import Curve, Rate
from lab.measure.step_time import Taken, TourRates, _check_met, _measured, _Run, seconds_of, step_time
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from tests.data import kept

RATES = TourRates(
    product=Rate(alpha_s=2.0, per_s=100.0),
    memory=Curve(((10.0, 1.0), (1000.0, 10.0))),
    scattered_bytes_per_s=5.0,
    links={Kind.ALL_REDUCE: Curve(((1.0, 1.0), (256.0, 5.0)))},
    slowed_products=0.25,
    slowed_memory=0.5,
)


@pytest.mark.parametrize(
    "kernel, seconds",
    [
        (Kernel("at a measured size", 10, 0), 1.0),
        (Kernel("between two, in logarithms", 100, 0), 10**0.5),
        (Kernel("below the least", 1, 0), 1.0),
        (Kernel("beyond the largest, at its rate", 2000, 0), 20.0),
        (Kernel("a product longer than its traffic", 10, 800), 10.0),
        (Kernel("traffic longer than its product", 1000, 100), 10.0),
        (Kernel("scattered", 20, 0, does=Does.TRANSPOSE), 4.0),
        (Kernel("scattered, but short", 1, 0, does=Does.TRANSPOSE), 1.0),
    ],
    ids=lambda each: each.name if isinstance(each, Kernel) else None,
)
def test_a_kernel_takes_the_slower_of_product_and_traffic(kernel, seconds):
    assert RATES.kernel(kernel).seconds == pytest.approx(seconds)


ALL = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"
SUM = f"{ALL}, to_apply=%add"
TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=2

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[64], y: f32[125]) -> RESULT {
  %x = f32[64]{0} parameter(0)
  %y = f32[125]{0} parameter(1)
BODY
}
"""


def program(*lines: str, gives: str = "f32[64]", before: str = "") -> str:
    """A text whose entry has these lines, after these computations."""
    body = "\n".join(f"  {line}" for line in lines)
    return TEXT.replace("ENTRY", f"{before}ENTRY").replace("RESULT", gives).replace("BODY", body)


def ledger(text: str):
    return read_text(text, axes=Axes.parse("data=2"))


def taken(*lines: str, gives: str = "f32[64]"):
    text = program(*lines, gives=gives)
    return step_time(text, ledger(text), RATES)


def test_a_sum_that_nothing_runs_beside_is_exposed_whole():
    found = taken(f"ROOT %s = f32[64]{{0}} all-reduce(%x), {SUM}")
    assert (found.total, found.exposed, found.slowed) == (5.0, 5.0, 0.0)


SUM_AND_KERNELS = (
    f"%s = f32[64]{{0}} all-reduce-start(%x), {SUM}",
    "%k = f32[125]{0} copy(%y)",
    "%l = f32[125]{0} copy(%y)",
)
LAST = "ROOT %d = f32[64]{0} all-reduce-done(%s)"


def test_a_sum_begins_when_the_kernel_after_its_start_ends():
    found = taken(*SUM_AND_KERNELS[:2], LAST)
    assert (found.memory, found.exposed, found.slowed, found.total) == (10.0, 5.0, 0.0, 15.0)


def test_kernels_beside_a_sum_hide_it_and_lose_half_of_what_they_hide():
    found = taken(*SUM_AND_KERNELS, LAST)
    assert (found.memory, found.communication, found.exposed) == (20.0, 5.0, 0.0)
    assert found.total == found.memory + found.slowed == 20.0 + 0.5 * 5.0


def test_a_sum_that_waits_for_the_wire_begins_when_the_kernel_ends_that_runs_as_it_comes_free():
    other, done = f"%t = f32[64]{{0}} all-reduce-start(%x), {SUM}", "%e = f32[64]{0} all-reduce-done(%t)"
    found = taken(SUM_AND_KERNELS[0], other, *SUM_AND_KERNELS[1:], done, LAST)
    assert (found.slowed, found.exposed) == (0.5 * 5.0, 5.0)
    assert found.total == found.memory + found.slowed + found.exposed == 27.5


def test_two_sums_share_one_wire():
    starts = [f"%{name} = f32[64]{{0}} all-reduce-start(%x), {SUM}" for name in "st"]
    found = taken(*starts, "%d = f32[64]{0} all-reduce-done(%s)", "ROOT %e = f32[64]{0} all-reduce-done(%t)")
    assert found.total == found.communication == 10.0


def test_of_a_conditional_the_longest_branch_counts_with_the_sum_that_it_waits_for():
    short = (
        "%short (a: f32[125]) -> f32[125] {\n  %a = f32[125]{0} parameter(0)\n  ROOT %c = f32[125]{0} copy(%a)\n}\n\n"
    )
    long = short.replace("short", "long").replace(
        "ROOT %c = f32[125]{0} copy(%a)",
        f"%c = f32[125]{{0}} copy(%a)\n  ROOT %s = f32[125]{{0}} all-reduce(%c), {SUM}",
    )
    choice = "ROOT %d = f32[125]{0} conditional(%i, %y, %y), branch_computations={%short, %long}"
    text = program("%i = s32[] constant(0)", choice, gives="f32[125]", before=short + long)
    found = step_time(text, ledger(text), RATES)
    assert (found.memory, found.exposed) == (10.0, 500 / 256 * 5.0)
    assert found.total == found.memory + found.exposed


LOOP = """%once (a: f32[125]) -> f32[125] {
  %a = f32[125]{0} parameter(0)
  ROOT %c = f32[125]{0} copy(%a)
}

%twice (b: f32[125]) -> f32[125] {
  %b = f32[125]{0} parameter(0)
  %e = f32[125]{0} copy(%b)
  ROOT %f = f32[125]{0} copy(%e)
}

%body (p: (s32[], f32[125])) -> (s32[], f32[125]) {
  %p = (s32[], f32[125]{0}) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %z = f32[125]{0} get-tuple-element(%p), index=1
  %o = f32[125]{0} conditional(%n, %z, %z), branch_computations={%once, %twice}
  ROOT %q = (s32[], f32[125]{0}) tuple(%n, %o)
}

%condition (p: (s32[], f32[125])) -> pred[] {
  %p = (s32[], f32[125]{0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

"""
LOOPED = (
    "ROOT %w = (s32[], f32[125]) while(%t), condition=%condition, body=%body, "
    'backend_config={"known_trip_count":{"n":"3"}}'
)


@pytest.mark.parametrize("branches, kernels", [((), 6), (({0}, {0, 1}, {0}), 4), (({0}, {0}, {0}), 3)])
def test_of_a_loop_only_branches_count_that_some_device_takes(branches, kernels):
    found = looped(branches)
    assert found.total == found.memory == 10.0 * kernels


def looped(branches):
    entry = "%i = s32[] constant(0)", "%t = (s32[], f32[125]{0}) tuple(%i, %y)", LOOPED
    text = program(*entry, gives="(s32[], f32[125])", before=LOOP)
    return step_time(text, ledger(text), RATES, [[*map(Taken, some)] for some in branches])


@pytest.mark.parametrize("branches", [({0}, {1}), ({0}, {1}, {2})], ids=["trips", "branches"])
def test_branches_of_a_loop_that_the_text_does_not_have_are_refused(branches):
    with pytest.raises(UsageError, match=f"branches of {len(branches)} trips were given, but no loop of the text"):
        looped(branches)


def test_a_loop_of_which_the_text_does_not_say_how_often_it_runs_is_refused_though_it_sends_nothing():
    entry = "%i = s32[] constant(0)", "%t = (s32[], f32[125]{0}) tuple(%i, %y)", LOOPED.partition(", backend")[0]
    text = program(*entry, gives="(s32[], f32[125])", before=LOOP)
    with pytest.raises(UsageError, match="does not say how often a loop runs: the time of the step is unknown"):
        step_time(text, replace(ledger(text), is_complete=True), RATES)


@pytest.mark.parametrize(
    "line, said",
    [
        (SUM_AND_KERNELS[0], "starts s and does not wait for it"),
        ("%d = f32[64]{0} all-reduce-done(%x)", "waits for x, which this computation does not start"),
    ],
)
def test_a_sum_that_ends_where_it_does_not_start_is_refused(line, said):
    with pytest.raises(UsageError, match=said):
        taken(line, "ROOT %end = f32[64]{0} negate(%x)")


def test_a_kind_that_was_not_measured_is_refused_by_its_name():
    with pytest.raises(UsageError, match="no measured rate of all_gather; measured are all_reduce"):
        taken("ROOT %g = f32[128]{0} all-gather(%x), " + ALL + ", dimensions={0}", gives="f32[128]")


DONE = program(*SUM_AND_KERNELS, LAST)


@pytest.mark.parametrize(
    "changed, said",
    [
        (lambda t: replace(t, instruction="s.1"), "the ledger has 0 executions of s, the kernels of the text 1"),
        (lambda t: replace(t, executions=2), "the ledger has 2 executions of s, the kernels of the text 1"),
        (lambda t: replace(t, executions=None), "the text does not say how often s runs"),
    ],
    ids=["another name", "another count", "no count"],
)
def test_a_transfer_that_the_kernels_do_not_meet_as_often_as_the_ledger_says_is_refused(changed, said):
    whole = ledger(DONE)
    with pytest.raises(UsageError, match=f"{said}.*the time of the step is unknown"):
        step_time(DONE, replace(whole, transfers=tuple(map(changed, whole.transfers))), RATES)


def test_a_transfer_more_or_less_than_the_text_has_is_refused():
    whole = ledger(DONE)
    for transfers in (), whole.transfers + tuple(replace(t, instruction="t") for t in whole.transfers):
        with pytest.raises(UsageError, match="the time of the step is unknown; give the ledger of this text"):
            step_time(DONE, replace(whole, transfers=transfers), RATES)


def test_a_sum_inside_a_fusion_which_no_kernel_waits_for_is_refused():
    """As no GPU text has it: a loop over elements that communicates; a custom kernel does."""
    fused = f"%f (a: f32[64]) -> f32[64] {{\n  %a = f32[64]{{0}} parameter(0)\n  ROOT %s = f32[64]{{0}} all-reduce(%a), {SUM}\n}}\n\n"
    text = program("ROOT %k = f32[64]{0} fusion(%x), kind=kLoop, calls=%f", before=fused)
    with pytest.raises(UsageError, match="the ledger has 1 execution of s, the kernels of the text 0"):
        step_time(text, ledger(text), RATES)


def test_the_time_of_a_program_of_which_a_part_is_missing_is_refused():
    text = DONE.replace("copy(%y)", "copy(%missing)")
    with pytest.raises(UsageError, match="is not complete: the time of the step is unknown"):
        step_time(text, ledger(text), RATES)


def test_a_sum_in_the_condition_of_a_loop_runs_once_more_than_the_body():
    condition = LOOP.replace(
        "  ROOT %less = pred[] constant(true)",
        "  %y.1 = f32[125]{0} get-tuple-element(%p), index=1\n"
        f"  %s = f32[125]{{0}} all-reduce(%y.1), {SUM}\n"
        "  ROOT %less = pred[] constant(true)",
    )
    entry = "%i = s32[] constant(0)", "%t = (s32[], f32[125]{0}) tuple(%i, %y)", LOOPED
    text = program(*entry, gives="(s32[], f32[125])", before=condition)
    assert step_time(text, ledger(text), RATES).communication == 4 * RATES.links[Kind.ALL_REDUCE].seconds(500)


def test_a_product_with_a_vector_takes_as_long_as_reading_its_matrix():
    fused = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%f (m: f32[64,8], v: f32[8]) -> f32[64] {
  %m = f32[64,8]{1,0} parameter(0)
  %v = f32[8]{0} parameter(1)
  %r = f32[64,8]{1,0} broadcast(%v), dimensions={1}
  %t = f32[64,8]{1,0} multiply(%m, %r)
  %z = f32[] constant(0)
  ROOT %s = f32[64]{0} reduce(%t, %z), dimensions={1}, to_apply=%sum
}

"""
    lines = (
        "%w = f32[64,8]{1,0} broadcast(%x), dimensions={0}",
        "%u = f32[8]{0} slice(%x), slice={[0:8]}",
        "ROOT %k = f32[64]{0} fusion(%w, %u), kind=kInput, calls=%f",
    )
    text = program(*lines, before=fused)
    *_, kernel = steps(text)
    assert (kernel.flops, kernel.elementwise_flops, kernel.bytes) == (0, 2 * 64 * 8, 4 * (64 * 8 + 8 + 64))
    assert ledger(text).flops == kernel.elementwise_flops
    assert RATES.kernel(kernel).seconds == RATES.memory.seconds(kernel.bytes)


SCHEDULED = sorted(name for name, entry in kept.index().items() if entry["target"].startswith(("gpu", "tpu")))


@pytest.mark.parametrize("name", SCHEDULED)
def test_kernels_do_the_work_of_the_ledger_and_meet_its_transfers(name):
    found, whole = steps(kept.text(name)), kept.ledger(name)
    if any(t.executions is None for t in whole.transfers):
        pytest.skip("the text does not say how often a loop runs")
    assert work(found) == (whole.flops or 0)
    _check_met(found, whole)
    if whole.is_complete and not any(t.conditional for t in whole.transfers):
        wires = {t.instruction: float(t.wire_bytes) * t.executions for t in whole.transfers if t.executions}
        assert seconds_of(found, whole, Flat()).wires == pytest.approx(wires)


class Flat:
    """A second a kernel, and one a byte on the wire."""

    between_kernels = True

    def kernel(self, kernel):
        return _measured(1.0)

    def transfer(self, transfer):
        return _measured(float(transfer.wire_bytes))

    copy, slowed = kernel, lambda self, kernel: 0.0


class AtOnce(Flat):
    """Of a chip whose collectives are no kernels."""

    between_kernels = False


def test_a_collective_that_is_no_kernel_begins_where_it_is_started_and_one_that_is_after_the_next_kernel():
    """A sum of 256 wire bytes, started before a kernel of a second and awaited after it."""
    text = program(
        f"%s = f32[64]{{0}} all-reduce-start(%x), {SUM}",
        "%k = f32[125]{0} copy(%y)",
        "ROOT %d = f32[64]{0} all-reduce-done(%s)",
    )
    (wire,) = (float(transfer.wire_bytes) for transfer in ledger(text).transfers)
    times = [seconds_of(steps(text), ledger(text), rates).time for rates in (Flat(), AtOnce())]
    assert [(time.total, time.exposed) for time in times] == [(1 + wire, wire), (wire, wire - 1)]


STEADY = """%condition (p: (s32[], f32[64], f32[125])) -> pred[] {
  %p = (s32[], f32[64]{0}, f32[125]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(TRIPS)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (p: (s32[], f32[64], f32[125])) -> (s32[], f32[64], f32[125]) {
  %p = (s32[], f32[64]{0}, f32[125]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %y = f32[125]{0} get-tuple-element(%p), index=2
  %next = s32[] add(%i, %one)
  %s = f32[64]{0} all-reduce-start(%x), SUM
  %k = f32[125]{0} copy(%y)
  %l = f32[125]{0} copy(%k)
  %d = f32[64]{0} all-reduce-done(%s)
  ROOT %t = (s32[], f32[64]{0}, f32[125]{0}) tuple(%next, %d, %l)
}

"""


def steady(trips: int):
    lines = (
        "%zero = s32[] constant(0)",
        "%start = (s32[], f32[64]{0}, f32[125]{0}) tuple(%zero, %x, %y)",
        "%w = (s32[], f32[64]{0}, f32[125]{0}) while(%start), condition=%condition, body=%body",
        "ROOT %r = f32[64]{0} get-tuple-element(%w), index=1",
    )
    text = program(*lines, before=STEADY.replace("SUM", SUM).replace("TRIPS", str(trips)))
    return seconds_of(steps(text), ledger(text), RATES)


def test_trips_that_go_on_like_the_last_take_as_long_as_if_each_were_run_through(monkeypatch):
    short = steady(1000)
    monkeypatch.setattr(step_time_module, "_same", lambda *_: False)
    whole = steady(1000)
    assert vars(short.time) == pytest.approx(vars(whole.time))
    assert (short.wires, short.exposed, short.runs) == (
        pytest.approx(whole.wires),
        pytest.approx(whole.exposed),
        pytest.approx(whole.runs),
    )
    assert len(short.events) < 20 < 3000 < len(whole.events)
    assert short.events[-1].end == pytest.approx(short.time.total)


def work(some) -> int:
    """FLOPs of all kernels, those of every branch."""
    return sum(
        step.flops + step.elementwise_flops
        if isinstance(step, Kernel)
        else (step.trips or 0) * work(step.body)
        if isinstance(step, Loop)
        else sum(map(work, step.branches))
        if isinstance(step, Choice)
        else 0
        for step in some
    )


def test_ticks_that_begin_alike_take_as_long_as_if_each_were_run_through():
    """A sum that is started in one tick is still under way in the next."""
    kernels = [Kernel(f"k{size}", size, size % 2) for size in (10, 100, 401)]
    branches = tuple((kernel,) * (2 * number + 1) for number, kernel in enumerate(kernels))
    copied = Copy("c", True, True, 50, is_host=True)
    body = (Collective("s", False, True), copied, Collective("s", True, False), kernels[0], Choice(branches))
    loop = Loop(60, body)
    by_trip = [[*map(Taken, ({0}, {1, 2}, {0, 1}, {0}, {2})[tick % 5])] for tick in range(60)]
    short, whole = (_Run(RATES, {"s": _measured(33.0)}, by_trip) for _ in range(2))
    first, last = Collective("s", True, False), Collective("s", False, True)
    short.through([first, kernels[0], loop, last])
    whole.through([first, kernels[0]])
    for taken in by_trip:
        whole.through(loop.body, taken)
    whole.through([last])
    assert vars(short.seconds().time) == pytest.approx(vars(whole.seconds().time))
    assert short.seconds().runs == whole.seconds().runs
    assert short.seconds().exposed == pytest.approx(whole.seconds().exposed)
    assert len(short.events) < len(whole.events) / 3


def test_of_a_branch_what_no_device_does_at_a_trip_takes_no_time():
    """A pipeline's stages but the last one have no head, and the head comes in some of their ticks."""
    head = Choice(((Kernel("logits", 1000, 1000),), ()), (("head", "loss"), ()))
    body = (Choice(((), (Kernel("layer", 100, 100), Loop(2, (head,))))),)
    whole, without = Taken(1), Taken(1, ("head",))
    times = {
        taken: seconds_of((Loop(3, body),), Ledger(()), RATES, taken).runs
        for taken in [((without,),) * 3, ((without,), (without, whole), (Taken(0),)), ()]
    }
    assert [{kernel.name: runs for kernel, runs in found.items()} for found in times.values()] == [
        {"layer": 3},
        {"layer": 2, "logits": 2},
        {"layer": 3, "logits": 6},
    ]
