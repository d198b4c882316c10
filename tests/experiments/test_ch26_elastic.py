"""A training that loses half of its devices goes on."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from lab.experiments.ch26_elastic import EXPERIMENT, RATE, Loses, at_rate
from lab.harness.question import answer
from lab.resilience.training import ResumableTraining
from tests.long_tests import long

pytestmark = [pytest.mark.compiles, long]


def test_with_its_batch_kept_a_training_on_half_of_the_devices_has_the_same_curve():
    result = answer(EXPERIMENT, {"before": "20", "after": "20"})
    assert result.is_fine and [claim.verdict for claim in result.claims] == ["confirmed", "calculated"]


def test_another_learning_rate_is_what_the_optimizer_would_have_done_with_it():
    import optax

    from lab.programs.strategies import program

    training = Loses().training("fsdp=2", 8)
    losses = [loss for _, loss in islice(at_rate(training, training.start(), 10 * RATE), 4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "optimizer", lambda: optax.adamw(10 * RATE, b1=0.9, b2=0.95, weight_decay=0.1))
        other = ResumableTraining(replace(training.shape), training.mesh)
        expected = [loss for _, loss in islice(other.steps(other.start()), 4)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    unchanged = [loss for _, loss in islice(training.steps(training.start()), 4)]
    assert max(abs(np.array(losses) / unchanged - 1)) > 1e-3
