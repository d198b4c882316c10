"""The page on real GPUs and the README say what the tour's record says."""

import json
import re
from pathlib import Path
from statistics import median

import numpy as np
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
def test_the_median_error_is_told_and_that_no_step_is_far_off(text):
    assert f"median error {median(ERRORS) * 100:.1f} %" in text
    assert max(ERRORS) < 0.2 and "off by more than 20 %" in text
    assert f"{len(ERRORS)} steps" in text
    assert {RECORD["machine"]["driver"], RECORD["machine"]["nccl"], RECORD["machine"]["jax"], RECORD["date"][:10]} <= set(re.findall(r"[\d.-]*\d", text))


def test_50_programs_communicate_as_ahead_of_time():
    assert all(program["ahead_of_time"]["changes"] == [] and program["verdict"] in ("exact", "explained") for program in PROGRAMS)
    assert len(PROGRAMS) == 50
    assert "50 programs" in PAGE and "50 programs" in README


def test_34_of_50_peaks_are_those_of_a_laptop_and_the_others_are_listed_with_their_bytes():
    here = {(p["experiment"], p["style"]): p["ahead_of_time"] for p in PROGRAMS}
    ahead = {(p["experiment"], p["style"]): p["peak"] for p in json.loads((ROOT / "results" / "ahead_2xh200_jax0.11.2.json").read_text())["peaks"]}
    assert here.keys() == ahead.keys()
    differing = [name for name, peak in ahead.items() if peak != here[name]["attached_peak"]]
    rows = re.findall(r"^\| (\w+) \| (\w+) \| ([\d,]+) \| ([\d,]+) \| [+-][\d.]+% \| (yes)? ?\|", PAGE, re.MULTILINE)
    told = [(name, style, *(int(peak.replace(",", "")) for peak in peaks), bool(untried)) for name, style, *peaks, untried in rows]
    assert told == [(*name, ahead[name], here[name]["attached_peak"], ahead[name] == here[name]["untuned_peak"]) for name in differing]
    assert len(ahead) - len(differing) == 34 and "**34 of 50 peaks" in PAGE


def test_32_trainings_without_experts_and_4_of_8_with_them_have_the_losses_of_one_cpu():
    worst = {}
    for training in RECORD["losses"]:
        cpu = np.array(training["cpu"]["losses"])
        errors = {f"{curve['layout']} {curve['style']}": np.abs(np.array(curve["losses"]) / cpu - 1) for curve in training["curves"]}
        worst.setdefault("ch18" in training["experiment"], []).extend(errors.values())
    assert len(worst[False]) == 32 and all(len(errors) == 200 for errors in worst[False])
    assert f"{max(errors.max() for errors in worst[False]):.1e}".replace("e-07", "e-7") in README
    assert len(worst[True]) == 8 and sum(errors.max() < 1e-6 for errors in worst[True]) == 4
    parted = [int(np.argmax(errors > 3e-6)) for errors in worst[True] if errors.max() > 1e-6]
    assert sorted(parted) == [48, 59, 59, 59]
    assert f"{max(errors[: min(parted)].max() for errors in worst[True]):.1e}" .replace("e-07", "e-7") in README
