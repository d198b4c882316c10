"""Compositions that nobody chose: all axes, schedules and layouts of stages, the same for the same seed."""

from lab.harness import suite
from lab.harness.decoder.drawn_compositions import drawn_compositions
from lab.meshes.axes import AXIS_ORDER, PIPE

EXPERIMENTS = suite.composed(suite.parted(suite.load())[0])


def test_all_axes_are_drawn_two_to_five_at_once_and_the_same_seed_draws_the_same():
    runs = drawn_compositions(EXPERIMENTS, 30)
    axes = [run.axes for run in runs]
    assert {name for each in axes for name in each.names} == set(AXIS_ORDER)
    assert {len(each.names) for each in axes} >= {2, 3, 4}
    assert 5 < sum(PIPE in each.names for each in axes) < 25
    shapes = [run.experiment.parameters for run in runs]
    assert any(shape.stage_layers for shape in shapes)
    in_pipelines = [run.experiment.parameters for run in runs if PIPE in run.axes.names]
    assert any(shape.dense_layers for shape in in_pipelines) and any(shape.mtp for shape in in_pipelines)

    def drawn(seed: int) -> list[tuple]:
        return [(r.target, r.axes, r.experiment.parameters) for r in drawn_compositions(EXPERIMENTS, 5, seed)]

    assert drawn(0) == drawn(0) != drawn(1)
