"""The predicted time of a step: what it rests on, what is missing, and what each axis costs."""

import json
from dataclasses import replace
from importlib.resources import files

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.core.codec import from_json, to_json
from lab.core.units import seconds_text
from lab.diagnosis.program import Program
from lab.hlo.kernels import Choice, Collective, Copy, Does, Kernel, Loop
from lab.hlo.multiplied import Product
from lab.hlo.read import read
from lab.measure.accuracy import Order, Record, Row, accuracy, order, record_of, records
from lab.measure.prediction import Prediction, PredictionJson, of_schedule
from lab.measure.rates.links import Links
from lab.measure.rates.prices import Prices
from lab.measure.rates.table import Basis, Passes, rates_of
from lab.measure.schedule import Schedule, schedule_from
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.report.seconds import accuracy_text, prediction_text
from lab.report.timeline import merged, timeline
from lab.report.trace import trace_text
from tests.cases.compiling import ahead_of_time_gpu
from tests.data import kept

H100 = rates_of("h100")


def schedule_of(name: str) -> Schedule:
    entry = kept.index()[name]
    target, axes = parse_target(entry["target"]), Axes.parse(entry["mesh"])
    reading = read(kept.text(name), source=name, axes=axes, target=target)
    return Schedule.of(Program(reading.ledger, reading, axes, target), target)


def predicted(name: str) -> Prediction:
    found, target = schedule_of(name), parse_target(kept.index()[name]["target"])
    return of_schedule(found, rates_of(target.chip), target.hardware)


BOTH = ("fsdp.gpu", "fsdp.tpu")


@pytest.mark.parametrize("name", BOTH)
def test_a_step_is_its_kernels_and_what_they_wait_for(name):
    found = predicted(name)
    time = found.time
    assert time.total == pytest.approx(time.products + time.memory + time.exposed + time.slowed + time.copying)
    assert sum(part.seconds for part in found.parts) == pytest.approx(time.total)
    assert sum(found.coverage.values()) == pytest.approx(1)
    assert found.low < time.total < found.high
    assert time.exposed <= time.communication
    assert sum(phase.flops for phase in found.phases) == found.ledger.flops


@pytest.mark.parametrize("name", BOTH)
def test_without_an_axis_a_step_waits_for_none_of_its_transfers(name):
    (axis,) = predicted(name).axes
    found = predicted(name).time
    assert (axis.axes, axis.wire, axis.exposed) == (
        "fsdp",
        pytest.approx(found.communication),
        pytest.approx(found.exposed),
    )
    assert (1 - 1e-9) * (found.products + found.memory) <= axis.step_without <= (1 + 1e-9) * found.total


@pytest.mark.parametrize("name", BOTH)
def test_a_schedule_that_was_kept_takes_the_same_time(name):
    found, chip = schedule_of(name), parse_target(kept.index()[name]["target"])
    again = schedule_from(json.loads(json.dumps(to_json(found))))
    first, second = (of_schedule(one, rates_of(chip.chip), chip.hardware) for one in (found, again))
    assert (first.time, first.parts, first.axes) == (second.time, second.parts, second.axes)
    assert [(p.phase, p.seconds) for p in first.phases] == [(p.phase, p.seconds) for p in second.phases]


def test_every_kind_of_step_is_kept():
    kernel = Kernel("k", 4, 8, does=Does.PRODUCT, product=Product(1, 1, 2, 2, "bf16"), op_name="a/transpose(jvp(b))/c")
    steps = (
        Loop(3, (kernel, Collective("s", True, False), Collective("s", False, True))),
        Choice(((kernel,), ())),
        Copy("c", True, True, 5, is_host=True),
    )
    of = schedule_of("fsdp.gpu")
    kept_steps = schedule_from(to_json(replace(of, steps=steps))).steps
    short = replace(kernel, op_name="transpose(jvp())")
    loop, _, copy = steps
    assert kept_steps == (Loop(3, (short, *loop.body[1:])), Choice(((short,), ())), copy)


def test_what_no_rate_covers_is_listed_counts_what_it_must_and_makes_the_time_a_lower_bound():
    of = schedule_of("fsdp.gpu")
    chip = parse_target("gpu:h100:1x8").hardware
    foreign = Kernel("k", 10**9, 0, does=Does.UNKNOWN, target="their_kernel")
    found = of_schedule(replace(of, steps=(*of.steps, foreign)), H100, chip)
    (missing,) = found.missing
    assert (missing.by, missing.basis, missing.sites) == ("calls of their_kernel", Basis.NOTHING, 1)
    assert missing.seconds >= 10**9 / chip.memory_bytes_per_s.value
    assert not found.is_known
    assert "no rate covers calls of their_kernel (1 site)" in prediction_text(found)
    convolution = Kernel("k", 4, 10**13, does=Does.CONVOLUTION)
    slow = of_schedule(replace(of, steps=(*of.steps, convolution)), replace(H100, work=()), chip)
    assert slow.missing[0].seconds >= 10**13 / max(rate.value for rate in chip.flops_per_s.values())


def test_a_dtype_without_a_rate_is_missing_and_takes_no_other_ones():
    of = schedule_of("fsdp.gpu")
    rates = replace(H100, products={"bf16": H100.products["bf16"]})
    product = Kernel("k", 4, 2**31, does=Does.PRODUCT, product=Product(1, 1024, 1024, 1024, "f8"))
    found = of_schedule(replace(of, steps=(*of.steps, product)), rates, parse_target("gpu:h100:1x8").hardware)
    assert "f8 products" in {part.by for part in found.missing}


def test_the_interval_widens_with_what_measurements_spread():
    of, chip = schedule_of("fsdp.gpu"), parse_target("gpu:h100:1x8").hardware
    wide = replace(H100, memory=Passes(H100.memory.points, 2 * H100.memory.spread, H100.memory.source))
    narrow, wider = (of_schedule(of, rates, chip) for rates in (H100, wide))
    assert wider.high - wider.low > narrow.high - narrow.low
    assert wider.time == narrow.time


def test_the_timeline_has_the_seconds_of_the_step():
    found = predicted("fsdp.gpu")
    assert max(event.end for event in found.events) == pytest.approx(found.time.total)
    events = [one for one in json.loads(trace_text(found))["traceEvents"] if one["ph"] == "X"]
    assert max(one["ts"] + one["dur"] for one in events) == pytest.approx(1e6 * found.time.total)
    kernels = [event for event in found.events if event.track == "kernels"]
    assert sum(event.end - event.start for event in kernels) == pytest.approx(
        found.time.products + found.time.memory + found.time.slowed
    )
    assert len(merged(kernels, 1.0)) == 1
    assert timeline(found).width > 900


def test_json_holds_what_the_text_says():
    found = predicted("fsdp.gpu")
    read_back = from_json(PredictionJson, to_json(found))
    assert (read_back.seconds.total, read_back.coverage) == (found.time.total, found.coverage)
    assert len(read_back.transfers) == len(found.transfers)


def test_a_row_is_calibrated_by_the_first_of_its_family_alone():
    of = replace(schedule_of("fsdp.gpu"), by_trip=())
    seconds = predicted("fsdp.gpu").time.total
    told = {"source": "here", "compiled": "as it is"}
    rows = [
        record_of(name, family, "gpu:h100:1x8", scale * seconds, of, **told)
        for name, family, scale in (("a", "one", 2.0), ("b", "one", 4.0), ("c", "other", 1.0))
    ]
    found = accuracy([from_json(Record, json.loads(json.dumps(to_json(row)))) for row in rows])
    assert [row.error for row in found.rows] == pytest.approx([-0.5, -0.75, 0.0])
    assert [row.calibrated_error for row in found.rows] == [None, pytest.approx(-0.5), None]
    assert (found.median_error, found.median_calibrated) == (pytest.approx(0.5), pytest.approx(0.5))
    assert "-75.0%" in accuracy_text(found)


def test_what_was_exposed_stands_beside_what_is_predicted():
    exposed = predicted("fsdp.gpu").time.exposed
    of, told = replace(schedule_of("fsdp.gpu"), by_trip=()), {"source": "here", "compiled": "as it is"}
    waits = {"a": 2 * exposed, "b": 1.25 * exposed, "c": None}
    found = accuracy([record_of(n, "one", "gpu:h100:1x8", 1.0, of, exposed_s=s, **told) for n, s in waits.items()])
    assert exposed > 0 and [row.predicted_exposed_s for row in found.rows] == [exposed, exposed, None]
    assert "exposed communication off by 35.0% and " in accuracy_text(found)


def test_settings_are_in_order_where_the_prediction_has_the_same_sign_and_close_ones_are_counted_apart():
    def row(step, overlap, exposed_s, predicted_s):
        seen = {"overlap": overlap, "exposed_s": exposed_s, "predicted_exposed_s": predicted_s}
        return Row(f"{step}, {overlap}", "one", "", "", "", 1.0, 1.0, 0.0, None, True, **seen)

    rows = [row("a", "x", 3e-3, 2e-3), row("a", "y", 1e-3, 3e-3), row("a", "z", 1.05e-3, 1e-3), row("b", "x", 1.0, 1.0)]
    assert order(rows) == Order(pairs=3, right=1, pairs_apart=2, right_apart=1)


def test_collectives_are_kernels_on_gpus_alone():
    found = {chip: schedule_of("fsdp.gpu").prices(rates_of(chip)).between_kernels for chip in ("h100", "h200", "v5p")}
    assert found == {"h100": True, "h200": True, "v5p": False}


def test_a_pass_takes_what_its_elements_take_where_these_are_narrow_and_its_bytes_where_they_are_wide():
    h200 = rates_of("h200")
    rate, prices = h200.elements, Prices(h200, Links(h200, {}))
    assert rate is not None
    narrow, wide = (Kernel("k", width << 27, 0, elements=1 << 27) for width in (4, 16))
    assert prices.kernel(narrow).seconds == pytest.approx(rate.alpha_s + 2**27 / rate.per_s)
    assert prices.kernel(wide).seconds == h200.memory.curve.seconds(16 << 27)
    assert prices.kernel(replace(narrow, elements=0)).seconds == h200.memory.curve.seconds(4 << 27)


def test_a_program_that_was_timed_briefly_is_predicted_at_the_first_clock():
    record = next(one for one in records() if one.name == "mlp_bf16")
    brief, lasting = (replace(record, is_brief=is_brief).predicted().time for is_brief in (True, False))
    assert record.is_brief and brief.memory == lasting.memory
    assert 1 < lasting.products / brief.products <= rates_of("h200").heated


def test_transfers_that_are_not_listed_are_counted():
    found = predicted("fsdp.gpu")
    (one, *_), few = found.transfers, prediction_text(found)
    many = replace(found, transfers=(one,) * 12)
    assert "more transfer" not in few
    assert f"note: 2 more transfers, waited for {seconds_text(2 * one.exposed)} in all; --json has them" in (
        prediction_text(many)
    )


def test_records_that_ship_are_read_whole_and_none_is_there_twice():
    found = records()
    assert found and len({record.name for record in found}) == len(found)
    kept = list((files("lab.measure") / "records").iterdir())
    assert len(kept) >= len(found) and all(len(one.read_bytes()) < 100_000 for one in kept)


@pytest.mark.compiles
@ahead_of_time_gpu
def test_what_checkpoint_computes_again_counts_for_hfu_and_not_for_mfu():
    mesh = lab.mesh("gpu:h100:1x1", data=1)
    w, x = (jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=NamedSharding(mesh, P())) for _ in range(2))

    def multiplied(wrap):
        def loss(w, x):
            layer = wrap(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))
            return jnp.sum(jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=4)[0])

        found = lab.time(jax.jit(jax.grad(loss)), w, x, target="gpu:h100:1x1")
        return found.mfu * found.time.total, found.hfu * found.time.total

    (needed, all_once), (again, all_twice) = multiplied(lambda f: f), multiplied(jax.checkpoint)
    assert needed == all_once == pytest.approx(again)
    assert all_twice > 1.1 * all_once


def test_loops_over_tiles_of_keys_count_as_one_kernel_of_half_the_scores_and_others_stay():
    def tile(name: str, path: str) -> Kernel:
        return Kernel(name, 10**6, 2**20, does=Does.PRODUCT, product=Product(1, 64, 64, 128, "bf16"), op_name=path)

    passes = Kernel("p", 10**6, 0, op_name="jvp(layers)/attention/core/exp")
    forward, backward = (
        tile(name, f"{way}/attention/core/dot") for name, way in (("f", "jvp()"), ("b", "transpose(jvp())"))
    )
    other = Loop(4, (tile("m", "jvp()/mlp/dot"), passes))
    steps = (Loop(8, (Loop(16, (forward, passes, forward)), Loop(16, (backward, passes)), other)),)
    (layers,) = replace(schedule_of("fsdp.gpu"), steps=steps).with_fused_attention().steps
    first, second, third = layers.body
    assert (first.does, first.flops) == (Does.ATTENTION, 16 * 2 * 2**20 // 2)
    assert (second.does, second.flops) == (Does.ATTENTION_BACKWARD, 16 * 2**20 // 2)
    assert third == other
