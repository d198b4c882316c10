"""Steps of sizes that nobody looked at before settle on TPUs as well; `lab verify --full` runs all layouts, declared
and explicit, on two chips."""

from random import Random

import pytest

from lab.harness import suite
from lab.harness.decoder.drawn_sizes import drawn
from lab.harness.experiment import Experiment
from lab.harness.registry import load, names
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from tests.long_tests import one_in

pytestmark = pytest.mark.compiles


def layouts() -> list[Experiment]:
    return [entry for name in names() if getattr(entry := load(name), "real_size", None) is not None]


def test_steps_of_drawn_sizes_are_no_two_alike_and_the_same_again():
    runs = suite.at_unseen_sizes(layouts())
    assert {(run.experiment.name, run.style, str(run.target)) for run in runs} == {
        (name, style, target)
        for name, styles in ((layout.name, layout.styles) for layout in layouts())
        for style in {"declared", "explicit"} & set(styles)
        for target in ("tpu:v5p:2x2x4", "tpu:v5e:2x4")
    }
    shapes = [run.experiment.parameters for run in runs]
    assert len(set(shapes)) == len(runs)
    assert shapes == [run.experiment.parameters for run in suite.at_unseen_sizes(layouts())]


@pytest.mark.parametrize("mesh", ["data=16", "fsdp=2,tensor=4"])
def test_of_a_hundred_drawn_shapes_each_splits_over_its_mesh_and_no_two_sizes_are_equal(mesh):
    axes, draw = Axes.parse(mesh), Random(1)
    for shape in (drawn(draw, axes) for _ in range(100)):
        sizes = [
            shape.layers,
            shape.batch,
            shape.length,
            shape.embed,
            shape.kv_heads,
            shape.queries,
            shape.head_dim,
            shape.mlp,
            shape.vocab,
        ]
        assert len(set(sizes)) == 9
        tensor = axes.shape.get("tensor", 1)
        assert shape.batch % (axes.size // tensor * shape.accumulation) == shape.embed % (axes.size // tensor) == 0
        assert shape.length % tensor == shape.kv_heads % tensor == shape.mlp % tensor == shape.vocab % tensor == 0


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
@pytest.mark.parametrize(
    ("name", "style"),
    one_in(2, [("ch20_zero3", "declared"), ("ch20_zero1", "explicit"), ("ch17_sequence_parallel", "explicit")]),
)
def test_a_step_of_unseen_sizes_on_8_tpus_leaves_nothing_unexplained_or_missing(name, style):
    on_8 = parse_target("tpu:v5e:2x4")
    (run,) = [
        run
        for run in suite.at_unseen_sizes(layouts())
        if (run.experiment.name, run.style, run.target) == (name, style, on_8)
    ]
    (result,) = suite.results([run])
    assert result.failure is None
    assert (result.settlement.unexplained, result.settlement.missing) == ((), ())
    assert str(result.verdict) in ("exact", "explained", "attributed")
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]
