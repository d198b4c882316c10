"""What the pictures show, read back from their axes."""

import json
import sys

import numpy as np
import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip
from lab.report.plots import (
    PLOTS,
    Curves,
    Loss,
    MessageTimes,
    ModelState,
    Roofline,
    curves,
    listed,
    listed_text,
    roofline,
    save,
)

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it comes with the extra plots")
STEP = Ledger(
    (
        Transfer(Kind.ALL_REDUCE, ("tensor",), 8, 4, "bf16", 10**9, link="host"),
        Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "bf16", 10**9, link="network"),
    ),
    source="step.hlo",
    flops=10**13,
)


def lines(figure) -> dict:
    return {line.get_label(): line for line in figure.axes[0].get_lines()}


def test_the_roofs_of_an_h100_bend_at_295_2199_and_19790_flops_a_byte():
    ridges = {"memory": 295.4, "NVLink 4": 2199, "NDR InfiniBand": 19790}
    for name, line in lines(Roofline().figure()).items():
        x, y = line.get_data()
        (ridge,) = [at for roof, at in ridges.items() if name.startswith(roof)]
        assert x[y < y.max()].max() < ridge < x[y == 989.5e12].min()


def test_a_program_stands_on_the_roof_of_each_link_that_it_uses():
    found = [line for name, line in lines(roofline(chip("h100"), [STEP])).items() if name.startswith("step.hlo")]
    (inside, across) = [tuple(float(v) for v in (*line.get_xdata(), *line.get_ydata())) for line in found]
    assert inside == pytest.approx((10**13 / 7e9, 450e9 * 10**13 / 7e9))
    assert across == pytest.approx((1e4, 50e9 * 1e4))


def test_a_program_without_products_has_no_place_on_a_roofline():
    with pytest.raises(UsageError, match="step.hlo counts no FLOPs"):
        roofline(chip("h100"), [Ledger(STEP.transfers, source="step.hlo")])


def test_a_dtype_without_a_rate_is_refused():
    with pytest.raises(UsageError, match="NVIDIA A100 SXM 80 GB: no rate for dtype 'f8'; known are bf16"):
        roofline(chip("a100"), dtype="f8")


def test_bars_of_8_03_billion_parameters_reach_16_4_2_and_a_64th_of_16_bytes_each():
    bars = ModelState(model="llama3-8b", ranks=64).figure().axes[0].patches
    heights = [sum(bar.get_height() for bar in bars[stage::4]) for stage in range(4)]
    assert heights == pytest.approx([8.030261248 * b for b in (16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)])


def test_a_ring_of_64_takes_126_alphas_at_100_bytes_and_the_links_rate_at_a_gigabyte():
    ring = lines(MessageTimes().figure())["ring"].get_ydata()
    assert ring[0] == pytest.approx(126 * 5e-6, rel=1e-4)
    assert ring[-1] == pytest.approx(126 * 5e-6 + 2 * 63 / 64 * 1e9 / 50e9)


def test_no_model_is_below_the_best_for_its_compute_and_the_best_touches_each():
    found = lines(Loss(sizes=3).figure())
    flops, best = found["the best size for this compute"].get_data()
    models = [line.get_data() for name, line in found.items() if name.endswith("parameters")]
    assert len(models) == 3
    for x, loss in models:
        over = loss - np.interp(np.log(x), np.log(flops), best)
        assert -1e-3 < over.min() < 2e-3


TRAINING = {
    "target": "cpu:8",
    "one_device": {"losses": [4.0, 2.0], "tolerances": [1e-6, 1e-5]},
    "guessing_by_frequency": 3.1,
    "curves": [
        {"layout": "ZeRO-1", "style": "declared", "losses": [4.0, 2.0]},
        {"layout": "ZeRO-1", "style": "explicit", "losses": [4.0, 3.0]},
        {"layout": "ZeRO-2", "style": "explicit", "losses": [4.0, None]},
        {"layout": "ZeRO-3", "style": "explicit", "losses": []},
    ],
}


def test_curves_lie_on_that_of_one_device_and_half_a_loss_beside_it_is_half_below():
    above, below = curves(TRAINING).axes
    losses = {line.get_label(): list(line.get_ydata()) for line in above.get_lines()}
    assert losses["one device"] == losses["ZeRO-1, declared"] == [4.0, 2.0]
    assert losses["ZeRO-1, explicit"] == [4.0, 3.0]
    assert "ZeRO-3, explicit" not in losses
    assert [list(line.get_ydata()) for line in below.get_lines()][:2] == [[0.0, 0.0], [0.0, 0.5]]
    assert list(below.get_lines()[-1].get_ydata()) == [1e-6, 1e-5]


@pytest.mark.parametrize("text", [None, "{", '{"results": []}', '{"results": [{"terms": []}]}', "[]"])
def test_a_file_without_a_training_is_refused_with_the_command_that_makes_one(tmp_path, text):
    file = tmp_path / "training.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        UsageError, match=r"no such file|holds no training.*lab run ch14_training --json > training.json"
    ):
        Curves(str(file)).figure()


def test_a_picture_of_a_training_is_drawn_from_what_a_run_printed(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps({"results": [{"terms": []}, TRAINING]}))
    save("training", {"source": str(tmp_path / "training.json")}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_every_plot_is_listed_with_what_it_shows_and_its_settings():
    assert [row["name"] for row in listed()] == list(PLOTS)
    assert {row["name"]: row["set"] for row in listed()}["memory"] == {
        "model": "llama3-8b",
        "ranks": 64,
        "chip": "h100",
    }
    (line,) = [line for line in listed_text().splitlines() if line.startswith("messages")]
    assert "All-reduce algorithms" in line and line.endswith(
        "ranks=64 alpha_s=5e-06 bytes_per_s=5e+10 largest_bytes=1e+09"
    )


def test_a_picture_is_written(tmp_path):
    save("messages", {"ranks": "8"}, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name,settings,file,problem",
    [
        (
            "rooflin",
            {},
            "a.png",
            "no plot 'rooflin'; did you mean roofline\\? known are roofline, memory, messages, loss, training, gantt",
        ),
        ("memory", {"ranks": "0"}, "a.png", "plot memory: ranks=0: expected a whole number above 0"),
        ("loss", {"fit": "kaplan"}, "a.png", "plot loss: fit='kaplan': expected one of hoffmann, besiroglu"),
        ("memory", {"rank": "8"}, "a.png", "no parameter 'rank'; did you mean ranks\\? known are model, ranks, chip"),
        ("messages", {}, "a.word", "plot messages: Format 'word' is not supported"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, name, settings, file, problem):
    with pytest.raises(UsageError, match=problem):
        save(name, settings, tmp_path / file)


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"plots need matplotlib; run: pip install 'sharding-lab\[plots\]'"):
        save("memory", {}, tmp_path / "a.png")
