"""What a Gantt chart shows, read back from its axes."""

import itertools

import pytest

from lab.harness.settings import with_settings
from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import PLAIN
from lab.report import gantt
from lab.report.gantt import COLOURS, Gantt

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it comes with the extra plots")


def numbers(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({}, "1f1b: 4 stages, 8 micro-batches; idle 27.3 %"),
        ({"schedule": "interleaved"}, "interleaved: 4 stages, 8 micro-batches, 2 chunks a stage; idle 15.8 %"),
        (
            {"schedule": "zb_h1", "stages": 8, "micro_batches": 32, "weight": 0.3},
            "zb_h1: 8 stages, 32 micro-batches; idle 13.9 %",
        ),
        (
            {"schedule": "dual_pipe", "stages": 8, "micro_batches": 20},
            "dual_pipe: 8 stages, 20 micro-batches; idle 9.1 %",
        ),
    ],
)
def test_the_title_says_the_idle_share(settings, title):
    assert Gantt(**settings).figure().axes[0].get_title() == title


@pytest.mark.parametrize("name", [*PLAIN, "interleaved"])
def test_every_piece_of_work_has_a_box_and_its_number(name):
    figure = Gantt(name).figure()
    boxes, work = len(figure.axes[0].collections), 4 * 8 * (2 if name == "interleaved" else 1)
    assert boxes == len(numbers(figure)) and boxes >= 2 * work
    lighter = name in ("interleaved", "dual_pipe")
    assert len(figure.legends[0].get_patches()) == (3 if boxes > 2 * work else 2) + lighter


@pytest.mark.parametrize(
    ("name", "chunks", "shades"), [("1f1b", 2, 2), ("interleaved", 2, 4), ("interleaved", 4, 8), ("dual_pipe", 2, 6)]
)
def test_each_chunk_and_each_direction_has_a_shade_of_its_own(name, chunks, shades):
    figure = Gantt(name, chunks=chunks).figure()
    assert len({tuple(box.get_facecolor()[0]) for box in figure.axes[0].collections}) == shades


def test_dual_pipe_says_which_shade_goes_from_the_last_stage_to_the_first():
    figure = Gantt("dual_pipe").figure()
    legend = dict(
        zip([text.get_text() for text in figure.legends[0].get_texts()], figure.legends[0].get_patches(), strict=True)
    )
    first = {
        box.get_paths()[0].get_extents().y1: box
        for box in reversed(figure.axes[0].collections)
        if box.get_paths()[0].get_extents().x0 == 0
    }
    upwards = legend["the same, from the last stage to the first"].get_facecolor()
    assert [tuple(box.get_facecolor()[0]) == upwards for _, box in sorted(first.items())] == [False, True]


def test_boxes_of_one_unit_have_no_number_where_249_units_are_on_a_page():
    assert numbers(Gantt(micro_batches=80).figure()) == []
    assert numbers(Gantt("interleaved", stages=2, micro_batches=2).figure())[:4] == ["0", "1", "0.1", "1.1"]


def test_a_forward_and_a_backward_that_overlap_share_the_height_of_a_box():
    figure = Gantt("dual_pipe").figure()
    heights = [box.get_paths()[0].get_extents().height for box in figure.axes[0].collections]
    assert {round(height, 2) for height in heights} == {0.84, 0.42}


def test_the_three_kinds_of_work_differ_without_colour():
    greys = sorted(
        sum(share * int(colour[at : at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
        for colour, _ in COLOURS.values()
    )
    assert min(after - one for one, after in itertools.pairwise(greys)) > 40


def test_times_below_zero_and_unknown_schedules_are_refused():
    with pytest.raises(ValueError, match="forward=-1: expected a number above 0"):
        Gantt(forward=-1).figure()
    with pytest.raises(
        UsageError, match="no schedule '2f2b'; known are gpipe, 1f1b, zb_h1, zb_h2, dual_pipe, interleaved"
    ):
        Gantt("2f2b").figure()


@pytest.mark.parametrize(("schedule", "boxes"), [("1f1b", "4,112"), ("zb_h1", "6,168"), ("dual_pipe", "4,122")])
def test_more_than_4096_boxes_are_refused_before_anything_is_simulated(schedule, boxes, monkeypatch):
    monkeypatch.setattr(gantt, "simulate", lambda *_: pytest.fail("simulated"))
    with pytest.raises(
        UsageError,
        match=f"{schedule}: stages=4, micro_batches=514 and . chunks are {boxes} boxes; expected 4,096 at most",
    ):
        Gantt(schedule, micro_batches=514).figure()


def test_times_are_set_as_fractions_of_a_unit():
    drawn = with_settings(Gantt(), dict.fromkeys(("forward", "backward", "weight", "transfer"), "0.2"))
    assert (drawn.forward, drawn.backward, drawn.weight, drawn.transfer) == (0.2, 0.2, 0.2, 0.2)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dual_pipe"])
def test_no_stages_are_refused_by_their_name(schedule):
    with pytest.raises(UsageError, match=f"{schedule}: stages=0; expected 1 or more"):
        Gantt(schedule, stages=0).figure()
