import pytest

from lab.harness.decoder.three_steps import of_the_model, reference_steps
from lab.harness.experiment import Experiment
from lab.harness.registry import load, names
from tests.long_tests import long

MODELS = {
    of_the_model(experiment.numeric_parameters): name
    for name in names()
    if isinstance(experiment := load(name), Experiment) and experiment.step
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, id=name, marks=long if name == "ch35_deepseek_v3" else ()) for shape, name in MODELS.items()],
)
def test_gradients_of_the_second_step_are_clipped_and_those_of_the_others_are_not(shape):
    first, second, third = reference_steps(shape).norms
    assert max(first, third) < 0.8 and second > 1.2
