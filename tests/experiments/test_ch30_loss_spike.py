"""Where float16 overflows first, in small."""

import numpy as np
import pytest

from lab.experiments import ch30_loss_spike
from lab.experiments.ch30_loss_spike import IGNORED, SKIPPED, Spiked, first_over, trained
from tests.long_tests import long

pytestmark = pytest.mark.compiles

SOON = Spiked(steps=5, grows_every=1, start=17, layers=2)


@long
def test_the_step_that_overflows_has_a_gradient_beyond_float16_and_is_skipped():
    skipped, ignored = trained(SOON, SKIPPED), trained(SOON, IGNORED)
    at = skipped.overflow
    assert at == ignored.overflow > 0 and first_over(skipped)[1] > 16
    assert len(skipped.exponents) == 3 + 2 * 9
    assert skipped.scales[at + 1] == skipped.scales[at] / 2
    assert np.isfinite(skipped.losses).all() and np.isnan(ignored.losses[at + 1 :]).all()
    assert not [claim for claim in ch30_loss_spike.claims(SOON) if claim.is_undisputed_refutation]
