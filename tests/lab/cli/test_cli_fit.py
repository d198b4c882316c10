"""`lab fit`: its errors, its exit status, and one step that two compiles make fit."""

from dataclasses import replace

import pytest

from lab.cli import running
from lab.core.ledger import Ledger, Memory
from lab.harness.result import Result, Seconds
from lab.programs.models.shape import OFFLOAD, REMATS
from tests.json_keys import valid

TWO_GPUS = ("--target", "gpu:h100:1x2")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ch20_zero3", "--target", "cpu:8"], "target cpu:8: names no chip whose memory is known; name one, as in"),
        (["ch20_zero3", "--target", "attached"], "target attached: names no chip whose memory is known"),
        (["ch22_offloading"], "ch22_offloading has no one program to fit; expected an experiment"),
        (["ch20_zero4"], "no experiment 'ch20_zero4'; did you mean ch20_zero"),
        (["ch20_zero3", *TWO_GPUS, "--set", "remet=full"], "no parameter 'remet'; did you mean remat?"),
        (["ch20_zero3", *TWO_GPUS, "--style", "implicit"], "ch20_zero3: no style 'implicit'"),
    ],
)
def test_what_cannot_be_fitted_is_a_line_and_status_2(lab, arguments, line):
    answer = lab("fit", *arguments)
    assert (answer.status, answer.out) == (2, "") and answer.err.startswith(f"lab: {line}")
    assert answer.err.count("\n") == 1


@pytest.fixture
def peaks(monkeypatch):
    """Bytes at the peak by `remat`, in place of compiling; and what was asked for."""
    peaks, asked = {}, []

    def result(call, run, targets):
        asked.append(run)
        peak = peaks[run.experiment.parameters.remat]
        memory = Memory(0, 0, 0, 0, peak)
        nothing = Result(run.experiment.name, run.style, str(run.target), run.axes.shape, {}, Seconds(0, 0, 0))
        return replace(nothing, measured=Ledger((), memory=memory, flops=5))

    monkeypatch.setattr(running, "result", result)
    return peaks, asked


ASKED = ("fit", "ch14_data_parallel", *TWO_GPUS, "--style", "declared", "--set", "batch=2048", "--set", "remat=none")


def test_status_0_where_something_fits_and_json_fits_the_schema(lab, peaks):
    peaks[0].update(none=200 * 10**9, names=70 * 10**9, dots=71 * 10**9, selective=72 * 10**9, full=60 * 10**9)
    answer = lab(*ASKED, "--json")
    printed = valid("fit", answer.out)
    assert (answer.status, printed["fits"], printed["missing_bytes"]) == (0, True, None)
    assert printed["tries"][0]["compiled"]["peak"] == 200 * 10**9 and printed["tries"][-1]["fits"]
    assert printed["command"].startswith(
        "lab run ch14_data_parallel --target gpu:h100:1x2 --style declared --set batch=2048"
    )


def test_status_1_where_nothing_fits(lab, peaks):
    peaks[0].update(dict.fromkeys((*REMATS, OFFLOAD), 200 * 10**9))
    answer = lab(*ASKED)
    assert answer.status == 1 and "nothing made it fit: the smallest peak" in answer.out


def test_a_program_without_a_peak_is_refused(lab, peaks):
    peaks[0]["none"] = None
    answer = lab(*ASKED)
    assert answer.status == 2
    assert (
        answer.err
        == "lab: ch14_data_parallel on gpu:h100:1x2: XLA tells no peak of its memory, expected one to compare\n"
    )


@pytest.mark.compiles
def test_a_step_that_does_not_fit_two_gpus_fits_them_in_two_micro_batches(lab):
    """Sizes alone are large, so that a compilation takes seconds."""
    sizes = ("--set", "layers=2", "--set", "batch=64", "--set", "length=2048", "--set", "remat=none")
    answer = lab("fit", "ch14_data_parallel", *TWO_GPUS, "--style", "explicit", *sizes, "--json")
    printed = valid("fit", answer.out)
    asked, two = printed["tries"]
    assert two["changes"] == [{"lever": "micro-batches", "settings": {"accumulation": "2"}}]
    assert asked["compiled"]["peak"] > printed["pool_bytes"] > 1.5 * two["compiled"]["peak"]
    # Gradients are summed in float32, of 2 bytes more each, and all else is the same.
    assert two["extra"]["wire_bytes"] == two["compiled"]["wire_bytes"] - asked["compiled"]["wire_bytes"] > 0
    assert two["compiled"]["verdict"] == "exact" and answer.status == 0
