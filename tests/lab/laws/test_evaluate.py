"""A law's JSON, evaluated without the lab."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import lab.laws.evaluate as evaluate_module
from lab.core import codec
from lab.laws.answer import Value
from lab.laws.derive import with_compiled
from lab.laws.evaluate import OutsideLaw, evaluate
from lab.laws.law import Law, Refused
from lab.laws.polynomial import monomial
from lab.laws.scale import scaled
from lab.meshes.errors import UsageError
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
    assert [winner.times for winner in scale.winners] == [1, 10, 100, 1000]


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
