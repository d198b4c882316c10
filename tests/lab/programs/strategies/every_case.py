"""Every layout, style, recomputation and accumulation, tied and not, where `test_numerics` takes one case in twelve.

Collected only by name: `pytest tests/lab/programs/strategies/every_case.py`, 540 cases of about two seconds.
"""

import pytest

from lab.programs.strategies import program
from tests.lab.programs.strategies.layouts import EVERY_CASE
from tests.lab.programs.strategies.test_numerics import (
    assert_equal_to_one_device,
    first_state,
    loss_and_gradients,
    on_8_devices,
)


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_loss_and_every_gradient_are_those_of_one_device(case):
    found = on_8_devices(program.gradients, case, first_state(case))
    assert_equal_to_one_device(found, loss_and_gradients(case.shape), of=case.shape)
