"""What a Gantt chart shows, read back from its shapes."""

from itertools import pairwise

import pytest

from lab.harness.settings import with_settings
from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import PLAIN
from lab.report import gantt
from lab.report.drawing import Box, Drawing, Label
from lab.report.gantt import COLOURS, Gantt


def boxes(drawing: Drawing) -> list[Box]:
    """Those of work."""
    return [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.told]


def numbers(drawing: Drawing) -> list[str]:
    """Those in boxes."""
    return [shape.text for shape in drawing.shapes if isinstance(shape, Label) and shape.anchor == "middle"]


def legend(drawing: Drawing) -> dict[str, str]:
    """Words to colours."""
    pairs = pairwise(drawing.shapes)
    return {label.text: box.colour for box, label in pairs if isinstance(box, Box) and not box.told}


@pytest.mark.slow
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
    drawn = Gantt(**settings).drawing()
    assert drawn.title == title and title in [shape.text for shape in drawn.shapes if isinstance(shape, Label)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PLAIN, "interleaved"])
def test_every_piece_of_work_has_a_box_and_its_number(name):
    drawn = Gantt(name).drawing()
    found, work = boxes(drawn), 4 * 8 * (2 if name == "interleaved" else 1)
    assert len(found) == len(numbers(drawn)) and len(found) >= 2 * work
    assert len(set(found)) == len(found) and len({box.told for box in found}) == len(found)
    lighter = name in ("interleaved", "dual_pipe")
    assert len(legend(drawn)) == (3 if len(found) > 2 * work else 2) + lighter


@pytest.mark.parametrize(
    ("name", "chunks", "shades"), [("1f1b", 2, 2), ("interleaved", 2, 4), ("interleaved", 4, 8), ("dual_pipe", 2, 6)]
)
def test_each_chunk_and_each_direction_has_a_shade_of_its_own(name, chunks, shades):
    assert len({box.colour for box in boxes(Gantt(name, chunks=chunks).drawing())}) == shades


def test_dual_pipe_says_which_shade_goes_from_the_last_stage_to_the_first():
    drawn = Gantt("dual_pipe").drawing()
    left = min(box.x for box in boxes(drawn))
    first = {box.y: box.colour for box in boxes(drawn) if box.x == left}
    upwards = legend(drawn)["the same, from the last stage to the first"]
    assert [colour == upwards for _, colour in sorted(first.items())] == [False, True]


def test_boxes_of_one_unit_have_no_number_where_249_units_are_on_a_page():
    assert numbers(Gantt(micro_batches=80).drawing()) == []
    assert numbers(Gantt("interleaved", stages=2, micro_batches=2).drawing())[:4] == ["0", "1", "0.1", "1.1"]


def test_a_forward_and_a_backward_that_overlap_share_the_height_of_a_box():
    whole, half = sorted({box.height for box in boxes(Gantt("dual_pipe").drawing())}, reverse=True)
    assert half == whole / 2


def test_no_box_lies_on_another_and_none_leaves_the_drawing():
    drawn = Gantt("dual_pipe", stages=8, micro_batches=20).drawing()
    rows: dict[float, list[Box]] = {}
    for box in boxes(drawn):
        rows.setdefault(box.y, []).append(box)
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        assert all(one.x + one.width <= other.x for one, other in pairwise(row))
    assert all(
        box.x > 0 and box.x + box.width <= drawn.width and box.y + box.height < drawn.height for box in boxes(drawn)
    )


def test_the_three_kinds_of_work_differ_without_colour():
    greys = sorted(
        sum(share * int(colour[at : at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
        for colour, _ in COLOURS.values()
    )
    assert min(after - one for one, after in pairwise(greys)) > 40


def test_times_below_zero_and_unknown_schedules_are_refused():
    with pytest.raises(ValueError, match="forward=-1: expected a number above 0"):
        Gantt(forward=-1).drawing()
    with pytest.raises(
        UsageError, match="no schedule '2f2b'; known are gpipe, 1f1b, eager_1f1b, zb_h1, zb_h2, dual_pipe, interleaved"
    ):
        Gantt("2f2b").drawing()


@pytest.mark.parametrize(("schedule", "boxes"), [("1f1b", "4,112"), ("zb_h1", "6,168"), ("dual_pipe", "4,122")])
def test_more_than_4096_boxes_are_refused_before_anything_is_simulated(schedule, boxes, monkeypatch):
    monkeypatch.setattr(gantt, "simulate", lambda *_: pytest.fail("simulated"))
    with pytest.raises(
        UsageError,
        match=f"{schedule}: stages=4, micro_batches=514 and . chunks are {boxes} boxes; expected 4,096 at most",
    ):
        Gantt(schedule, micro_batches=514).drawing()


def test_times_are_set_as_fractions_of_a_unit():
    drawn = with_settings(Gantt(), dict.fromkeys(("forward", "backward", "weight", "transfer"), "0.2"))
    assert (drawn.forward, drawn.backward, drawn.weight, drawn.transfer) == (0.2, 0.2, 0.2, 0.2)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dual_pipe"])
def test_no_stages_are_refused_by_their_name(schedule):
    with pytest.raises(UsageError, match=f"{schedule}: stages=0; expected 1 or more"):
        Gantt(schedule, stages=0).drawing()
