"""The page on real GPUs and the README say what the tour's record says."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[3]
RECORD = json.loads((ROOT / "results" / "tour_2xh200_jax0.11.2.json").read_text())
PAGE, README = ((ROOT / name).read_text() for name in ("docs/real_gpus.md", "README.md"))
ERRORS = [abs(step["error"]) for step in RECORD["times"]]
PROGRAMS = [program for program in RECORD["programs"] if not program["ahead_of_time"]["failure"]]


def test_each_of_32_rows_is_a_step_of_the_record():
    rows = re.findall(r"^\| (ch\S+) \| (\w+) \| (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([+-][\d.]+%) \|", PAGE, re.MULTILINE)
    told = [(*map(str, row[:4]), float(row[4]), float(row[5]), row[6]) for row in rows]
    names = ("layout", "style", "size", "remat")
    held = [(*(s[n] for n in names), round(s["measured_s"] * 1e3, 2), round(s["predicted_s"] * 1e3, 2), f"{s['error']:+.1%}") for s in RECORD["times"]]
    assert told == held
    assert len(told) == 32


@pytest.mark.parametrize("text", [PAGE, README], ids=["page", "README"])
def test_the_median_error_is_told_and_the_step_that_is_far_off(text):
    assert f"median error {median(ERRORS) * 100:.1f} %" in text
    assert sum(error > 0.2 for error in ERRORS) == 1
    assert f"{len(ERRORS)} steps" in text
    assert {RECORD["machine"]["driver"], RECORD["machine"]["nccl"], RECORD["machine"]["jax"], RECORD["date"][:10]} <= set(re.findall(r"[\d.-]*\d", text))


def test_46_programs_communicate_as_ahead_of_time_and_34_of_them_have_the_same_peak():
    assert all(program["ahead_of_time"]["changes"] == [] and program["verdict"] in ("exact", "explained") for program in PROGRAMS)
    same = sum(program["ahead_of_time"]["same"] for program in PROGRAMS)
    untuned = sum(program["ahead_of_time"]["same_untuned"] and not program["ahead_of_time"]["same"] for program in PROGRAMS)
    assert (len(PROGRAMS), same, untuned) == (46, 27, 7)
    assert f"Peak memory is equal in {same}, in {untuned} more" in README
    assert f"Peak memory is the same in {same}, and\nin {untuned} more" in PAGE
    assert f"{len(PROGRAMS)} programs" in PAGE and f"{len(PROGRAMS)} programs" in README


def test_the_programs_whose_peak_differs_are_listed_with_their_bytes():
    differing = [p for p in PROGRAMS if not p["ahead_of_time"]["same"] and not p["ahead_of_time"]["same_untuned"]]
    for program in differing:
        peaks = " | ".join(f"{program['ahead_of_time'][which]:,}" for which in ("peak", "attached_peak", "untuned_peak"))
        assert f"| {program['experiment']} | {program['style']} | {peaks} |" in PAGE
    assert len(differing) == 12


def test_the_losses_of_pipelines_rings_and_experts_are_told_as_recorded():
    record = json.loads((ROOT / "results" / "losses_2xh200_jax0.11.2.json").read_text())
    errors = {}
    for entry in record["losses"]:
        errors.setdefault(entry["experiment"], []).append(entry["cpu"]["worst_relative_error"])
    worst = max(*errors["ch16_training"], *errors["ch17_training"])
    assert f"agree with one CPU's to {worst:.1e} over 200 steps".replace("e-07", "e-7") in README
    assert f"later they part by {max(errors['ch18_training']):.1%}".replace("%", " %") in README
