"""What the picture of strategies shows, read back from its shapes."""

from math import log10

import pytest

from lab.programs.composed.lattice import lattice
from lab.programs.models.shape import DecoderShape
from lab.report.drawing import Dot, Label, Logarithmic
from lab.report.strategies import BOTTOM, LEFT, RIGHT, TOP, picture

FOUND = lattice(DecoderShape().shrunk(layers=16, batch=64, embed=64, vocab=128), 8)
DRAWN = picture(FOUND, "eight")


def dots() -> dict[str, Dot]:
    return {shape.told: shape for shape in DRAWN.shapes if isinstance(shape, Dot) and shape.told}


def test_every_strategy_has_a_dot_inside_the_frame():
    assert set(dots()) == {point.name for point in FOUND.points}
    assert all(LEFT < dot.x < RIGHT and TOP < dot.y < BOTTOM for dot in dots().values())


def test_dots_lie_by_bytes_on_both_scales():
    points = {point.name: point for point in FOUND.points}
    one, other = dots()["DP 8"], dots()["TP 8"]
    third = dots()["ZeRO-3 8"]

    def share(value):
        a, b, c = (log10(value(points[name])) for name in ("DP 8", "TP 8", "ZeRO-3 8"))
        return (c - a) / (b - a)

    assert (third.x - one.x) / (other.x - one.x) == pytest.approx(share(lambda point: point.sent))
    assert (third.y - one.y) / (other.y - one.y) == pytest.approx(share(lambda point: point.held))


def test_every_move_and_every_strategy_is_named():
    said = [shape.text for shape in DRAWN.shapes if isinstance(shape, Label)]
    assert {what for _, _, what in FOUND.moves if what} <= set(said)
    assert {point.name for point in FOUND.points} <= set(said)
    assert "not shown: 8 choices that these sizes do not allow" in said


def test_a_scale_has_ticks_at_1_2_and_5_inside_its_ends():
    scale = Logarithmic.around([30, 900], 0, 100)
    assert scale.ticks == [50, 100, 200, 500, 1000]
    assert (scale(scale.least), scale(scale.most)) == (0, 100)
