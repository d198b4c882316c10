"""What `lab verify --full` runs beside the experiments' own sizes."""

import pytest

from lab import suite
from meshes import plugins


def _real() -> list[suite.Run]:
    return suite.at_real_size(suite.parted(suite.load())[0])


def test_nine_layouts_are_run_at_their_real_size_in_every_style():
    runs = _real()
    sizes = {run.experiment.name: run.experiment.parameters for run in runs}
    assert {name: (shape.layers, shape.embed, shape.mlp, shape.vocab, shape.length, shape.batch) for name, shape in sizes.items()} == {
        name: (16 if name == "ch14_data_parallel" else 32, 4096, 14336, 128256, 8192, 16) for name in suite.LAYOUTS
    }
    assert [run.style for run in runs if run.experiment.name == "ch20_zero3"] == ["declared", "typed", "explicit"]


@pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")
def test_llama3_8b_under_tensor_parallelism_sums_activations_five_times_a_layer_and_twice_beside():
    (run,) = [run for run in _real() if (run.experiment.name, run.style) == ("ch15_tensor_parallel", "explicit")]
    (result,) = suite.results([run])
    assert (str(result.verdict), result.is_fine, result.settlement.unexplained, result.settlement.missing) == ("explained", True, (), ())
    activations = 4 * 8192 * 4096 * 2
    assert sum(t.executions for t in result.measured.split().transfers if t.payload_bytes == activations) == 5 * 32 + 2
