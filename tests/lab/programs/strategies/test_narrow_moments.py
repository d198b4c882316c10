"""Moments that are kept in float8, with a scale for each block."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.core.known import known
from lab.harness.decoder.step import SMALL, random_tokens
from lab.meshes.axes import Axes
from lab.programs.memory.state import static_bytes
from lab.programs.strategies import program
from lab.programs.strategies.narrow_moments import narrowed, widened
from lab.programs.strategies.wire import Narrow
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.precision import moments_in
from tests.cases.compiling import cpu

pytestmark = pytest.mark.compiles

BLOCKS = Narrow("f8e4m3fn", block=8)
NARROW = ZERO3 | moments_in(BLOCKS)
SHAPE = replace(SMALL, layers=2)


def moments():
    adam, *others = program.initial_shapes(SHAPE, False).moments
    draw = np.random.default_rng(0)
    mu, nu = (jax.tree.map(lambda x: draw.standard_normal(x.shape, np.float32), tree) for tree in (adam.mu, adam.nu))
    return (adam._replace(count=np.int32(0), mu=mu, nu=jax.tree.map(np.square, nu)), *others)


def test_what_is_kept_and_widened_again_errs_by_float8s_rounding():
    before = moments()
    after = jax.jit(lambda x: widened(narrowed(x, BLOCKS), BLOCKS))(before)
    for name, most in (("mu", 0.03), ("nu", 0.06)):
        for x, y in zip(*(jax.tree.leaves(getattr(each[0], name)) for each in (before, after)), strict=True):
            error = float(jnp.linalg.norm(y - x) / jnp.linalg.norm(x))
            assert error < most and (error > 0.01 or x.ndim < 3)


def test_a_second_moment_is_zero_only_where_its_block_is():
    adam, *others = moments()
    one = jax.tree.map(lambda x: np.where(np.arange(x.shape[-1]) == 0, np.ones_like(x), 0), adam.nu)
    kept = widened(narrowed((adam._replace(nu=one), *others), BLOCKS), BLOCKS)[0].nu
    query = kept["layers"]["query"].get_value()
    assert (query[..., 1:8] > 0).all() and not np.any(query[..., 8:])


def test_a_compiled_step_holds_the_bytes_that_theory_says_and_the_loss_falls():
    axes = Axes.of({"fsdp": 2})
    function, shapes = program.step(NARROW, "explicit", SHAPE, cpu(fsdp=2))
    compiled = function.lower(*shapes).compile()
    assert known(compiled.memory_analysis()).argument_size_in_bytes == static_bytes(NARROW, SHAPE, axes)
    assert static_bytes(NARROW, SHAPE, axes) < 0.62 * static_bytes(ZERO3, SHAPE, axes)
    state = jax.device_put(program.initial_state(NARROW, SHAPE), jax.tree.map(lambda x: x.sharding, shapes[0]))
    losses = []
    for _ in range(5):
        state, metrics = compiled(state, *random_tokens(SHAPE))
        losses.append(float(metrics.loss))
    assert losses == sorted(losses, reverse=True)
