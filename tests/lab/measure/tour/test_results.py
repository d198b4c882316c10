"""The pages say what the records of the tour, of the bench and of questions say."""

import json
import re
from collections import Counter
from statistics import mean, median
from types import SimpleNamespace

import numpy as np
import pytest

from lab.hlo.kernels import Collective, Kernel
from lab.measure.step_time import _measured, _Run
from lab.measure.tour.apart import TILED
from lab.measure.tour.times import SIZES
from tests.paths import ROOT

PAGE, COLLECTIVES, FOUND = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("real_gpus", "collectives", "found")
)
SECTION = PAGE.split("\n## In short\n")[1].split("\n## ")[0]
SETTING = ("layout", "style", "size", "remat")
BOTH = pytest.mark.parametrize("text", [PAGE, SECTION], ids=["page", "in short"])


def record(machine, part=""):
    return json.loads((ROOT / "results" / f"{machine}_jax0.11.2{part}.json").read_text())


TOUR = record("tour_2xh200")
TIMED = {2: TOUR, 4: record("tour_4xh200", "_times")}
TIMES = {
    count: {tuple(step[name] for name in SETTING): step for step in timed["times"]} for count, timed in TIMED.items()
}
AHEAD = {count: record(f"ahead_{count}xh200") for count in (2, 4)}
COMPARED = {2: TOUR, 4: record("tour_4xh200", "_programs")}
PROGRAMS = {count: tour["programs"] for count, tour in COMPARED.items()}
TRAINED = {2: TOUR, 4: record("tour_4xh200", "_losses")}
LOSSES = {count: {t["experiment"]: t for t in tour["losses"]} for count, tour in TRAINED.items()}
(AGAIN,) = record("run_4xh200_ch18_training")["results"]
QUESTIONS = {answer["experiment"]: answer for answer in record("run_2xh200_questions")["results"]}
ONE_KERNEL = (ROOT / "results" / "one_kernel_2of4h200_jax0.11.2.txt").read_text()
TWO_SHOT = (ROOT / "results" / "one_kernel_2xh200_jax0.11.2.txt").read_text()
BENCHES = {
    "2 GPUs:": TIMED[2]["collectives"],
    "4 GPUs:": TIMED[4]["collectives"],
    "The same four as a mesh of 2 x 2": record("bench_2x2h200"),
    "Groups of 2 inside the 4": record("bench_2of4h200"),
}
"""By what stands above each table of collectives."""
TWO, FOUR, TWO_BY_TWO, INSIDE = BENCHES
OF_NO_TABLE = {("permute", "lax"), ("barrier", "lax"), ("barrier", "circulant")}
MIB, GIB = 1 << 20, 1 << 30
PIPELINE = ("ch16_pipeline", "explicit", "middle", "full")
OF_SPLIT_ATTENTION = ("ch17_ring_attention", "ch17_zigzag", "ch17_ulysses")


def told(text):
    """Without the ends of lines and bold type."""
    return " ".join(text.split()).replace("**", "")


def rows(text):
    """Of the first table in it, without its head."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def key_of(step):
    return tuple(step[name] for name in SETTING)


def seconds_of(bench):
    """By primitive, algorithm and bytes."""
    return {(p["primitive"], p["algorithm"], p["payload_bytes"]): p["seconds"] for p in bench["points"]}


def ratios(bench):
    """Time by `jax.lax` over ours, where ours is not it."""
    seconds = seconds_of(bench)
    return {key: seconds[key[0], "lax", key[2]] / own for key, own in seconds.items() if key[1] != "lax"}


def ms(seconds):
    return f"{seconds * 1e3:.2f}"


def size_of(count):
    return f"{count // GIB} GiB" if count >= GIB else f"{count // MIB} MiB"


def by_term(step):
    """(predicted, seen) of kernels, of communication, and of what is waited for."""
    terms, seen = step["terms_s"], step["profiled_s"]
    kernels = terms["products"] + terms["memory"] + terms["slowed"]
    return (
        (kernels, seen["kernels"]),
        (terms["communication"], seen["communication"]),
        (terms["exposed"], seen["waiting"]),
    )


def off(pair):
    predicted, seen = pair
    return predicted / seen - 1


def but_the_pipeline(count):
    return [step for key, step in TIMES[count].items() if key != PIPELINE]


def test_33_rows_are_the_steps_of_four_gpus_and_32_of_them_of_two():
    def of(step):
        return (
            [
                ms(step["measured_s"]),
                ms(step["predicted_s"]),
                *(f"{step[error]:+.1%}" for error in ("error", "error_ahead_of_time")),
            ]
            if step
            else [""] * 4
        )

    held = [[*key, *of(TIMES[2].get(key)), *of(step)] for key, step in TIMES[4].items()]
    assert rows(PAGE.split("Times are ms of one step")[1]) == held
    assert len(held) == 33 and len(TIMES[2]) == 32 and TIMES[2].keys() < TIMES[4].keys()


def test_each_term_stands_beside_what_the_profiler_saw():
    def of(step):
        return [", ".join(map(ms, pair)) for pair in by_term(step)] if step else [""] * 3

    assert rows(PAGE.split("### By term")[1]) == [
        [*key, *of(TIMES[2].get(key)), *of(step)] for key, step in TIMES[4].items()
    ]


def test_each_rate_is_told():
    def of(rates):
        (least, least_s), (most, most_s) = rates["memory"]["points"][0], rates["memory"]["points"][-1]
        assert (least, most) == (2**19, 2**33)
        yield f"{rates['product']['alpha_s'] * 1e6:.1f} us + FLOPs / {rates['product']['per_s'] / 1e12:.0f} TFLOP/s"
        yield f"{least_s * 1e6:.1f} us for 0.5 MB, {most / most_s / 1e12:.2f} TB/s for 8.6 GB"
        yield f"{rates['scattered_bytes_per_s'] / 1e12:.2f} TB/s"
        yield f"{ms(rates['links']['all_reduce']['points'][-1][1])} ms"
        yield f"{rates['slowed_products']:.2f} s, {rates['slowed_memory']:.2f} s"

    held = [list(of(TIMED[count]["rates"])) for count in (2, 4)]
    assert [row[1:] for row in rows(PAGE.split("measures them before")[1])] == [
        list(pair) for pair in zip(*held, strict=True)
    ]


@pytest.mark.parametrize(
    ("count", "what", "part", "words"),
    [(2, 1, 5 / 6, "waiting is five sixths of"), (4, 0, 3 / 4, "kernels are three quarters of")],
)
def test_terms_that_are_wrong_in_general(count, what, part, words):
    steps, shares = but_the_pipeline(count), []
    table = [row for row in rows(PAGE.split("Predicted over seen")[1]) if row[0] == str(count)]
    for (_, term, short, *errors, share), pairs in zip(table, zip(*map(by_term, steps), strict=True), strict=True):
        of = [off(pair) for pair in pairs]
        assert (short, errors) == (
            f"{sum(e < 0 for e in of)} of {len(of)}",
            [f"{e:+.1%}" for e in (median(of), mean(of), min(of), max(of))],
        )
        added = mean(
            (predicted - seen) / step["measured_s"] for (predicted, seen), step in zip(pairs, steps, strict=True)
        )
        assert share == ("" if term == "communication" else f"{added:+.1%}")
        shares += [added] if share else []
    assert shares[what] / sum(shares) == pytest.approx(part, abs=0.02) and f"{words} what is missing" in told(PAGE)


def test_steps_come_out_too_short():
    short = {count: sum(step["error"] < 0 for step in times.values()) for count, times in TIMES.items()}
    assert f"{short[2]} of 32 steps are predicted too short" in told(
        PAGE
    ) and f"{short[4]} of 33 steps are too short" in told(PAGE)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, "small steps are {} % too long, of middle ones {} % too short, of large ones {} % too long"),
        (4, "lack {} % of their kernels' time in the mean, middle ones {} %, large ones {} %"),
    ],
)
def test_kernels_by_size(count, words):
    means = [mean(off(by_term(step)[0]) for step in but_the_pipeline(count) if step["size"] == size) for size in SIZES]
    assert [m > 0 for m in means] == ([True, False, True] if count == 2 else [False] * 3)
    assert words.format(*(f"{abs(m) * 100:.{0 if abs(m) > 0.005 else 1}f}" for m in means)) in told(PAGE)


def test_on_two_gpus_kernels_are_too_long_where_attention_is_split_between_them():
    kernels = {key: by_term(step)[0] for key, step in TIMES[2].items() if key != PIPELINE}
    split = [pair for (layout, *_), pair in kernels.items() if layout in OF_SPLIT_ATTENTION]
    assert [round((predicted - seen) * 1e3) for predicted, seen in split] == [
        5,
        4,
        8,
    ] and "predicted 4 to 8 ms too long" in told(PAGE)
    assert max(abs(off(pair)) for pair in kernels.values() if pair not in split) < 0.06 and "within 6 %" in told(PAGE)
    long = [key[0] for key, step in TIMES[2].items() if step["error"] > 0]
    assert (
        len(long) == 6
        and set(OF_SPLIT_ATTENTION) < set(long)
        and "half of the six steps that are not too short" in told(PAGE)
    )


@pytest.mark.parametrize("count", [2, 4])
def test_the_pipeline_books_as_kernels_what_the_profile_books_as_waiting(count):
    kernels, _, exposed = by_term(TIMES[count][PIPELINE])
    figures = (f"{seconds * 1e3:.1f}" for seconds in (*kernels, *exposed))
    assert "kernels {} ms predicted, {} seen; exposed {} predicted, waiting {} seen".format(*figures) in told(PAGE)
    assert f"{TIMES[count][PIPELINE]['error'] * 100:+.1f} %" in told(PAGE.split("What is left over")[1])


def test_collectives_of_two_large_steps_beside_kernels():
    two, four = (
        TIMES[2]["ch20_zero3", "explicit", "large", "full"],
        TIMES[4]["ch14_data_parallel", "explicit", "large", "full"],
    )
    of = [[f"{seconds * 1e3:.1f}" for pair in by_term(step)[1:] for seconds in pair] for step in (two, four)]
    assert "communicates for {1} ms, predicted {0}, and waits for {3}, predicted {2}".format(*of[0]) in told(PAGE)
    assert "({1} ms, predicted {0}), and {3} ms of waiting are seen where the text hides all but {2}.".format(
        *of[1]
    ) in told(PAGE)


ROUND = re.compile(
    r"^(\w+) +(\d+) MiB (\w+) (\S+) x(\d+): wire +([\d.]+) kernels +([\d.]+) both +([\d.]+) us$", re.MULTILINE
)
OVERLAP_SHAPE = [
    (*named, int(count), *map(float, us))
    for *named, count, wire, kernels, both in ROUND.findall(
        (ROOT / "results" / "beside_2xh200_jax0.11.2.txt").read_text()
    )
    for us in [(wire, kernels, both)]
]
"""Collective, MiB, kernel, its shape, how many of them; us of the collective, of the kernels, of both."""


def predicted_round(kernel, count, wire, kernels):
    """By the rule of `lab.measure.step_time`, at the rates of the tour."""
    rates = TOUR["rates"]
    at = SimpleNamespace(
        between_kernels=True,
        kernel=lambda _: _measured(kernels / count),
        slowed=lambda one: rates["slowed_products" if one.flops else "slowed_memory"],
    )
    run = _Run(at, {"sum": _measured(wire)})
    launched = [Kernel(kernel, 1, int(kernel == "product"))] * count
    run.through([Collective("sum", True, False), *launched, Collective("sum", False, True)])
    return run.now


def predicted_from_its_start(kernel, count, wire, kernels):
    slowed = TOUR["rates"]["slowed_products" if kernel == "product" else "slowed_memory"]
    return max(wire, kernels + slowed * min(kernels, wire))


def test_a_collective_begins_when_the_first_kernel_ends_that_is_launched_after_it():
    rounds = [
        (kernel, count, wire, kernels, both)
        for name, _, kernel, _, count, wire, kernels, both in OVERLAP_SHAPE
        if name == "all_reduce"
    ]
    assert f"Of {len(rounds)} such rounds" in told(PAGE)
    for of, cells in (
        (predicted_from_its_start, PAGE.split("| where it is started |")[1]),
        (predicted_round, PAGE.split("launched after it |")[1]),
    ):
        errors = [abs(of(*each) / both - 1) for *each, both in rounds]
        assert cells.startswith(f" {median(errors):.1%} | {sum(error > 0.1 for error in errors)} |")


def test_two_rounds_are_nearly_one_after_the_other():
    of = {(name, mib, shape, count): us for name, mib, _, shape, count, *us in OVERLAP_SHAPE}
    wire, large, both = of["all_reduce", "256", "16384x8192", 1]
    assert (
        f"takes {wire:,.0f} us alone, a product of [16384, 8192] by [8192, 8192] {large:,.0f} us, and both, started "
        f"at once, {both:,.0f}:"
    ) in told(PAGE)
    assert f"one after the other {wire + large:,.0f}." in told(PAGE)
    small = [
        us
        for *key, us in ((*each[:5], each[5:]) for each in OVERLAP_SHAPE)
        if key == ["all_reduce", "256", "product", "8192x4096", 1]
    ]
    assert any(
        f"Beside a product of {k:,.0f} us it takes {b:,.0f}, where one after the other is {w + k:,.0f}." in told(PAGE)
        for w, k, b in small
    )


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (
            2,
            "{seen} ms on two GPUs, {predicted} are predicted; in the median it is too short by {now} %, in the "
            "records by {then} %.",
        ),
        (
            4,
            "On four GPUs {predicted} ms are predicted and {seen} seen, in the median {now} % too long, in the "
            "records {then} % too short:",
        ),
    ],
)
def test_what_is_waited_for_once_collectives_begin_between_kernels(count, words):
    seen = {key: step["profiled_s"]["waiting"] for key, step in TIMES[count].items() if key != PIPELINE}
    now, then = (
        {key_of(step): step["terms_s"]["exposed"] for step in steps if key_of(step) in seen}
        for steps in (AHEAD[count]["steps"], TIMED[count]["times"])
    )
    sums = {"seen": f"{sum(seen.values()) * 1e3:.1f}", "predicted": f"{sum(now.values()) * 1e3:.1f}"}
    off_now, off_then = (100 * median(of[key] / seen[key] - 1 for key in seen) for of in (now, then))
    assert (off_now < 0, off_then < 0) == (count == 2, True)
    assert words.format(**sums, now=f"{abs(off_now):.0f}", then=f"{abs(off_then):.0f}") in told(PAGE)
    zero3, data = (
        f"`{layout} large` waits for {seen[key] * 1e3:.1f} ms, {{}}{now[key] * 1e3:.1f}"
        for layout in ("ch20_zero3", "ch14_data_parallel")
        for key in [(layout, "explicit", "large", "full")]
    )
    if count == 2:
        assert f"{zero3.format('and ')} are predicted" in told(PAGE)
    else:
        assert data.format("predicted ") in told(PAGE) and zero3.format("predicted ").replace(
            "waits for", "for"
        ).replace(" ms,", ",") in told(PAGE)


def test_the_pipeline_by_the_branches_that_are_taken():
    errors = [next(step["error"] for step in AHEAD[count]["steps"] if key_of(step) == PIPELINE) for count in (2, 4)]
    assert "the steps come to {:+.1f} % and {:+.1f} % ahead of time".format(*(100 * error for error in errors)) in told(
        PAGE
    )


def test_small_messages_are_predicted_too_long_on_four_gpus():
    of = sorted(100 * off(by_term(step)[1]) for step in TIMES[4].values() if step["size"] == "small")
    assert len(of) == 5 and f"in all five small steps, by {of[0]:.0f} to {of[-1]:.0f} %" in told(PAGE)


def test_the_three_sizes_are_those_of_the_tour():
    names = ("layers", "batch", "length", "embed", "kv_heads", "queries", "head_dim", "mlp", "vocab")
    assert rows(PAGE.split("decoder has three sizes")[1]) == [
        [size, *(f"{getattr(shape, name):,}" for name in names)] for size, shape in SIZES.items()
    ]


@BOTH
@pytest.mark.parametrize("count, words", [(2, "2 GPUs, 32 steps"), (4, "4 GPUs, 33 steps")])
def test_the_median_error_is_told_and_that_no_step_is_far_off(text, count, words):
    errors = [abs(step["error"]) for step in TIMED[count]["times"]]
    assert re.search(rf"{words}[^.]*median error {median(errors) * 100:.1f} %", told(text))
    assert max(errors) < 0.2 and "none off by more than 20 %" in told(text)


def test_one_gpu_sends_nothing_and_its_kernels_are_told_by_size_and_remat():
    one = record("tour_1xh200", "_times")
    assert (
        not one["failures"]
        and all(step["terms_s"]["communication"] == 0 for step in one["times"])
        and len(one["times"]) == 12
    )
    held = [
        [
            s["size"],
            s["remat"],
            ms(s["measured_s"]),
            ms(s["predicted_s"]),
            *(f"{s[e]:+.1%}" for e in ("error", "error_ahead_of_time")),
        ]
        for s in one["times"]
    ]
    assert rows(PAGE.split("One GPU sends nothing")[1]) == held
    here, ahead = ([abs(step[error]) for step in one["times"]] for error in ("error", "error_ahead_of_time"))
    assert max(here) < 0.06 and max(ahead) < 0.11
    assert (
        f"1 GPU, 12 steps of a decoder in three sizes: median error {median(here) * 100:.1f} %, none off by more than "
        "6 %;"
    ) in told(PAGE)
    assert f"before the steps were timed, {median(ahead) * 100:.1f} %, none off by more than 11 %." in told(PAGE)
    assert f"1 GPU, 12 steps: median error {median(here) * 100:.1f} %" in told(SECTION)


def test_the_pipeline_is_named_as_the_worst():
    assert f"the pipeline most ({TIMES[2][PIPELINE]['error'] * 100:+.1f} % on two)" in told(SECTION)


@BOTH
def test_ahead_of_time_errors_are_larger(text):
    errors = {
        count: {key: step["error_ahead_of_time"] for key, step in times.items()} for count, times in TIMES.items()
    }
    medians = {count: f"{median(map(abs, of.values())) * 100:.1f} %" for count, of in errors.items()}
    assert f"median error {medians[2]} on 2 GPUs, where two steps are off by more than 20 %" in told(
        text
    ) and f"{medians[4]} on 4" in told(text)
    far = {key[::2]: f"{error * 100:+.1f} %" for key, error in errors[2].items() if abs(error) > 0.2}
    assert far == {("ch14_data_parallel", "small"): "+25.2 %", ("ch16_pipeline", "middle"): "+32.2 %"} and all(
        error in PAGE for error in far.values()
    )
    assert max(map(abs, errors[4].values())) < 0.2
    assert "all {} on two GPUs and {} of 33 on four".format(
        *(sum(e > 0 for e in errors[count].values()) for count in (2, 4))
    ) in told(PAGE)


@BOTH
def test_ahead_of_time_in_tiles_no_step_is_far_off(text):
    errors = {n: [abs(step["error"]) for step in AHEAD[n]["steps"]] for n in (2, 4)}
    assert {n: len(of) for n, of in errors.items()} == {n: len(TIMES[n]) for n in (2, 4)} and max(
        map(max, errors.values())
    ) < 0.2
    medians = [f"{median(errors[n]) * 100:.1f} %" for n in (2, 4)]
    assert "{} on 2 GPUs and {} on 4".format(*medians) in told(text)
    assert {AHEAD[n]["record"] for n in (2, 4)} == {"tour_2xh200_jax0.11.2.json", "tour_4xh200_jax0.11.2_times.json"}
    assert AHEAD[2]["flags"] == AHEAD[4]["flags"] == TILED and TILED in PAGE


def test_what_ahead_of_time_in_tiles_was_held_against_is_what_the_records_measured():
    for n in (2, 4):
        assert {key_of(step): step["measured_s"] for step in AHEAD[n]["steps"]} == {
            key: step["measured_s"] for key, step in TIMES[n].items()
        }
    worst = [max(AHEAD[n]["steps"], key=lambda step: abs(step["error"])) for n in (2, 4)]
    assert " and ".join(
        f"{abs(step['error']) * 100:.1f} % (`{step['layout']} {step['size']}`)" for step in worst
    ) in told(PAGE)
    large = [
        [-step["error"] * 100 for step in steps if step["size"] == "large"]
        for steps in (*(AHEAD[n]["steps"] for n in (2, 4)), *(TIMED[n]["times"] for n in (2, 4)))
    ]
    least, most = (
        [
            f"{of(large[i] + large[i + 1]):.1g}" if of is min and i else f"{of(large[i] + large[i + 1]):.0f}"
            for i in (0, 2)
        ]
        for of in (min, max)
    )
    assert f"too short, by {least[0]} to {most[0]} %, where the text that ran has {least[1]} to {most[1]}:" in told(
        PAGE
    )
    passes = next(
        step for step in AHEAD[2]["steps"] if key_of(step) == ("ch14_data_parallel", "explicit", "middle", "full")
    )["terms_s"]["memory"]
    assert f"has {passes * 1e3:.1f} ms of passes on two GPUs" in told(PAGE)


def test_ahead_of_time_adds_more_on_two_gpus_than_on_four():
    added = {
        n: {key: TIMES[n][key]["error_ahead_of_time"] - TIMES[n][key]["error"] for key in TIMES[2]} for n in (2, 4)
    }
    assert "by {:.1f} % of the step in the median, on two by {:.1f} %".format(
        *(median(added[n].values()) * 100 for n in (4, 2))
    ) in told(PAGE)
    measured = {n: {key: TIMES[n][key]["measured_s"] for key in TIMES[2]} for n in (2, 4)}
    split = [key for key in TIMES[2] if key[0] in OF_SPLIT_ATTENTION]
    more = median(
        added[2][key] * measured[2][key] / added[4][key] / measured[4][key] for key in TIMES[2] if key not in split
    )
    longer = median(measured[2][key] / measured[4][key] for key in TIMES[2] if key not in split)
    assert f"{more:.1f} times as many ms on two, and the step does not, {longer:.1f} times as long" in told(PAGE)
    assert max(abs(added[n][key]) for n in (2, 4) for key in split) < 0.013 and "within 1.3 % of the step" in told(PAGE)


def test_transposes_ahead_of_time_take_what_passes_take_more():
    """16.7 GB of them, in the text compiled again; half on four GPUs."""
    two, four = (TIMES[n]["ch14_data_parallel", "explicit", "middle", "full"] for n in (2, 4))
    passes = two["terms_s"]["memory"] * 1e3
    more = (two["predicted_ahead_of_time_s"] - two["predicted_s"]) * 1e3
    assert f"{passes + more:.1f} ms of passes ahead of time and {passes:.1f} in the text that ran" in told(PAGE)
    of = [f"{16.7e9 / n / TIMED[2 * n]['rates']['scattered_bytes_per_s'] * 1e3:.1f}" for n in (1, 2)]
    assert f"16.7 GB, for which {of[0]} ms are predicted" in told(PAGE)
    whole = (f"{step['measured_s'] * 1e3:.1f}" for step in (two, four))
    assert "{0} of {2} ms on two, and {1} of {3} on four".format(*of, *whole) in told(PAGE)


@BOTH
def test_machine_and_day_are_those_of_every_record(text):
    tours = [*TIMED.values(), *COMPARED.values(), *TRAINED.values()]
    of = {
        (r["card"], r["driver"], r["nccl"], r["jax"], r["date"][:10])
        for r in (*(tour | tour["machine"] for tour in tours), *BENCHES.values())
    }
    assert len(of) == 1 and all(word in told(text) for word in of.pop())


def test_nothing_failed_in_the_whole_tour():
    assert TOUR["failures"] == [] and (TOUR["devices"], TOUR["command"]) == (2, "lab tour --save tour.json")
    assert {"collectives", "rates", "times", "programs", "losses"} < TOUR.keys()
    assert "Nothing in it failed" in told(PAGE) and "in which nothing failed" in told(SECTION)


@pytest.mark.parametrize("count", [2, 4])
def test_the_worst_three_are_named_with_their_errors_and_terms(count):
    worst = sorted(TIMED[count]["times"], key=lambda step: -abs(step["error"]))[:3]
    named = [row for row in rows(PAGE.split("The worst three of each")[1]) if row[0] == str(count)]
    assert [row[1:3] for row in named] == [[f"`{s['layout']} {s['size']}`", f"{s['error']:+.1%}"] for s in worst]
    for step, row in zip(worst, named, strict=True):
        wrong = abs(step["predicted_s"] - step["measured_s"]) * 1e3
        assert re.match(
            rf"({wrong:.1f}|{wrong:.2f}) ms of ({step['measured_s'] * 1e3:.1f}|{ms(step['measured_s'])}) ", row[3]
        )
        if step["layout"] != "ch16_pipeline":
            kernels, _, exposed = by_term(step)
            terms = "kernels take {1} ms, predicted {0}; waiting {3}, predicted {2}"
            assert row[3].endswith(terms.format(*map(ms, (*kernels, *exposed))))


@pytest.mark.parametrize("count", [2, 4])
def test_50_programs_communicate_as_ahead_of_time(count):
    assert all(p["ahead_of_time"]["changes"] == [] and not p["ahead_of_time"]["failure"] for p in PROGRAMS[count])
    assert {p["verdict"] for p in PROGRAMS[count]} == {"exact", "explained"} and len(PROGRAMS[count]) == 50
    assert all(p["numerics"]["worst_relative_error"] <= p["numerics"]["tolerance"] for p in PROGRAMS[count])
    assert "All 50 programs that fit, on four GPUs as on two" in told(PAGE) and "50 programs" in SECTION


def test_peaks_are_counted_and_the_exceptions_named():
    counts = {
        n: Counter((p["ahead_of_time"]["same"], p["ahead_of_time"]["same_untuned"]) for p in programs)
        for n, programs in PROGRAMS.items()
    }
    held = [[str(counts[n][kind]) for n in (2, 4)] for kind in ((True, True), (False, True), (False, False))]
    assert [row[1:] for row in rows(PAGE.split("Peak memory, in programs:")[1])] == held
    assert "equal to the byte in {} and {} of them, and in {} and {} more".format(*held[0], *held[1]) in told(SECTION)
    others = {
        n: [p["experiment"] for p in programs if not p["ahead_of_time"]["same_untuned"]]
        for n, programs in PROGRAMS.items()
    }
    assert others == {2: ["ch14_compression"], 4: ["ch14_compression", "ch17_zigzag"]}
    assert all(f"`{name}`" in PAGE for name in others[4])


def test_what_does_not_fit_is_told():
    terabytes = {n: {re.search(r"would hold ([\d.]+) TB", why)[1] for why in COMPARED[n]["left_out"]} for n in (2, 4)}
    assert "would hold {:.0f} TB of four, {:.0f} of two".format(*(float(*terabytes[n]) for n in (4, 2))) in told(PAGE)


def peaks(count, name):
    """Ahead of time, without kernels tried, and here."""
    (of, *_) = {
        tuple(p["ahead_of_time"][kind] for kind in ("peak", "untuned_peak", "attached_peak"))
        for p in PROGRAMS[count]
        if p["experiment"] == name
    }
    return of


def test_peaks_of_the_exceptions_are_told():
    for count in (2, 4):
        ahead, untuned, here = peaks(count, "ch14_compression")
        assert (
            untuned == here
            and f"{ahead / 1e6:.1f} MB ahead of time, {here / 1e6:.1f} here, with kernels tried or not" in told(PAGE)
        )
    ahead, untuned, here = peaks(4, "ch17_zigzag")
    assert untuned == here == ahead + 8 * MIB + 4 and round(here / ahead - 1, 3) == 0.001
    assert f"{ahead:,} B ahead of time and {here:,} here, tried or not: 8 MiB and 4 bytes more, or 0.1 %" in told(PAGE)
    ahead, untuned, here = peaks(2, "ch15_layernorm")
    assert (
        ahead == untuned
        and f"{ahead / 1e6:.1f} MB, here {here / 1e6:.1f}, of which {(here - ahead) / 1e6:.0f} MB" in told(PAGE)
    )


def test_kernels_tried_on_the_card_move_peaks_by_a_few_per_cent():
    def moved(count):
        for program in PROGRAMS[count]:
            if program["experiment"] not in ("ch14_compression", "ch15_layernorm"):
                ahead = program["ahead_of_time"]
                yield 100 * (ahead["peak"] / ahead["attached_peak"] - 1), program["experiment"]

    (less2, of2), (less4, of4) = (min(moved(count)) for count in (2, 4))
    (more2, *_), (more4, *_) = (max(moved(count)) for count in (2, 4))
    assert (
        f"by {-less4:.1f} % at most on four GPUs (`{of4}`, declared and typed) and by {-less2:.1f} % on two (`{of2}`)"
        in told(PAGE)
    )
    assert f"too much by {more4:.1f} % (declared ZeRO-1 and ZeRO-2) and {more2:.1f} % (declared ZeRO-3)" in told(PAGE)


def test_one_statement_of_the_labs_own_is_refuted_on_two_gpus():
    assert len(QUESTIONS) == 5 and all(f"`{name}`" in PAGE for name in QUESTIONS)
    own = [
        (name, c["statement"])
        for name, a in QUESTIONS.items()
        for c in a["claims"]
        if c["verdict"] == "refuted" and not c["disputed"]
    ]
    assert own == [("ch20_stages", "each stage holds less than the one before at its peak as well")]
    held = {row["what"]: row["value"] for row in QUESTIONS["ch20_stages"]["rows"]}
    first, second = held["ZeRO-1: peak"], held["ZeRO-2: peak"]
    sums = [
        next(row["predicted"] for row in QUESTIONS["ch20_stages"]["rows"] if row["what"] == f"{stage}: peak")
        for stage in ("ZeRO-2", "ZeRO-1")
    ]
    assert sums[0] > sums[1] and "have it so as well, {:,} B and {:,}.".format(*sums) in told(PAGE)
    assert f"ZeRO-2 holds {second:,} B, ZeRO-1 {first:,}, which is {1 - first / second:.0%}".replace("%", " %") in told(
        PAGE
    )


def worst(training):
    """Curves, steps, and the largest relative error against one CPU."""
    curves = np.array([curve["losses"] for curve in training["curves"]])
    return *curves.shape, np.abs(curves / training["cpu"]["losses"] - 1).max()


def test_32_trainings_without_experts_have_the_losses_of_one_cpu():
    names = ("ch14_training", "ch16_training", "ch17_training")
    of = {count: [worst(LOSSES[count][name]) for name in names] for count in (2, 4)}
    held = [
        [str(curves), str(steps), f"{two:.1e}", f"{four:.1e}"]
        for (curves, steps, two), (*_, four) in zip(of[2], of[4], strict=True)
    ]
    assert [row[1:] for row in rows(PAGE.split("## The same losses")[1]) if row[0].startswith(names)] == held
    assert [row[:2] for row in of[2]] == [row[:2] for row in of[4]] and sum(curves for curves, *_ in of[2]) == 32


def curves(count):
    """By training, layout and style: relative errors from one CPU's losses, the choices that explain them, and why they
    do not."""
    for name, training in LOSSES[count].items():
        cpu = training["cpu"]
        for curve in training["curves"]:
            of = f"{curve['layout']} {curve['style']}"
            error = np.abs(np.array(curve["losses"]) / cpu["losses"] - 1)
            yield name, of, error, [tie["step"] for tie in cpu["ties"][of]], curve["failure"] or cpu["away"][of]


FAILED = ["experts explicit", "experts over two levels explicit"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PAGE, "On two GPUs all {} curves are one CPU's over all 200 steps, to {}; on four {} are, and {} failed"),
        (SECTION, "On two GPUs all {} agree with one CPU's to {}. On four {} do, and {} of the 11 with experts failed"),
        (
            FOUND,
            "the loss curves of all {} trainings agree with one CPU's to {} over 200 steps, on 4 those of {}; {} "
            "with experts leave it",
        ),
    ],
    ids=["page", "section", "table"],
)
def test_all_43_curves_of_two_gpus_are_one_cpus_and_41_of_four(text, words):
    two, four = (list(curves(count)) for count in (2, 4))
    assert all(len(error) == 200 for _, _, error, *_ in (*two, *four)) and len(two) == len(four)
    assert not any(why for *_, why in two) and [(name, of) for name, of, *_, why in four if why] == [
        ("ch18_training", of) for of in FAILED
    ]
    most = max(training["cpu"]["worst_relative_error"] for training in LOSSES[2].values())
    figure = f"{most:.1e}".replace("e-07", "e-7")
    assert words.format(len(two), figure, len(four) - len(FAILED), len(FAILED)) in told(text)


def test_no_ledger_of_a_training_is_refuted():
    trainings = (*LOSSES[2].values(), *LOSSES[4].values())
    assert {curve["verdict"] for training in trainings for curve in training["curves"]} == {"exact", "explained"}


@pytest.mark.parametrize(
    ("count", "name", "choices"),
    [
        (2, "ch18_dropless_training", {59: 3}),
        (4, "ch18_dropless_training", {59: 3}),
        (2, "ch18_training", {131: 5}),
        (4, "ch18_training", {131: 3, 48: 2}),
        (2, "ch35_training", {125: 1}),
        (4, "ch35_training", {125: 3}),
    ],
)
def test_trainings_with_experts_choose_otherwise_than_one_cpu_at_the_steps_told(count, name, choices):
    (row,) = [row for row in rows(PAGE.split("from that step on:")[1]) if row[0].startswith(name)]
    cell = row[3 if count == 2 else 4]
    left = [
        (int((error > 5e-7).argmax()), error, ties, why)
        for training, _, error, ties, why in curves(count)
        if training == name and max(error) > 5e-7
    ]
    assert (
        Counter(step for step, *_ in left) == choices
        and {int(step) for step in re.findall(r"step (\d+)", cell)} == choices.keys()
    )
    assert all(ties == ([] if why else [step]) for step, _, ties, why in left)
    failed = any(why for *_, why in left)
    before = [max(error[:step].max() for step, error, *_ in left if step == of) for of in choices]
    assert all(
        f"{figure:.1e}" in cell
        for figure in (before if failed else [LOSSES[count][name]["cpu"]["worst_relative_error"]])
    )


def test_two_curves_that_failed_left_at_step_48_and_agreed_when_run_again():
    of = {
        of: np.array(c["losses"])
        for c in LOSSES[4]["ch18_training"]["curves"]
        if (of := f"{c['layout']} {c['style']}") in FAILED
    }
    cpu = np.array(LOSSES[4]["ch18_training"]["cpu"]["losses"])
    own, other = of.values()
    assert f"agree with each other to {np.abs(own / other - 1).max():.1e}".replace("e-07", "e-7") in told(PAGE)
    left = f"{abs(own / cpu - 1)[48]:.1e}".replace("e-05", "e-5")
    assert f"up to step 48, where their loss is {own[48]:.5f} and {cpu[48]:.6f} is expected, {left} off" in told(PAGE)
    assert f"leave at step 48 by {left}" in told(SECTION)
    assert (
        max(np.abs(curve / cpu - 1)[49:54].max() for curve in of.values()) < 4e-7
        and min(np.abs(curve / cpu - 1)[54] for curve in of.values()) > 1e-6
    )
    assert "The next five losses are the CPU's within 4e-7; from step 54 on" in told(PAGE)
    assert max(
        f"{np.abs(curve / cpu - 1).max():.1%}" for curve in of.values()
    ) == "0.9%" and "by 0.9 % at most" in told(PAGE)
    again = {
        of: [tie["step"] for tie in c["ties"]]
        for c in AGAIN["curves"]
        if (of := f"{c['layout']} {c['style']}") in FAILED and not c["failure"]
    }
    assert again == {
        FAILED[0]: [131, 163],
        FAILED[1]: [131, 135, 163],
    } and "steps 131 and 163 (and 135 in one)" in told(PAGE)
    assert (
        f"to {AGAIN['numerics']['worst_relative_error']:.1e}".replace("e-07", "e-7")
        in told(PAGE.split("Run again")[1]).partition(":")[0]
    )


@pytest.mark.parametrize("above", BENCHES)
def test_every_algorithm_of_the_record_has_its_times_in_the_table(above):
    seconds = seconds_of(BENCHES[above])
    one_axis = {key[:2] for key in ratios(BENCHES[FOUR])} if above == TWO_BY_TWO else set()
    held = {}
    for (primitive, algorithm, size), own in seconds.items():
        cell = f"{own * 1e6:,.0f}" if algorithm == "lax" else f"{seconds[primitive, 'lax', size] / own:.2f}"
        held.setdefault((primitive, algorithm), []).append(cell)
    table = rows(PAGE.split(f"\n{above}")[1])
    named = {
        (primitive.replace(" + ", "+"), algorithm.replace("`jax.lax` [us]", "lax")): cells
        for primitive, algorithm, *cells in table
    }
    assert named == {key: cells for key, cells in held.items() if key not in OF_NO_TABLE | one_axis} and len(
        named
    ) == len(table)


def ahead(above):
    """Bytes and ratio by primitive and algorithm, where ours is ahead."""
    found = {}
    for (primitive, algorithm, size), ratio in ratios(BENCHES[above]).items():
        if round(ratio, 2) > 1:
            found.setdefault((primitive, algorithm), {})[size] = f"{ratio:.2f}"
    return found


def test_on_two_gpus_those_are_ahead_that_the_record_has_ahead():
    """From 4 MiB on."""
    found = {key: {size: ratio for size, ratio in of.items() if size >= 4 * MIB} for key, of in ahead(TWO).items()}
    table = rows(PAGE.split("On two GPUs ours is ahead in places")[1])
    named = {(primitive.replace(" + ", "+"), algorithm): cells for primitive, algorithm, *cells in table}
    assert named == {key: [", ".join(map(size_of, of)), ", ".join(of.values())] for key, of in found.items()}
    assert min(ratio for (*of, _), ratio in ratios(BENCHES[TWO]).items() if of == ["broadcast", "tree"]) > 1
    assert (
        min(
            ratio
            for (*of, size), ratio in ratios(BENCHES[TWO]).items()
            if of == ["scatter+gather", "tree"] and size >= MIB
        )
        > 1
    )


def test_an_all_reduce_of_ours_is_ahead_at_4_mib_on_two_gpus_and_nowhere_else():
    sizes = {
        above: [(a, size) for (p, a), of in ahead(above).items() for size in of if p == "all_reduce"]
        for above in BENCHES
    }
    assert sizes == {TWO: [("doubling", 4 * MIB)], FOUR: [], TWO_BY_TWO: [], INSIDE: [("doubling", 4 * MIB)]}
    assert "at every other size but 4 MiB on two" in told(SECTION)
    assert f"which also groups of two have ahead ({ahead(INSIDE)['all_reduce', 'doubling'][4 * MIB]})" in told(PAGE)


def test_on_four_gpus_the_best_of_ours():
    of = {(*key, size): f"{ratio:.2f}" for (*key, size), ratio in ratios(BENCHES[FOUR]).items()}
    best = {
        primitive: max((of[key], key[1]) for key in of if key[::2] == (primitive, GIB))
        for primitive, _, size in of
        if size == GIB
    }
    assert "at 1 GiB the best all_reduce reaches {} (`{}`), all_to_all {} (`{}`),".format(
        *best["all_reduce"], *best["all_to_all"]
    ) in told(PAGE)
    pairs = (*best["reduce_scatter+all_gather"], best["scatter+gather"][0])
    assert "reduce-scatter and all-gather {} (`{}`), scatter and gather by trees {}.".format(*pairs) in told(PAGE)
    assert ahead(FOUR) == {
        ("broadcast", "tree"): {1 << 10: "1.07", 1 << 14: "1.25"}
    } and "at 1 and 16 KiB (1.07, 1.25)" in told(PAGE)


def test_two_levels_gain_little():
    of = {key[1:]: f"{ratio:.2f}" for key, ratio in ratios(BENCHES[TWO_BY_TWO]).items()}
    figures = (of["hierarchical", GIB], of["hierarchical", 64 * MIB], of["hierarchical", 256 * MIB], of["torus", GIB])
    assert of["hierarchical", GIB] == f"{ratios(BENCHES[FOUR])['all_reduce', 'ring', GIB]:.2f}"
    words = (
        "`hierarchical` is at {} at 1 GiB as the ring is, behind `circulant` (0.73), and ahead of both at 64 and "
        "256 MiB ({}, {});"
    )
    assert words.format(*figures) in told(PAGE) and f"busy at once, is at {figures[-1]}." in told(PAGE)


def test_in_groups_of_two_ours_is_ahead_at_4_mib_alone():
    alone, inside = ratios(BENCHES[TWO]), ratios(BENCHES[INSIDE])
    keys = [
        ("all_reduce", "doubling", 4 * MIB),
        ("all_to_all", "pairwise", 4 * MIB),
        ("reduce_scatter+all_gather", "circulant", 4 * MIB),
    ]
    assert [(*of, size) for of, sizes in ahead(INSIDE).items() for size in sizes] == keys
    assert "{}, {}, {}; alone {}, {}, {}".format(
        *(f"{bench[key]:.2f}" for bench in (inside, alone) for key in keys)
    ) in told(PAGE)
    larger = [
        sorted(bench["reduce_scatter+all_gather", "circulant", size << 20] for size in (16, 64, 256))
        for bench in (inside, alone)
    ]
    assert "at {:.2f} to {:.2f} there, alone at {:.2f} to {:.2f}".format(
        *(of[end] for of in larger for end in (0, -1))
    ) in told(PAGE)
    times = [seconds_of(BENCHES[above])["all_reduce", "lax", 256 * MIB] * 1e6 for above in (INSIDE, TWO)]
    assert "{:.0f} us in a group, {:.0f} alone".format(*times) in told(PAGE)


@pytest.mark.parametrize(
    "above, algorithm, figure",
    [
        (FOUR, "lax", "4.64"),
        (FOUR, "circulant", "6.39"),
        (FOUR, "ring", "6.76"),
        (FOUR, "split_ring", "11.25"),
        (FOUR, "sliced_ring", "11.73"),
        (TWO, "lax", "3.33"),
        (TWO, "doubling", "3.81"),
        (TWO, "ring", "4.33"),
        (TWO, "split_ring", "4.76"),
        (TWO, "sliced_ring", "4.78"),
    ],
)
def test_times_of_all_reduces_of_1_gib_are_told_in_ms(above, algorithm, figure):
    assert (
        ms(seconds_of(BENCHES[above])["all_reduce", algorithm, GIB]) == figure
        and figure in PAGE.split("**1 GiB on two GPUs**")[1]
    )


def test_the_exchange_of_small_arrays_and_of_1_gib():
    small = [
        ratio for (*of, size), ratio in ratios(BENCHES[TWO]).items() if of == ["all_reduce", "doubling"] and size <= MIB
    ]
    assert f"{min(small):.2f} to {max(small):.2f} up to 1 MiB" in told(PAGE)
    assert f"the message alone takes {ms(seconds_of(BENCHES[TWO])['permute', 'lax', GIB])} ms of the" in told(PAGE)
    four = seconds_of(BENCHES[FOUR])
    assert "256 MiB take {} ms, more than a quarter of the {} of 1 GiB".format(
        *(ms(four["permute", "lax", size]) for size in (256 * MIB, GIB))
    ) in told(PAGE)
    builtin, ring = (four["all_reduce", algorithm, 1 << 14] * 1e6 for algorithm in ("lax", "ring"))
    assert f"take {ring:.0f} us where NCCL takes {builtin:.0f}, {builtin / ring:.2f}" in told(PAGE)


def test_sums_of_messages_and_passes_do_not_close_on_four_gpus():
    seconds = seconds_of(BENCHES[FOUR])
    work = {
        p["algorithm"]: p["work"]["kernel_bytes"] / GIB
        for p in BENCHES[FOUR]["points"]
        if (p["primitive"], p["payload_bytes"]) == ("all_reduce", GIB)
    }
    messages = 1.5e3 * seconds["permute", "lax", GIB]
    bytes_at_most, seconds_at_most = TIMED[4]["rates"]["memory"]["points"][-1]
    passes = {name: work[name] * GIB * seconds_at_most / bytes_at_most * 1e3 for name in ("ring", "circulant")}
    took = {name: seconds["all_reduce", name, GIB] * 1e3 for name in passes}
    assert f"1.5 GiB, takes {messages:.2f} ms at the speed of a permute" in told(PAGE)
    assert "{:.2f} GiB of them in the ring and {:.2f} in `circulant`".format(work["ring"], work["circulant"]) in told(
        PAGE
    )
    assert "{:.1f} and {:.1f} ms at the measured rate".format(*passes.values()) in told(PAGE)
    words = "make {:.1f} ms for the ring, which takes {:.2f}, and {:.1f} for `circulant`, which takes {:.2f}"
    assert words.format(*(figure for name in passes for figure in (messages + passes[name], took[name]))) in told(PAGE)
    lacks = [took["ring"] - messages - passes["ring"], messages + passes["circulant"] - took["circulant"]]
    assert "the ring lacks {:.1f} ms and `circulant` has {:.1f} too much".format(*lacks) in told(PAGE)


def test_an_all_reduce_of_our_own_is_slower_than_nccl_at_1_gib():
    def best(above):
        return max(
            ratio
            for (primitive, _, size), ratio in ratios(BENCHES[above]).items()
            if (primitive, size) == ("all_reduce", GIB)
        )

    assert f"{best(TWO):.2f} of its speed on two GPUs and {best(FOUR):.2f} on four" in told(SECTION)


def test_what_the_page_on_collectives_says_of_lines_barriers_and_broadcasts():
    text, bench = told(COLLECTIVES), BENCHES[TWO]
    one, two = (
        [fit[error] * 100 for fit in bench["fits"] if fit.get(error) is not None]
        for error in ("median_error", "two_median_error")
    )
    assert (
        f"one line is off by {min(one):.0f} to {max(one):.0f} %, two lines by {min(two):.0f} to {max(two):.0f} %"
        in text
    )
    barriers = [seconds * 1e6 for (primitive, *_), seconds in seconds_of(bench).items() if primitive == "barrier"]
    assert "a barrier takes {:.0f} us by `jax.lax` and {:.0f} by permutes".format(*barriers) in text
    fastest = {
        a: max(p["busbw_bytes_per_s"] for p in bench["points"] if (p["primitive"], p["algorithm"]) == ("broadcast", a))
        / 1e9
        for a in ("lax", "tree")
    }
    assert f"comes to {fastest['lax']:.0f} GB/s, by a tree to {fastest['tree']:.0f}" in text


def test_what_the_page_on_collectives_says_of_two_h100s():
    text, bench = told(COLLECTIVES), json.loads((ROOT / "results" / "bench_2xh100_jax0.11.2.json").read_text())
    errors = [fit["median_error"] * 100 for fit in bench["fits"] if fit.get("median_error") is not None]
    assert f"one line is off by {min(errors):.0f} to {max(errors):.0f} %" in text
    at_1_gib = {
        name: ratio
        for (primitive, name, size), ratio in ratios(bench).items()
        if (primitive, size) == ("all_reduce", GIB)
    }
    best = max(at_1_gib, key=at_1_gib.get)
    assert f"is {1 / at_1_gib[best]:.2f} times as fast as the best written with permutes, `{best}`" in text


def one_kernel(form, size, looped=""):
    """Microseconds, GB/s and `lax.psum` over it, of one line."""
    (found,) = re.findall(
        rf"\] +{size} B {looped} *{form} +([\d.]+) us +([\d.]+) GB/s +psum/this +([\d.]+)", ONE_KERNEL
    )
    return found


def test_one_kernel_is_equal_to_psum_and_faster_from_16_mib_on():
    sizes = (1 << 10, 1 << 16, MIB, 16 * MIB, 256 * MIB, GIB)
    table = {row[0].split("`")[1]: row[1:] for row in rows(PAGE.split("One kernel does")[1])}
    assert table == {form: [one_kernel(form, size)[2] for size in sizes] for form in ("two_shot", "one_shot")}
    assert all(
        float(ratio) > 1 for cells in table.values() for ratio in cells[3:]
    ) and "(1.04 to 1.11 times as fast)" in told(SECTION)
    assert (min(table["two_shot"][3:]), max(table["two_shot"][3:])) == ("1.04", "1.11")
    assert {line.split()[-1] for line in ONE_KERNEL.splitlines() if " check " in line} == {"equal"}


def test_one_kernel_at_1_gib_and_in_a_loop():
    for form, words in (("two_shot", "{:,.0f} us, {:.0f} GB/s"), ("psum", "{:,.0f}, {:.0f} GB/s")):
        assert words.format(*map(float, one_kernel(form, GIB)[:2])) in told(PAGE)
    looped = {
        form: [one_kernel(form, size, "looped")[2] for size in (1 << 10, 1 << 16, MIB)]
        for form in ("one_shot", "two_shot")
    }
    assert "`one_shot` is at {}, {} and {} at".format(*looped["one_shot"]) in told(PAGE)
    assert "`two_shot` at {}, {} and {}.".format(*looped["two_shot"]) in told(PAGE)


def of_two_shot():
    """Microseconds by run, algorithm and size: of the script, with NCCL in a graph, and of two runs of `lab bench`."""
    by_script = re.findall(r"^ *(\d+) +(two_shot|lax) +([\d.]+) +\d+ +[\d.]+ +\d+ right$", TWO_SHOT, re.MULTILINE)
    graph = re.findall(r"([\d.]+) MiB, \d+ calls: eager [\d.]+ us, graph ([\d.]+) us", TWO_SHOT)
    by_bench = re.findall(r"\[bench (.*)\] +(\d+) B: two_shot ([\d.]+) us, lax ([\d.]+) us", TWO_SHOT)
    return (
        {("script", name, int(size)): float(us) for size, name, us in by_script}
        | {("script", "graph", round(float(size) * MIB)): float(us) for size, us in graph}
        | {(at, "two_shot", int(size)): float(us) for at, size, us, _ in by_bench}
        | {(at, "lax", int(size)): float(us) for at, size, _, us in by_bench}
    )


def test_two_shot_was_faster_than_psum_from_64_mib_on_and_slower_up_to_1_mib():
    us, told_us = of_two_shot(), {cells[0]: cells[1:] for cells in rows(COLLECTIVES.split("and why it is not here")[1])}
    sizes = [size for _, name, size in us if name == "graph"]
    for words, name in (("`two_shot`", "two_shot"), ("`lax.psum`", "lax"), ("NCCL in a CUDA graph", "graph")):
        assert told_us[words] == [f"{us['script', name, size]:,.1f}" for size in sizes]
    gains = {run: [us[run, "lax", size] / us[run, "two_shot", size] for size in sizes] for run, *_ in us}
    for run, words in (("script", "`lax.psum` / `two_shot`"), *((at, f"the same, {at}") for at in list(gains)[1:])):
        assert told_us[words] == [f"{gain:.2f}" for gain in gains[run]]
        assert all(gain > 1 for gain in gains[run][5:]) and all(gain < 1 for gain in gains[run][:3])
    large = [gain for run, of_run in gains.items() if run != "script" for gain in of_run[5:]]
    assert f"{min(large):.2f} to {max(large):.2f} times in the runs of `lab bench`" in told(COLLECTIVES)
    at_4_mib = [us[run, "lax", 4 * MIB] for run in gains]
    assert "`lax.psum` took {} us, where it took {} and {} in the others".format(*at_4_mib) in told(COLLECTIVES)
    assert len(gains) == 3 and "WRONG" not in TWO_SHOT


def test_nccl_in_a_graph_is_below_psum_at_1_kib_alone():
    us, among = of_two_shot(), {}
    for size in [size for _, name, size in us if name == "graph"]:
        by_psum = [found for (_, name, of), found in us.items() if (name, of) == ("lax", size)]
        graph = us["script", "graph", size]
        among[size] = (graph > min(by_psum)) + (graph > max(by_psum))
    assert {size for size, place in among.items() if place == 0} == {1 << 10}
    assert {size for size, place in among.items() if place == 2} == {MIB, 16 * MIB}
    assert "is below all three times of `lax.psum` at 1 KiB alone, above them at 1 and 16 MiB" in told(COLLECTIVES)


def test_the_commands_are_those_of_the_records():
    told_of = {row[3].strip("`"): row[2].strip("`").removeprefix("CUDA_VISIBLE_DEVICES=0,1 ") for row in rows(PAGE)}
    held = {
        name: json.loads((ROOT / "results" / name).read_text()).get("command")
        for name in told_of
        if name.endswith(".json")
    }
    assert all(
        told_of[name].split(" --save")[0] == command.split(" --save")[0] for name, command in held.items() if command
    )
    assert {name for name, command in held.items() if not command} == {
        name for name in told_of if name.startswith("run_")
    }
