"""`lab book`: what people ask of the register."""

import json
import subprocess
import sys

import pytest

from lab.book.register import CHAPTERS, load
from lab.report import book

RING = ("ch12.ring", "--set", "p=64", "--set", "n=10e9", "--set", "bytes_per_s=450e9", "--set", "alpha_s=1e-6")


def formulas():
    return [formula for part in load() for formula in part.formulas]


def test_a_ring_of_64_takes_43_876_ms_for_10_gb(lab):
    answer = lab("book", *RING)
    assert answer.status == 0 and answer.out.startswith("0.043876 s   ch12.ring,")
    assert "decided by: compiled" in answer.out and "experiments/ch12_ring_and_tree.py" in answer.out


def test_units_say_the_same_as_bare_numbers(lab):
    bare, units = lab("book", *RING), lab("book", "ch12.ring", "--set", "p=64", "--set", "n=10GB", "--set", "bytes_per_s=450GB/s", "--set", "alpha_s=1us")
    assert units == bare


def test_json_has_the_value_its_unit_and_what_decides_it(lab):
    answer = json.loads(lab("book", *RING, "--json").out)
    assert answer["schema"] == "sharding-lab/book/1"
    assert answer["value"] == pytest.approx(2 * 63 * (1e-6 + 10e9 / 64 / 450e9)) and answer["unit"] == "s"
    assert answer["set"] == {"ranks": 64, "payload_bytes": 10**10, "bytes_per_s": 450 * 10**9, "alpha_s": 1e-6}
    assert answer["formula"]["verdict"] == "right" and answer["formula"]["evidence"]


def test_an_answer_tells_the_default_that_it_used_and_its_10_8_days(lab):
    sizes = "--set", "parameters=70e9", "--set", "tokens=1.4e12", "--set", "devices=640", "--set", "flops_per_s=989e12"
    out = lab("book", "ch01.train_time", *sizes).out
    assert out.startswith("928969 s (10.8 days)") and "mfu = 1\n" in out


def test_bytes_are_exact_in_json(lab):
    answer = json.loads(lab("book", "ch11.ex5", "--set", "n=64MiB", "--set", "p=8", "--json").out)
    assert answer["value"] == 58_720_256


def test_chapters_are_listed_in_the_books_order_and_count_every_entry(lab):
    rows = json.loads(lab("book", "--json").out)["chapters"]
    names = [row["chapter"] for row in rows]
    assert names == [name for name in CHAPTERS if name in names]
    assert sum(row["formulas"] for row in rows) == len(formulas())
    assert all(row["right"] + row["wrong"] + row["depends"] == row["formulas"] for row in rows)


def test_a_chapter_lists_its_formulas(lab):
    answer = lab("book", "13a")
    assert answer.status == 0 and "ch13a.traffic" in answer.out and "ch12.ring " not in answer.out


def test_a_formula_shows_what_the_book_prints_what_is_right_why_and_its_arguments(lab):
    out = lab("book", "ch13.zero3").out
    told = ["prints    2(", "right     3(", "gathered forward and again backward", "verdict   wrong (1-3:D-60)", "ch20_zero3.py", "alpha_s  [s]", "the book: 1.75"]
    assert [part for part in told if part not in out] == []


def test_errata_come_worst_first_and_numbers_before_statements(lab):
    found = json.loads(lab("book", "--errata", "--json").out)["errata"]
    severities = [entry["severity"] or 0 for entry in found]
    assert severities == sorted(severities, reverse=True) and severities[0] > 10
    assert {entry["verdict"] for entry in found} == {"wrong"}
    assert all(entry["reason"] and entry["right"] for entry in found)


def test_errata_of_one_chapter(lab):
    out = lab("book", "12", "--errata").out
    assert out.index("7.11 times: ch12.hier2d") < out.index("2 times: ch12.tree_latency_optimal") and "ch13" not in out


def test_coverage_counts_every_entry_once(lab):
    answer = json.loads(lab("book", "--coverage", "--json").out)
    *kinds, everything = answer["coverage"]
    assert [row["decided by"] for row in kinds] == ["compiled", "numerics", "measured", "calculated", "open"]
    assert sum(row["entries"] for row in kinds) == everything["entries"] == len(formulas())
    assert answer["left_out"] == [{"id": entry.id, "reason": entry.reason} for part in load() for entry in part.left_out]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("book", "ch12.rign"), "ch12.ring"),
        (("book", "99"), "no such chapter or formula"),
        (("book", "busbw"), "ch13.algbw_busbw"),
        (("book", "--set", "p=8"), "--set goes with the id of a formula"),
        (("book", "13", "--set", "p=8"), "13"),
        (("book", "ch12.ring", "--set", "p"), "expected NAME=VALUE"),
        (("book", "ch12.ring", "--set", "rank=8"), "no argument 'rank'; expected ranks"),
        (("book", "ch12.ring", "--set", "p=8"), "payload_bytes, alpha_s, bytes_per_s not given"),
        (("book", "ch12.ring", "--set", "n=8Gbit"), "found the unit 'Gbit', expected a number or one with a unit of B, kB"),
        (("book", *RING, "--set", "ranks=8"), "ranks set twice"),
        (("book", "ch12.ring", *RING[3:], "--set", "p=0"), "ranks=0: expected a number above 0"),
        (("book", "ch12.ring", *RING[3:], "--set", "p=many"), "ranks=many: expected a number"),
        (("book", "ch11.duals", "--set", "p=8"), "a statement without a function"),
    ],
)
def test_unusable_input_is_told_in_one_line(lab, arguments, says):
    answer = lab(*arguments)
    assert answer.status == 2 and answer.out == ""
    assert answer.err.startswith("lab: ") and answer.err.count("\n") == 1 and says in answer.err


def test_every_formula_has_a_page():
    for formula in formulas():
        assert formula.prints in book.formula_page(formula).text


def test_no_jax_is_imported():
    program = "import sys; from lab.report import book; book.page('ch12.ring', {}, False, False); print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
