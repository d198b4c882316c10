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
    bare, units = (
        lab("book", *RING),
        lab(
            "book",
            "ch12.ring",
            "--set",
            "p=64",
            "--set",
            "n=10GB",
            "--set",
            "bytes_per_s=450GB/s",
            "--set",
            "alpha_s=1us",
        ),
    )
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
    told = [
        "prints    2(",
        "right     3(",
        "gathered forward and again backward",
        "verdict   wrong (1-3:D-60)",
        "ch20_zero3.py",
        "alpha_s  [s]",
        "the book: 1.75",
    ]
    assert [part for part in told if part not in out] == []


def test_errata_come_worst_first_what_fails_before_numbers_and_these_before_statements(lab):
    found = json.loads(lab("book", "--errata", "--json").out)["errata"]
    ranks = [(entry["fails"], entry["severity"] or 0) for entry in found]
    assert ranks == sorted(ranks, reverse=True)
    assert [entry["id"] for entry in found if entry["fails"]].count("ch16.1f1b_order") == 1
    assert {entry["verdict"] for entry in found} == {"wrong"}
    assert all(entry["reason"] and entry["right"] for entry in found)


def test_errata_of_one_chapter(lab):
    out = lab("book", "12", "--errata").out
    assert out.index("7.11 times: ch12.hier2d") < out.index("2 times: ch12.tree_latency_optimal") and "ch13" not in out


def test_coverage_counts_every_entry_once(lab):
    answer = json.loads(lab("book", "--coverage", "--json").out)
    *kinds, everything = answer["coverage"]
    assert [row["decided by"] for row in kinds] == [
        "compiled",
        "numerics",
        "measured",
        "published",
        "calculated",
        "open",
    ]
    assert sum(row["entries"] for row in kinds) == everything["entries"] == len(formulas())
    assert answer["left_out"] == [
        {"id": entry.id, "reason": entry.reason} for part in load() for entry in part.left_out
    ]


def test_coverage_lists_what_is_open_with_the_reason(lab):
    answer = json.loads(lab("book", "--coverage", "--json").out)
    undecided = {formula.id: formula.reason for formula in formulas() if formula.kind == "open"}
    assert {entry["id"]: entry["reason"] for entry in answer["open"]} == undecided
    assert all(f"  {id}: {reason}" in lab("book", "--coverage").out for id, reason in undecided.items())


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [("ch12", "12"), ("CH03A", "3a"), ("ch 7", "7"), ("04", "4"), ("CH12.RING", "ch12.ring"), ("a7", "A7"), ("a", "A")],
)
def test_chapters_and_ids_are_found_however_they_are_spelled(lab, spelled, plain):
    answer = lab("book", spelled)
    assert answer.status == 0 and answer == lab("book", plain)


def test_p_2_4_8_and_two_sizes_are_a_table_of_six_rows(lab):
    sweep = (
        "book",
        "ch12.ring",
        "--set",
        "p=2,4,8",
        "--set",
        "n=1MB,1GB",
        "--set",
        "bytes_per_s=1GB/s",
        "--set",
        "alpha_s=0",
    )
    points = json.loads(lab(*sweep, "--json").out)["sweep"]
    assert [point["value"] for point in points] == pytest.approx(
        [2 * (1 - 1 / p) * n / 1e9 for p in (2, 4, 8) for n in (1e6, 1e9)]
    )
    head, _, columns, _, *rows = lab(*sweep).out.splitlines()
    assert head == "ch12.ring, ring all-reduce (chapter 12), for alpha_s = 0 s, bytes_per_s = 1 GB/s"
    assert columns.split() == ["payload_bytes", "ranks", "value"] and rows[5].split() == ["1", "GB", "8", "1.75", "s"]


def test_words_find_what_has_them_all_titles_first(lab):
    found = [formula["id"] for formula in json.loads(lab("book", "ZeRO-2", "--json").out)["formulas"]]
    assert found[0] == "A8" and "ch20.comm" in found
    assert lab("book", "checkpoint", "interval").out.splitlines()[2].startswith("ch26.young_daly ")
    assert lab("book", "zero", "--errata").out.endswith("statements\n")


def test_70b_parameters_and_1_4t_tokens_are_billions_and_trillions(lab):
    sizes = "--set", "devices=640", "--set", "flops_per_s=989TFLOP/s", "--set", "mfu=0.4"
    short = lab("book", "ch01.train_time", "--set", "parameters=70B", "--set", "tokens=1.4T", *sizes)
    assert short == lab("book", "ch01.train_time", "--set", "parameters=70e9", "--set", "tokens=1.4e12", *sizes)
    assert short.out.startswith("2.32242e+06 s (26.9 days)")


@pytest.mark.parametrize(
    ("save", "interval"),
    [
        ("1s", "169.706 s (2.83 min)"),
        ("5min", "2939.39 s (49 min)"),
        ("1h", "10182.3 s (2.83 h)"),
        ("0.1s", "53.6656 s "),
    ],
)
def test_an_interval_is_told_in_minutes_and_hours_too(lab, save, interval):
    assert lab("book", "ch26.young_daly", "--set", f"save_s={save}", "--set", "mtbf_s=4h").out.startswith(interval)


def test_worked_numbers_have_the_unit_of_the_formula(lab):
    assert "  87.5 GB (the book: 79 GB) for parameters = 175,000,000,000, pipe = 8" in lab("book", "ch24.memory_3d").out


def test_plots_are_listed_and_need_a_file_to_be_drawn(lab):
    assert [row["name"] for row in json.loads(lab("plot", "--json").out)][:3] == ["roofline", "memory", "messages"]
    assert lab("plot").out.startswith("plot ")
    assert lab("plot", "memory").err == "lab: plot memory needs a file: lab plot memory --save memory.png\n"
    assert lab("plot", "memry").err.startswith("lab: no plot 'memry'; did you mean memory?")
    assert lab("plot", "--set", "ranks=8").err.startswith("lab: a plot needs its name")


def test_a_register_that_cannot_be_read_is_told_in_one_line(lab, monkeypatch):
    def broken():
        raise ValueError("part4.toml: ch14.ring: unknown colour")

    monkeypatch.setattr(book, "load", broken)
    answer = lab("book")
    assert (answer.status, answer.err) == (
        2,
        "lab: the register cannot be read: part4.toml: ch14.ring: unknown colour\n",
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("book", "--errata", "--coverage"), "--errata and --coverage are two pages"),
        (("book", "ch12.ring", "--errata"), "ask for one of them"),
        (
            ("book", "ch12.ring", "--set", "p=2", "--set", "p=4"),
            "--set p is given twice; several values are a sweep, such as --set p=2,4,8",
        ),
        (("book", *RING[:3], "--set", "n=1,2kbit", *RING[5:]), "--set payload_bytes=2kbit: found the unit 'kbit'"),
        (("book", "ch12.rign"), "ch12.ring"),
        (("book", "99"), "no chapter or formula '99'"),
        (("book", "busbw", "ghosts"), "no chapter or formula 'busbw ghosts'"),
        (("book", "--set", "p=8"), "--set goes with the id of a formula"),
        (("book", "13", "--set", "p=8"), "--set goes with the id of a formula"),
        (("book", "ch12.ring", "--set", "p"), "expected NAME=VALUE"),
        (("book", "ch12.ring", "--set", "rank=8"), "no argument 'rank'; expected ranks"),
        (("book", "ch12.ring", "--set", "p=8"), "payload_bytes, alpha_s, bytes_per_s not given"),
        (
            ("book", "ch12.ring", "--set", "n=8Gbit"),
            "found the unit 'Gbit', expected a number or one with a unit of B, kB",
        ),
        (("book", *RING, "--set", "ranks=8"), "ranks set twice"),
        (("book", "ch12.ring", *RING[3:], "--set", "p=0"), "ranks=0: expected a whole number above 0"),
        (("book", "ch12.ring", *RING[3:], "--set", "p=many"), "ranks=many: expected a"),
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


@pytest.mark.compiles
def test_no_jax_is_imported():
    program = (
        "import sys; from lab.report import book; book.page('ch12.ring', (), False, False); print('jax' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
