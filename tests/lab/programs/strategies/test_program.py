"""Where the declared style holds gradients."""

import pytest

from lab.programs.strategies.program import _places
from lab.programs.strategies.strategy import TABLE
from lab.programs.strategies.zero1 import ZERO1
from lab.programs.strategies.zero3 import ZERO3


@pytest.mark.parametrize("strategy", [ZERO1, ZERO3], ids=["zero1", "zero3"])
def test_an_embedding_s_gradient_alone_lies_as_the_weights_before_it_lies_as_the_master(strategy):
    assert _places(strategy, TABLE) == [(strategy.weights, TABLE), (strategy.master, TABLE)]
    assert _places(strategy, ("embed", "mlp")) == [(strategy.master, ("embed", "mlp"))]
