"""What the pictures show, read back from their axes."""

import json
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from lab.compile.inspection import read_texts
from lab.core.ledger import Kind, Ledger, Transfer
from lab.diagnosis import Diagnosis
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip
from lab.meshes.targets import parse_target
from lab.report import roofline as rooflines
from lab.report.drawing import Box, Dot, Drawing, Label, Line
from lab.report.gantt import Gantt
from lab.report.html import reports
from lab.report.losses import losses, picture
from lab.report.plots import (
    PLOTS,
    Curves,
    Goodput,
    Loss,
    MessageTimes,
    ModelState,
    Roofline,
    YoungDaly,
    listed,
    listed_text,
    roofline,
    save,
)
from lab.report.roofline import points

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it comes with the extra plots")
SVG = "{http://www.w3.org/2000/svg}"
TEXT = """HloModule step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[256,256]) -> f32[256,256] {
  %p = f32[256,256]{1,0} parameter(0)
  %d = f32[256,256]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %all-reduce = f32[256,256]{1,0} all-reduce(%d), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add
}
"""
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


def roofs(drawing: Drawing) -> list[list[tuple[float, float]]]:
    """Lines of memory and links, as FLOPs a byte and FLOP/s by the numbers that stand at the rules."""
    labels = [shape for shape in drawing.shapes if isinstance(shape, Label)]
    x = {number(label.text): label.x for label in labels if label.anchor == "middle"}
    y = {number(label.text): label.y - 4 for label in labels if label.anchor == "end" and "FLOP" not in label.text}
    return [
        [(along(x, at), along(y, height)) for at, height in shape.points]
        for shape in drawing.shapes
        if isinstance(shape, Line) and len(shape.points) == 3
    ]


def number(text: str) -> float:
    amount, _, prefix = text.partition(" ")
    return float(amount) * 1000 ** ["", "k", "M", "G", "T", "P", "E"].index(prefix)


def along(scale: dict[float, float], pixel: float) -> float:
    """The value at a pixel of a logarithmic scale."""
    (one, at), (other, there) = min(scale.items()), max(scale.items())
    return float(10 ** np.interp(pixel, *zip(*sorted([(at, np.log10(one)), (there, np.log10(other))]), strict=True)))


def test_the_roofs_of_an_h100_bend_at_295_2199_and_19790_flops_a_byte():
    found = roofs(Roofline().drawing())
    assert [ridge[0] for _, ridge, _ in found] == pytest.approx([295.4, 2199, 19790], rel=1e-3)
    assert [start[1] / start[0] for start, _, _ in found] == pytest.approx([3.35e12, 450e9, 50e9], rel=1e-3)
    assert [end[1] for _, _, end in found] == pytest.approx([989.5e12] * 3, rel=1e-3)


def test_a_program_stands_on_the_roof_of_each_link_that_it_uses():
    inside, across = points(chip("h100"), STEP)
    assert (inside.link.name, inside.flops_per_byte) == ("NVLink 4", pytest.approx(10**13 / 7e9))
    assert (across.link.name, across.flops_per_byte) == ("NDR InfiniBand", 1e4)
    assert (inside.share_of(989.5e12), across.share_of(989.5e12)) == pytest.approx(
        (450e9 / 7e-4 / 989.5e12, 5e14 / 989.5e12)
    )
    drawn = rooflines.roofline(chip("h100"), (inside, across))
    dots = [shape for shape in drawn.shapes if isinstance(shape, Dot) and shape.told]
    assert [dot.told.partition(",")[0] for dot in dots[::2]] == [
        "NVLink 4: 1.429 kFLOP/B",
        "NDR InfiniBand: 10 kFLOP/B",
    ]
    assert dots[0].y < dots[2].y and dots[0].x < dots[2].x


def test_a_program_without_products_has_no_place_on_a_roofline():
    with pytest.raises(UsageError, match="step.hlo counts no FLOPs"):
        roofline(chip("h100"), [Ledger(STEP.transfers, source="step.hlo")])


def test_a_text_without_a_target_has_no_place_on_a_roofline_since_its_links_are_not_known(tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    source = {"source": str(tmp_path / "step.hlo"), "mesh": "data=2,tensor=4"}
    with pytest.raises(UsageError, match=r"which transfers leave a host is not known .* --set target=gpu:h100:16x8"):
        save("roofline", source, tmp_path / "a.svg")
    with pytest.raises(UsageError, match="target=cpu:8 names no chip; expected one such as gpu:h100:16x8"):
        save("roofline", source | {"target": "cpu:8"}, tmp_path / "a.svg")


@pytest.mark.parametrize(("target", "link"), [("gpu:h100:1x8", "NVLink 4"), ("gpu:a100:4x2", "HDR InfiniBand")])
def test_the_target_decides_the_chip_and_which_link_a_transfer_of_a_text_uses(tmp_path, target, link):
    (tmp_path / "step.hlo").write_text(TEXT)
    settings = {"source": str(tmp_path / "step.hlo"), "mesh": "data=2,tensor=4", "target": target}
    save("roofline", settings, tmp_path / "a.svg")
    said = [text.text for text in ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")]
    assert [line.rpartition(": ")[0] for line in said if line.startswith(("1: ", "2: "))] == [f"1: {link}"]


def test_the_page_and_the_plot_draw_one_roofline(tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    settings = {"source": str(tmp_path / "step.hlo"), "mesh": "data=2,tensor=4", "target": "gpu:h100:1x8"}
    save("roofline", settings, tmp_path / "a.svg")
    (read,) = read_texts(tmp_path / "step.hlo", Axes.parse("data=2,tensor=4"), parse_target("gpu:h100:1x8"))
    page = reports.inspection([Diagnosis(read.ledger, ())])
    shapes = re.findall(r'points="[^"]*"|c[xy]="[^"]*"', (tmp_path / "a.svg").read_text())
    assert len(shapes) > 20 and all(shape in page for shape in shapes)


def test_a_drawing_has_the_same_shapes_as_svg_and_in_matplotlib(tmp_path):
    drawn = Gantt("interleaved").drawing()
    save("gantt", {"schedule": "interleaved"}, tmp_path / "a.svg")
    svg, (panel,) = ElementTree.parse(tmp_path / "a.svg").getroot(), Gantt("interleaved").figure().axes
    texts = [shape.text for shape in drawn.shapes if isinstance(shape, Label)]
    boxes = [(shape.x, shape.y) for shape in drawn.shapes if isinstance(shape, Box)]
    assert [text.text for text in svg.iter(f"{SVG}text")] == [text.get_text() for text in panel.texts] == texts
    assert [patch.get_xy() for patch in panel.patches] == boxes
    rects = list(svg.iter(f"{SVG}rect"))[1:]
    assert [(float(rect.get("x")), float(rect.get("y"))) for rect in rects] == [
        pytest.approx(place, rel=1e-4) for place in boxes
    ]


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
        {"layout": "ZeRO-1", "style": "explicit", "losses": [4.0, 3.0], "failure": "leaves the curve"},
        {"layout": "ZeRO-2", "style": "explicit", "losses": [4.0, None]},
        {"layout": "ZeRO-3", "style": "explicit", "losses": []},
    ],
}


def test_losses_of_a_run_are_compared_with_one_devices_and_a_step_that_was_not_run_is_nan():
    found = losses(TRAINING)
    assert [(c.name, c.losses[:1]) for c in found.curves] == [
        ("ZeRO-1, declared", (4.0,)),
        ("ZeRO-1, explicit", (4.0,)),
        ("ZeRO-2, explicit", (4.0,)),
    ]
    assert found.curves[0].errors == [0.0, 0.0] and found.curves[1].errors == [0.0, 0.5]
    assert [c.is_on_curve for c in found.curves] == [True, False, True] and found.tolerances == (1e-6, 1e-5)


def test_a_curve_that_leaves_is_named_below_the_picture():
    texts = [shape.text for shape in picture(losses(TRAINING)).shapes if isinstance(shape, Label)]
    assert {"2 trainings on its curve", "1 off it", "off it: ZeRO-1, explicit"} <= set(texts)


@pytest.mark.parametrize("text", [None, "{", '{"results": []}', '{"results": [{"terms": []}]}', "[]"])
def test_a_file_without_a_training_is_refused_with_the_command_that_makes_one(tmp_path, text):
    file = tmp_path / "training.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(
        UsageError, match=r"(no such file|holds no training|not JSON).*lab run TRAINING --json > training.json"
    ):
        Curves(str(file)).figure()


def test_a_picture_of_a_training_is_drawn_from_what_a_run_printed(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps({"results": [{"terms": []}, TRAINING]}))
    save("training", {"source": str(tmp_path / "training.json")}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_trainings_of_a_question_are_drawn_with_their_names_and_a_step_without_a_loss_is_left_out(tmp_path):
    trained = {"terms": [], "losses_by_name": {"data parallelism": [4.0, 3.0, 2.0], "DiLoCo": [4.0, None, 3.0]}}
    (tmp_path / "training.json").write_text(json.dumps({"results": [trained]}))
    drawn = Curves(str(tmp_path / "training.json")).drawing()
    lines = {shape.told: len(shape.points) for shape in drawn.shapes if isinstance(shape, Line) and shape.told}
    assert lines == {"data parallelism": 3, "DiLoCo": 2}
    assert {"data parallelism", "DiLoCo"} <= {shape.text for shape in drawn.shapes if isinstance(shape, Label)}


@pytest.mark.parametrize("losses", [{}, {"DiLoCo": [None, None]}, {"DiLoCo": 3}, {"DiLoCo": [1.0]}])
def test_a_question_without_losses_is_refused(tmp_path, losses):
    file = tmp_path / "training.json"
    file.write_text(json.dumps({"results": [{"losses_by_name": losses}]}))
    with pytest.raises(UsageError, match=r"not a training .*lab run TRAINING --json > training.json"):
        Curves(str(file)).drawing()


def test_every_plot_is_listed_with_what_it_shows_and_its_settings():
    assert [row.name for row in listed()] == list(PLOTS)
    assert {row.name: row.set for row in listed()}["memory"] == {
        "model": "llama3-8b",
        "ranks": 64,
        "chip": "h100",
    }
    (line,) = [line for line in listed_text().splitlines() if line.startswith("messages")]
    assert all(row.shows.endswith(".") for row in listed())
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
            "no plot 'rooflin'; did you mean roofline\\? known are roofline, memory, messages, loss, young-daly, goodput, training, gantt",
        ),
        ("memory", {"ranks": "0"}, "a.png", "plot memory: ranks=0: expected a whole number above 0"),
        ("loss", {"fit": "kaplan"}, "a.png", "plot loss: fit='kaplan': expected one of hoffmann, besiroglu"),
        ("memory", {"rank": "8"}, "a.png", "no parameter 'rank'; did you mean ranks\\? known are model, ranks, chip"),
        ("roofline", {"source": "step.py:build"}, "a.png", "takes a compiled text or the folder of an XLA dump"),
        ("training", {}, "a.png", "lab run TRAINING --json > training.json, then --set source=training.json"),
        ("messages", {}, "a.word", "a.word: found .word, expected .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, name, settings, file, problem):
    with pytest.raises(UsageError, match=problem):
        save(name, settings, tmp_path / file)


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"plots need matplotlib; run: pip install 'sharding-lab\[plots\]'"):
        save("memory", {}, tmp_path / "a.png")


def test_the_curve_of_intervals_is_lowest_where_daly_s_point_lies():
    panel = YoungDaly().figure().axes[0]
    curve, daly = panel.lines[0], panel.lines[-1]
    assert daly.get_ydata()[0] == pytest.approx(min(curve.get_ydata()), rel=1e-3)
    assert daly.get_xdata()[0] == pytest.approx(791.5, rel=1e-3) and "every 3.05 h" in panel.get_title()


def test_causes_of_lost_time_fill_the_picture_and_useful_work_falls_as_devices_grow():
    panel = Goodput().figure().axes[0]
    top = panel.collections[-1].get_paths()[0].vertices[:, 1]
    heights = {x: y for x, y in panel.collections[0].get_paths()[0].vertices if y > 0}
    assert top.max() == pytest.approx(100) and heights[8.0] > 98 > 40 > heights[262_144.0]
