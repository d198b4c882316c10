"""The page on real GPUs and the README say what the records of the tour and of the bench say."""

import json
import re
from collections import Counter
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from lab.tour.times import SIZES

ROOT = Path(__file__).parents[3]
PAGE, README = ((ROOT / name).read_text() for name in ("docs/real_gpus.md", "README.md"))
SECTION = README.split("\n## On real GPUs\n")[1].split("\n## ")[0]
SETTING = ("layout", "style", "size", "remat")


def record(machine, part=""):
    return json.loads((ROOT / "results" / f"{machine}_jax0.11.2{part}.json").read_text())


TIMED = {2: record("tour_2xh200"), 4: record("tour_4xh200", "_times")}
TIMES = {count: {tuple(step[name] for name in SETTING): step for step in timed["times"]} for count, timed in TIMED.items()}
PROGRAMS = {count: record(f"tour_{count}xh200", "_programs")["programs"] for count in (2, 4)}
LOSSES = {count: {t["experiment"]: t for t in record(f"tour_{count}xh200", "_losses")["losses"]} for count in (2, 4)}
BENCHES = {
    "4 GPUs:": TIMED[4]["collectives"],
    "The same four as a mesh of 2 x 2": record("bench_2x2h200"),
    "2 GPUs, and nothing else at work": record("bench_2xh200"),
    "2 GPUs, and the other two of the machine at work": record("tour_2xh200", "_collectives")["collectives"],
    "Groups of 2 inside the 4": record("bench_2of4h200"),
}
"""By what stands above each table of collectives."""
FOUR, TWO_BY_TWO, IDLE, LOADED, INSIDE = BENCHES
OF_NO_TABLE = {("permute", "lax"), ("barrier", "lax"), ("barrier", "circulant")}


def told(text):
    """Without the ends of lines."""
    return " ".join(text.split())


def rows(text):
    """Of the first table in it, without its head."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def seconds_of(bench):
    """By primitive, algorithm and bytes."""
    return {(p["primitive"], p["algorithm"], p["payload_bytes"]): p["seconds"] for p in bench["points"]}


def ratios(bench):
    """Time by `jax.lax` over ours, where ours is not it."""
    seconds = seconds_of(bench)
    return {key: seconds[key[0], "lax", key[2]] / own for key, own in seconds.items() if key[1] != "lax"}


def ms(seconds):
    return f"{seconds * 1e3:.2f}"


def by_term(step):
    """(predicted, seen) of kernels, of communication, and of what is waited for."""
    terms, seen = step["terms_s"], step["profiled_s"]
    kernels = terms["products"] + terms["memory"] + terms["slowed"]
    return (kernels, seen["kernels"]), (terms["communication"], seen["communication"]), (terms["exposed"], seen["waiting"])


def test_33_rows_are_the_steps_of_four_gpus_and_32_of_them_of_two():
    def of(step, *errors):
        return [ms(step["measured_s"]), ms(step["predicted_s"]), *(f"{step[error]:+.1%}" for error in errors)] if step else ["", "", ""]

    held = [[*key, *of(TIMES[2].get(key), "error"), *of(step, "error", "error_ahead_of_time")] for key, step in TIMES[4].items()]
    assert rows(PAGE.split("Times are ms of one step")[1]) == held
    assert len(held) == 33 and len(TIMES[2]) == 32 and TIMES[2].keys() < TIMES[4].keys()


def test_each_term_stands_beside_what_the_profiler_saw():
    held = [[*key, *(ms(seconds) for pair in by_term(step) for seconds in pair)] for key, step in TIMES[4].items()]
    assert rows(PAGE.split("### By term")[1]) == held


def test_kernels_are_what_is_wrong_in_general():
    steps = [step for step in TIMED[4]["times"] if step["layout"] != "ch16_pipeline"]
    shares = {}
    for (term, short, *errors, share), pairs in zip(rows(PAGE.split("Predicted over seen")[1]), zip(*map(by_term, steps), strict=True), strict=True):
        off = [predicted / seen - 1 for predicted, seen in pairs]
        assert (short, errors) == (f"{sum(e < 0 for e in off)} of 32", [f"{e:+.1%}" for e in (median(off), mean(off), min(off), max(off))])
        shares[term] = mean((predicted - seen) / step["measured_s"] for (predicted, seen), step in zip(pairs, steps, strict=True))
        assert share == ("" if term == "communication" else f"{shares[term]:+.1%}")
    assert shares["kernels"] / (shares["kernels"] + shares["exposed"]) == pytest.approx(0.75, abs=0.02)
    assert "three quarters of what is missing" in told(PAGE)


@pytest.mark.parametrize("text", [PAGE, SECTION], ids=["page", "README"])
def test_the_errors_of_the_pipeline_cancel(text):
    kernels, _, exposed = by_term(TIMES[4]["ch16_pipeline", "explicit", "middle", "full"])
    figures = (f"{seconds * 1e3:.1f}" for seconds in (*kernels, *exposed))
    assert "kernels {} ms predicted, {} seen; exposed {} predicted, waiting {} seen".format(*figures) in told(text)


def test_the_three_sizes_are_those_of_the_tour():
    names = ("layers", "batch", "length", "embed", "kv_heads", "queries", "head_dim", "mlp", "vocab")
    assert rows(PAGE.split("decoder has three sizes")[1]) == [[size, *(f"{getattr(shape, name):,}" for name in names)] for size, shape in SIZES.items()]


@pytest.mark.parametrize("text", [PAGE, SECTION], ids=["page", "README"])
@pytest.mark.parametrize(
    "count, error, words", [(2, "error", "32 steps"), (4, "error", "33 steps"), (4, "error_ahead_of_time", "ahead of time")], ids=["two", "four", "ahead"]
)
def test_the_median_error_is_told_and_that_no_step_is_far_off(text, count, error, words):
    errors = [abs(step[error]) for step in TIMED[count]["times"]]
    figure = re.escape(f"median error {median(errors) * 100:.1f} %")
    assert re.search(rf"{words}[^.]*{figure}", told(text).replace("*", ""))
    assert max(errors) < 0.2 and "none off by more than 20 %" in told(text)


@pytest.mark.parametrize("text", [PAGE, SECTION], ids=["page", "README"])
def test_machine_and_day_are_those_of_every_record(text):
    tours = [*TIMED.values(), *(record(f"tour_{count}xh200", part) for count in (2, 4) for part in ("_programs", "_losses"))]
    of = {(r["card"], r["driver"], r["nccl"], r["jax"], r["date"][:10]) for r in (*(tour | tour["machine"] for tour in tours), *BENCHES.values())}
    assert len(of) == 1 and all(word in told(text) for word in of.pop())


def test_the_worst_three_are_named_with_their_errors():
    worst = sorted(TIMED[4]["times"], key=lambda step: -abs(step["error"]))[:3]
    named = rows(PAGE.split("The worst three of four GPUs")[1])
    assert [row[:2] for row in named] == [[f"`{s['layout']} {s['size']}`", f"{s['error']:+.1%}"] for s in worst]


@pytest.mark.parametrize("count", [2, 4])
def test_50_programs_communicate_as_ahead_of_time(count):
    assert all(p["ahead_of_time"]["changes"] == [] and not p["ahead_of_time"]["failure"] for p in PROGRAMS[count])
    assert {p["verdict"] for p in PROGRAMS[count]} == {"exact", "explained"} and len(PROGRAMS[count]) == 50
    assert "**All 50 programs that fit, on four GPUs as on two" in told(PAGE) and "50 programs" in SECTION


def test_peaks_are_counted_and_the_exceptions_named():
    counts = {n: Counter((p["ahead_of_time"]["same"], p["ahead_of_time"]["same_untuned"]) for p in programs) for n, programs in PROGRAMS.items()}
    held = [[str(counts[n][kind]) for n in (2, 4)] for kind in ((True, True), (False, True), (False, False))]
    assert [row[1:] for row in rows(PAGE.split("Peak memory, in programs:")[1])] == held
    assert "equal to the byte in {} and {}".format(*held[0]) in told(SECTION)
    others = {n: [p["experiment"] for p in programs if not p["ahead_of_time"]["same_untuned"]] for n, programs in PROGRAMS.items()}
    assert others == {2: ["ch14_compression"], 4: ["ch14_compression", "ch17_zigzag"]}
    assert all(f"`{name}`" in PAGE for name in others[4])


def worst(training):
    """Curves, steps, and the largest relative error against one CPU."""
    curves = np.array([curve["losses"] for curve in training["curves"]])
    return *curves.shape, np.abs(curves / training["cpu"]["losses"] - 1).max()


def test_32_trainings_without_experts_have_the_losses_of_one_cpu():
    names = ("ch14_training", "ch16_training", "ch17_training")
    of = {count: [worst(LOSSES[count][name]) for name in names] for count in (2, 4)}
    held = [[str(curves), str(steps), f"{two:.1e}", f"{four:.1e}"] for (curves, steps, two), (*_, four) in zip(of[2], of[4], strict=True)]
    assert [row[1:] for row in rows(PAGE.split("## The same losses")[1]) if row[0].startswith(names)] == held
    assert [row[:2] for row in of[2]] == [row[:2] for row in of[4]]
    assert sum(curves for curves, *_ in of[2]) == 32 and "32 trainings" in SECTION
    assert all(f"{max(error for *_, error in of[count]):.1e}".replace("e-07", "e-7") in SECTION for count in (2, 4))


@pytest.mark.parametrize("above", BENCHES)
def test_every_algorithm_of_the_record_has_its_times_in_the_table(above):
    seconds = seconds_of(BENCHES[above])
    one_axis = {key[:2] for key in ratios(BENCHES[FOUR])} if above == TWO_BY_TWO else set()
    held = {}
    for (primitive, algorithm, size), own in seconds.items():
        cell = f"{own * 1e6:,.0f}" if algorithm == "lax" else f"{seconds[primitive, 'lax', size] / own:.2f}"
        held.setdefault((primitive, algorithm), []).append(cell)
    table = rows(PAGE.split(f"\n{above}")[1])
    named = {(primitive.replace(" + ", "+"), algorithm.replace("`jax.lax` [us]", "lax")): cells for primitive, algorithm, *cells in table}
    assert named == {key: cells for key, cells in held.items() if key not in OF_NO_TABLE | one_axis} and len(named) == len(table)


def test_on_two_gpus_those_are_ahead_that_both_records_have_ahead():
    """From 16 MiB on."""
    idle, loaded = (ratios(BENCHES[above]) for above in (IDLE, LOADED))
    ahead = {}
    for *of, size in idle.keys() & loaded.keys():
        if size >= 2**24 and all(round(bench[*of, size], 2) > 1 for bench in (idle, loaded)):
            ahead.setdefault(tuple(of), []).append(size)
    of_sizes = {of: [f"{size >> 20} MiB".replace("1024 MiB", "1 GiB") for size in sorted(sizes)] for of, sizes in ahead.items()}
    of_ratios = {of: [[f"{bench[*of, size]:.2f}" for size in sorted(sizes)] for bench in (idle, loaded)] for of, sizes in ahead.items()}
    table = rows(PAGE.split("what both records have ahead")[1])
    named = {(primitive.replace(" + ", "+"), algorithm): [cell.split(", ") for cell in cells] for primitive, algorithm, *cells in table}
    assert named == {of: [of_sizes[of], *of_ratios[of]] for of in ahead}
    assert all(ratio < 1 for (primitive, *_), ratio in idle.items() if primitive in ("all_reduce", "all_to_all"))


@pytest.mark.parametrize(
    "above, algorithm, figure",
    [(FOUR, "lax", "4.64"), (FOUR, "circulant", "6.39"), (FOUR, "ring", "6.76"), (FOUR, "split_ring", "11.25"), (FOUR, "sliced_ring", "11.73")]
    + [(IDLE, "lax", "3.36"), (IDLE, "doubling", "3.83"), (IDLE, "ring", "3.94"), (IDLE, "split_ring", "4.60"), (IDLE, "sliced_ring", "4.63")],
)
def test_times_of_all_reduces_of_1_gib_are_told_in_ms(above, algorithm, figure):
    seconds = seconds_of(BENCHES[above])["all_reduce", algorithm, 2**30]
    assert f"{seconds * 1e3:.2f}" == figure and figure in PAGE.split("**1 GiB on two GPUs**")[1]


def test_an_all_reduce_of_our_own_is_slower_than_nccl_at_1_gib():
    def best(above):
        return max(ratio for (primitive, _, size), ratio in ratios(BENCHES[above]).items() if (primitive, size) == ("all_reduce", 2**30))

    assert f"{best(IDLE):.2f} of its speed on two GPUs and {best(FOUR):.2f} on four" in told(SECTION)


def test_the_commands_are_those_of_the_records():
    told_of = {row[3].strip("`"): row[2].strip("`").removeprefix("CUDA_VISIBLE_DEVICES=0,1 ") for row in rows(PAGE)[:7]}
    for name, command in told_of.items():
        held = json.loads((ROOT / "results" / name).read_text())["command"]
        assert command.split(" --save")[0] == held.split(" --save")[0]


@pytest.mark.parametrize(
    ("devices", "name", "step", "before", "failed"),
    [
        (2, "ch18_dropless_training", 59, "2.0e-07", ()),
        (4, "ch18_dropless_training", 59, "2.3e-07", ()),
        (2, "ch18_training", 131, "2.2e-07", ("experts over two levels explicit",)),
        (4, "ch18_training", 131, "1.9e-07", ()),
        (2, "ch35_training", 125, "2.3e-07", ("a copy a node explicit",)),
        (4, "ch35_training", None, "2.8e-07", ("a copy a node explicit",)),
    ],
)
def test_trainings_with_experts_have_the_losses_of_one_cpu_until_a_choice_parts_them(devices, name, step, before, failed):
    training = LOSSES[devices][name]
    away = training["cpu"]["away"]
    errors = {f"{c['layout']} {c['style']}": np.abs(np.array(c["losses"]) / training["cpu"]["losses"] - 1) for c in training["curves"]}
    assert tuple(curve for curve, reason in away.items() if reason) == failed
    others = [error for curve, error in errors.items() if not away[curve]]
    assert f"{max(error[:step].max() for error in others):.1e}" == before
    assert all((error > 5e-7).argmax() == (step or 0) for error in others)
    (row,) = [row for row in rows(PAGE.split("from that step on:")[1]) if row[0].startswith(name)]
    cell = row[3 if devices == 2 else 4]
    assert before in cell
    assert {int(number) for number in re.findall(r"step (\d+)", cell)} == {int((error > 5e-7).argmax()) for error in errors.values() if max(error) > 5e-7}


def test_four_of_22_trainings_with_experts_failed_and_one_ledger_was_refuted():
    trainings = [(count, t) for count in (2, 4) for t in LOSSES[count].values()]
    experts = [(count, t) for count, t in trainings if t["experiment"] in ("ch18_dropless_training", "ch18_training", "ch35_training")]
    curves = [(count, t, c, f"{c['layout']} {c['style']}") for count, t in experts for c in t["curves"]]
    failed = {(count, name): (c["failure"], t["cpu"]["away"][name]) for count, t, c, name in curves if c["failure"] or t["cpu"]["away"][name]}
    assert len(curves) == 22 and failed.keys() == {
        (2, "experts over two levels explicit"),
        (2, "a copy an expert declared"),
        (2, "a copy a node explicit"),
        (4, "a copy a node explicit"),
    }
    assert [key for key, (_, of_cpu) in failed.items() if not of_cpu] == [(2, "a copy an expert declared")]
    stop = [t["experiment"] == "ch18_training" and (count, name) not in failed for count, t, _, name in curves]
    assert sum(stop) == 9 and all("18 passed, 9 of them compared only up to step 131" in told(text) for text in (PAGE, SECTION))
    refuted = [(count, c["layout"], c["style"]) for count, t in trainings for c in t["curves"] if c["verdict"] == "refuted"]
    assert refuted == [(4, "hybrid", "declared")]


def test_the_backward_pass_of_one_step_took_the_other_choice_than_its_loss():
    """Relative errors of steps 125 to 128 from the CPU's losses, and from those of the layout that chose otherwise."""
    curves = {f"{c['layout']} {c['style']}": np.array(c["losses"])[125:129] for c in LOSSES[2]["ch35_training"]["curves"]}
    cpu = np.array(LOSSES[2]["ch35_training"]["cpu"]["losses"])[125:129]
    own, other = curves["a copy a node explicit"], curves["a copy an expert declared"]
    assert own[0] == cpu[0] and np.abs(other[0] / cpu[0] - 1) > 3e-5
    assert np.abs(own / other - 1)[1:].max() < 3e-7 and 1e-6 < np.abs(own / cpu - 1)[1:].min() and np.abs(own / cpu - 1)[1:].max() < 3e-6
