import pytest

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
    [("payload_bytes", "10Gbit"), ("payload_bytes", "10GB/s"), ("alpha_s", "1m"), ("ranks", "8GB")],
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


def test_names_end_in_their_units():
    names = [
        "alpha_s",
        "bytes_per_s",
        "link_bytes_per_s",
        "payload_bytes",
        "flops_per_s",
        "ranks",
        "heads",
        "bytes_per_element",
    ]
    assert [unit_of(name) for name in names] == ["s", "B/s", "B/s", "B", "FLOP/s", "", "", ""]


def test_values_with_commas_are_every_combination_and_brackets_one_list():
    assert swept({"p": "2,4", "n": "1kB"}) == [{"p": "2", "n": "1kB"}, {"p": "4", "n": "1kB"}]
    assert swept({"menus": "[[8], [1, 2]]"}) == [{"menus": "[[8], [1, 2]]"}]
