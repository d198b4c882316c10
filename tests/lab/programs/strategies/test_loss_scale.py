"""Losses of float16 are scaled: what a step does whose gradients overflow, and one whose do not."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.harness.decoder.step import SMALL, random_tokens
from lab.meshes.errors import UsageError
from lab.programs.pipelines.program import PipelineShape, refuse
from lab.programs.strategies import loss_scale, program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.zero3 import ZERO3
from tests.cases.compiling import cpu

pytestmark = pytest.mark.compiles

FLOAT16 = replace(SMALL, layers=2, dtype="f16")


@cache
def float16_step():
    return program.step(ZERO3, "explicit", FLOAT16, cpu(fsdp=2))


def stepped(scale: float) -> tuple[program.TrainState, program.TrainState, program.Metrics]:
    """The state before and after a step whose scale is this."""
    function, shapes = float16_step()
    before = program.initial_state(ZERO3, FLOAT16)
    before = before._replace(moments=(*before.moments[:-1], loss_scale.initial(scale)))
    placed = jax.tree.map(lambda x, like: jax.device_put(np.asarray(x), like.sharding), before, shapes[0])
    after, metrics = function(placed, *random_tokens(FLOAT16))
    return before, after, metrics


def test_a_step_whose_gradients_overflow_changes_nothing_and_halves_the_scale():
    before, after, metrics = stepped(2.0**40)
    assert not np.isfinite(metrics.gradient_norm) and np.isfinite(metrics.loss)
    assert loss_scale.of_moments(after.moments) == (2.0**39, 0)
    for old, new in zip(*map(jax.tree.leaves, (before.master, after.master)), strict=True):
        np.testing.assert_array_equal(new, old)
    assert all(not np.any(x) for x in jax.tree.leaves(after.moments[:-1]))


def test_a_step_in_range_has_the_gradients_of_the_loss_itself():
    _, once, small = stepped(2.0**6)
    _, _, large = stepped(2.0**7)
    assert float(small.gradient_norm) == pytest.approx(float(large.gradient_norm), rel=1e-3)
    assert loss_scale.of_moments(once.moments) == (2.0**6, 1)


def test_the_scale_doubles_after_2000_finite_steps():
    last = loss_scale.LossScale(jnp.float32(8), jnp.int32(1999))
    assert loss_scale.after(last, jnp.bool_(True)) == (16, 0)
    assert loss_scale.after(last, jnp.bool_(False)) == (4, 0)


@pytest.mark.parametrize(("norm", "kept"), [(1.0, "new"), (np.inf, "old"), (np.nan, "old")])
def test_an_infinite_norm_leaves_a_step_out_as_one_that_is_no_number_does(norm, kept):
    old, new = ({"w": jnp.float32(x)} for x in (1, 2))
    scale = loss_scale.initial(8)
    weights, (moments, after) = loss_scale.where_finite(jnp.float32(norm), (new, (new,)), (old, (old, scale)))
    assert weights == moments == {"new": new, "old": old}[kept]
    assert after.scale == (8 if kept == "new" else 4)


def test_bfloat16_has_no_scale():
    assert loss_scale.of_moments(program.initial_shapes(replace(SMALL, dtype="bf16"), False).moments) is None


def test_a_pipeline_refuses_float16():
    with pytest.raises(UsageError, match="dtype=f16 in a pipeline"):
        refuse(DATA_PARALLEL, PipelineShape(dtype="f16"), ("pipe",))
