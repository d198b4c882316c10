"""A law's JSON, evaluated without the lab."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import lab.laws.evaluate as evaluate_module
from lab.cli.law import _read
from lab.core import codec
from lab.laws.answer import Value
from lab.laws.derive import with_compiled
from lab.laws.evaluate import OutsideLaw, evaluate
from lab.laws.law import Law, Refused
from lab.laws.polynomial import monomial
from lab.laws.scale import scaled
from lab.meshes.errors import UsageError
from lab.report.law import scale_lines
from tests.lab.laws.test_derive import START, gathers, law_of, measurement

SIZES = {"fsdp": 16, "layers": 126, "embed": 4096}


@pytest.fixture(scope="module")
def law():
    derived = law_of(lambda sizes: measurement(sizes, gathers(sizes)), START)
    return with_compiled(derived, {"fsdp": 3, "layers": 9, "embed": 192})


def test_a_law_is_evaluated_exactly(law):
    found = evaluate(codec.to_json(law), SIZES)
    payload = 126 * 2 * 4096**2
    assert (found["payload_bytes"], found["wire_bytes"]) == (payload, payload * 15 // 16)
    assert found["by_axes"] == {"fsdp": payload * 15 // 16}
    assert found["memory"]["arguments"] == 4 * 4096**2 // 16
    assert found["is_whole"]
    assert Value.of(law, SIZES).terms[0].executions == 126


@pytest.mark.parametrize(
    "change, why",
    [
        ({"fsdp": 3}, "embed % fsdp == 0 does not hold: 4096"),
        ({"fsdp": 1}, "fsdp=1: the law holds from 2 on"),
        ({"embed": 4128}, "embed=4128: only multiples of 64 were compiled"),
        ({"heads": 8}, "heads: no variable of the law"),
    ],
)
def test_outside_its_sizes_a_law_says_nothing(law, change, why):
    with pytest.raises(OutsideLaw, match=why):
        law.at(SIZES | change)


@pytest.mark.parametrize("size", [0, -2, 2.0, "2", None, True])
def test_what_is_no_size_is_refused(law, size):
    with pytest.raises(OutsideLaw, match="layers=.*expected a whole number from 1 on"):
        law.at(SIZES | {"layers": size})


def test_a_size_of_thirty_digits_is_evaluated_exactly(law):
    assert law.at(SIZES | {"layers": 10**30 + 4})["payload_bytes"] == (10**30 + 4) * 2 * 4096**2


def damaged(found):
    """With one value after the other changed, or left out."""
    for key in found if isinstance(found, dict) else range(min(len(found), 1)):
        for value in (-1, 0, "x", None):
            yield type(found)(found | {key: value}) if isinstance(found, dict) else [value, *found[1:]]
        yield {k: v for k, v in found.items() if k != key} if isinstance(found, dict) else found[1:]
        if isinstance(found[key], dict | list):
            for inner in damaged(found[key]):
                yield found | {key: inner} if isinstance(found, dict) else [inner, *found[1:]]


def refusal(ask):
    """Its text, or "" where there is an answer."""
    try:
        ask()
    except (OutsideLaw, UsageError) as why:
        return str(why)
    return ""


def test_a_damaged_law_is_refused_in_a_line_or_is_another_law(law, tmp_path):
    path, said = tmp_path / "law.json", []
    flops = (monomial(2, {"embed": 2, "layers": 1, "fsdp": -1}),)
    for found in damaged(codec.to_json(replace(law, flops=flops, flops_where=law.conditions))):
        path.write_text(json.dumps(found))
        said += [refusal(partial(evaluate, found, SIZES)), refusal(lambda: scaled(_read(str(path)), "layers", SIZES))]
    assert not [each for each in said if "\n" in each]
    assert 100 < said.count("") < len(said) - 100


def test_the_evaluator_is_one_file_that_needs_python_alone(law, tmp_path):
    (tmp_path / "law.json").write_text(codec.to_text(law))
    (tmp_path / "evaluate.py").write_text(Path(evaluate_module.__file__).read_text())
    program = (
        f"import json, evaluate; print(evaluate.evaluate(json.load(open('law.json')), {SIZES!r})['payload_bytes'])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 126 * 2 * 4096**2


def test_a_law_is_read_back_as_it_was_written(law):
    assert codec.from_json(Law, json.loads(codec.to_text(law))) == law


def test_growth_is_told_by_term(law):
    scale = scaled(law, "devices", SIZES)
    (growth,) = scale.growths
    assert (scale.variable, growth.does, growth.power) == ("fsdp", "stays", 0)
    assert scaled(law, "layers", SIZES).growths[0].does == "grows"
    assert scale.outside == "embed % fsdp == 0 does not hold: 4096 does not divide into 160"
    assert scaled(law, "layers", SIZES).outside == ""
    of_layers = replace(law, variables=law.variables[1:])
    with pytest.raises(UsageError, match="devices: the law is in no degree of the mesh; known are layers, embed"):
        scaled(of_layers, "devices", SIZES)
    assert [winner.times for winner in scale.winners] == [1, 10, 100, 1000]
    assert growth.what == "all_gather over fsdp, mlp, forward" and growth.origin == "step.py:7"


def test_terms_that_send_as_much_as_the_most_are_counted(law):
    twice = replace(law, terms=law.terms * 3)
    assert scale_lines(scaled(twice, "layers", SIZES))[1] == (
        "at layers=1,260: all_gather over fsdp, mlp, forward sends most, 33.3 % of all, and 2 other terms as much"
    )


def test_where_communication_passes_the_products_is_told_or_why_not(law):
    at_least = {**SIZES, "fsdp": 2}
    flops = (monomial(2**20, {"embed": 2, "layers": 1, "fsdp": -1}),)
    assert scaled(law, "fsdp", at_least).no_crossing == "cpu devices have no data sheet; name a chip by --chip"
    crossing = scaled(replace(law, flops=flops), "fsdp", at_least, "h100").crossing
    # Of one embed^2 layer: products shrink with fsdp, and of two bytes ever more are gathered, beyond a host of 8 at
    # 50 GB/s.
    assert 2**20 / 16 / 989.5e12 > 2 * 15 / 16 / 50e9
    assert 2**20 / 32 / 989.5e12 < 2 * 31 / 32 / 50e9
    assert (crossing.is_there, crossing.at) == (False, 32)
    refused = replace(law, flops=None, refused=(Refused(None, (), "FLOPs", "its reason", 0.0),))
    assert "FLOPs have no law (its reason)" in scaled(refused, "fsdp", at_least, "h100").no_crossing
    with pytest.raises(UsageError, match="h1000"):
        scaled(law, "fsdp", at_least, "h1000")
