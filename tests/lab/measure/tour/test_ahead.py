"""A record's steps predicted once more: its rates as they were measured, and the flags that another process compiles
with."""

import json
import os
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from lab.core.ledger import Kind
from lab.measure.rates.curves import Curve, Rate
from lab.measure.step_time import MeasuredRates
from lab.measure.tour import ahead
from lab.measure.tour.apart import TILED, apart
from lab.meshes.targets import parse_target

RATES = MeasuredRates(
    Rate(4e-6, 760e12),
    Curve(((1e6, 3e-6), (1e9, 2.5e-4))),
    8e11,
    {Kind.ALL_REDUCE: Curve(((1e6, 2e-5), (1e9, 3e-3)))},
    0.35,
    0.15,
)
STEP = {"layout": "ch20_zero3", "style": "explicit", "size": "small", "remat": "full", "measured_s": 0.01}


RECORD = {"schema": "sharding-lab/tour/1", "times": [STEP], "rates": asdict(RATES), "devices": 8}


def test_rates_come_back_from_json_as_they_were():
    assert ahead.rates(json.loads(json.dumps({"rates": asdict(RATES)}))) == RATES


def test_each_step_of_a_record_is_predicted_beside_what_was_measured(monkeypatch):
    def of_rates(setting, axes, target, chip_text, rates):
        assert (str(setting), axes.size, chip_text, rates) == ("ch20_zero3 explicit small remat=full", 2, None, RATES)
        return {"total": 0.012, "memory": 0.007}

    monkeypatch.setattr(ahead, "predicted_ahead", of_rates)
    (found,) = ahead.predicted({"rates": asdict(RATES), "times": [STEP]}, parse_target("gpu:h200:1x2"))
    assert found.error == pytest.approx(0.2) and found.terms_s == {"memory": 0.007}
    assert STEP.items() <= vars(found).items()


@pytest.mark.slow
def test_another_process_compiles_with_more_flags():
    with apart((), TILED) as pool:
        assert pool.submit(os.getenv, "XLA_FLAGS").result().split()[-1] == TILED
    assert TILED not in os.environ["XLA_FLAGS"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("no", "not JSON"),
        ("{}", "found no times of steps"),
        ('{"schema": "sharding-lab/tour/1", "times": []}', "found no times"),
        (
            json.dumps(RECORD | {"machine": {"card": "TPU v5", "chip": "v5p"}}),
            "found times of 8 x TPU v5, expected GPUs of the table of hardware: a100, h100, h200, b200",
        ),
        (
            json.dumps(RECORD | {"machine": {"card": "cpu", "chip": None}}),
            "found times of 8 x cpu, expected GPUs",
        ),
    ],
)
def test_what_is_no_record_of_times_is_refused_in_a_line(text, said, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(text)
    found = CliRunner().invoke(ahead.main, [str(path)])
    assert found.exit_code == 2 and said in found.output
