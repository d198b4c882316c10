"""Batches of experiments on smaller meshes."""

import pytest

from lab.harness.decoder.composed import SMALL_SHAPE
from lab.meshes.axes import Axes
from lab.resilience.experiments import resized


@pytest.mark.parametrize(("data", "batch", "accumulation"), [(64, 2048, 32), (127, 2032, 16), (96, 2016, 21)])
def test_a_batch_is_kept_in_more_micro_batches_or_loses_few_sequences(data, batch, accumulation):
    sizes = SMALL_SHAPE.choosing(batch=2048, accumulation=16)
    before, after = (Axes.of({"data": n, "pipe": 16}) for n in (128, data))
    found = resized(sizes, before, after)
    assert (found.batch, found.accumulation) == (batch, accumulation)
