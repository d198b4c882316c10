import re

import pytest

from lab.book.register import load
from lab.meshes.errors import UsageError
from lab.report.settings import parse, swept, unit_of


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("payload_bytes", "10e9", 10**10),
        ("payload_bytes", "10GB", 10**10),
        ("payload_bytes", "1.5 GiB", 1_610_612_736),
        ("total_bytes", "67_108_864", 67_108_864),
        ("bytes_per_s", "450GB/s", 450 * 10**9),
        ("flops_per_s", "989TFLOP/s", 989 * 10**12),
        ("alpha_s", "2us", 2e-6),
        ("alpha_s", "1e-6", 1e-6),
        ("save_s", "2min", 120),
        ("mtbf_h", "2d", 48),
        ("hours", "720h", 720),
        ("hours", "30d", 720),
        ("seconds", "2min", 120),
        ("usd_per_h", "2.5", 2.5),
        ("usd_per_h", "2USD/h", 2),
        ("device_usd", "55000USD", 55000),
        ("preemptions_per_h", "6/d", 0.25),
        ("tokens_per_s", "120/min", 2),
        ("width_bits", "8", 8),
        ("ranks", "64", 64),
        ("bytes_per_element", "2", 2),
        ("exponent", "-0.5", -0.5),
        ("parameters", "70B", 70 * 10**9),
        ("active_parameters", "37.5B", 37_500_000_000),
        ("tokens", "15T", 15 * 10**12),
        ("parameters", "llama3-8b", 8_030_261_248),
        ("flops_per_s", "h100", 989.5e12),
        ("flops", "1e24", 1e24),
        ("levels", "[[8, 1e-6, 6e11]]", [[8, 1e-6, 6e11]]),
        ("dtype", "bf16", "bf16"),
    ],
)
def test_a_setting_is_a_number_with_or_without_a_unit_a_list_or_a_word(argument, text, value):
    found = parse(argument, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("payload_bytes", "10Gbit"),
        ("payload_bytes", "10GB/s"),
        ("alpha_s", "1m"),
        ("ranks", "8GB"),
        ("usd_per_h", "720h"),
        ("preemptions_per_h", "2h"),
        ("tokens_per_s", "2s"),
        ("bytes_per_element", "2s"),
    ],
)
def test_another_unit_is_refused_with_those_that_are_meant(argument, text):
    with pytest.raises(UsageError, match=f"--set {argument}={text}: found the unit .*, expected a number"):
        parse(argument, text)


@pytest.mark.parametrize(
    ("argument", "text", "problem"), [("parameters", "llama3-7b", "llama3-70b"), ("flops_per_s", "h1000", "h100")]
)
def test_a_model_or_a_chip_that_nobody_knows_is_refused_with_those_that_are(argument, text, problem):
    with pytest.raises(UsageError, match=problem):
        parse(argument, text)


WORDS = {"bytes": "B", "byte": "B", "flops": "FLOP", "bits": "bit", "bit": "bit", "usd": "USD", "joules": "J", "j": "J"}
WORDS |= {"seconds": "s", "s": "s", "hours": "h", "h": "h", "day": "d"}
WORDS |= {word: word for word in ("element", "parameter", "token")}
ITEMS = {"tokens", "batches"}
WITHOUT_A_UNIT = {"errors_per_1e9_megabit_h"}
"""Failures in time, as memories are sold."""


def _named_unit(name: str) -> str | None:
    """By the words of a name: `usd_per_h` is in USD/h, `preemptions_per_h` in 1/h; None where it names no unit."""
    words = name.split("_")
    if rate := re.fullmatch(r"(.*?)_(?:per|an?)_([a-z0-9]+)(?:_(?:a_rank|saved))?", name):
        of, per = (part.split("_")[-1] for part in rate.groups())
        if per not in WORDS:
            return None
        return f"{WORDS.get(of) or (of if of in ITEMS else '1')}/{WORDS[per]}"
    return WORDS.get(words[-1]) or WORDS.get(words[0] if words[-1] in ("read", "used") else "")


FORMULAS = [formula for part in load() for formula in part.formulas if formula.function]
ARGUMENTS = sorted({name for formula in FORMULAS for name in formula.arguments} - WITHOUT_A_UNIT)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_unit_of_an_argument_is_the_one_that_its_name_says(name):
    assert unit_of(name) == (_named_unit(name) or "")


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.id)
def test_the_unit_of_a_result_is_the_one_that_the_functions_name_says(formula):
    named = _named_unit(formula.function.partition(":")[2])
    assert named in (None, formula.unit)


def test_values_with_commas_are_every_combination_and_brackets_one_list():
    assert swept({"p": "2,4", "n": "1kB"}) == [{"p": "2", "n": "1kB"}, {"p": "4", "n": "1kB"}]
    assert swept({"menus": "[[8], [1, 2]]"}) == [{"menus": "[[8], [1, 2]]"}]
