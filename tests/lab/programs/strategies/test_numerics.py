"""Loss and gradients of the sharded decoder against one device's, float32 on 8 fake devices, with every recomputation,
number of micro-batches and table; three whole steps are compared in tests/experiments/test_settlement.py."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.harness.decoder.step import random_tokens
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.models.decoder import initial
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.program import TrainState, mean_loss
from lab.programs.strategies.update import clipped
from tests.lab.programs.strategies.layouts import (
    EVERY_CASE,
    LAYOUTS,
    SHAPE,
    Case,
    covering,
)
from tests.long_tests import one_in

pytestmark = pytest.mark.compiles

TOLERANCE = 1e-5
"""Of the largest entry of each array."""


def assert_equal_to_one_device(found: Any, expected: Any, of: object = None) -> None:
    """Says what it is of where it is not."""
    found, expected = (jax.tree.leaves_with_path(jax.device_get(tree)) for tree in (found, expected))
    assert [path for path, _ in found] == [path for path, _ in expected]
    unit = {path: max(np.abs(x).max(), 1e-30) for path, x in expected}
    scaled = [{jax.tree_util.keystr(path): x / unit[path] for path, x in tree} for tree in (found, expected)]
    chex.assert_trees_all_close(*scaled, rtol=0, atol=TOLERANCE, custom_message=f"of {of}" if of else None)


def first_state(case: Case) -> TrainState:
    return program.state_of(case.strategy, case.shape, _weights(_plain(case.shape)))


def loss_and_gradients(shape: DecoderShape) -> tuple[jax.Array, Any]:
    """One device's, without recomputation and without micro-batches."""
    return _on_one_device(_plain(shape))


def _plain(shape: DecoderShape) -> DecoderShape:
    return replace(shape, remat="none", accumulation=1)


_weights = cache(initial)


@cache
def _on_one_device(shape: DecoderShape) -> tuple[jax.Array, Any]:
    with jax.default_matmul_precision("highest"):
        return jax.jit(jax.value_and_grad(mean_loss), static_argnums=3)(_weights(shape), *random_tokens(shape), shape)


def on_8_devices(build: Callable[..., program.Program], case: Case, state: TrainState) -> Any:
    function, shapes = build(case.strategy, case.style, case.shape, make_mesh(parse_target("cpu:8"), case.axes))
    # A step takes its state over: no two arrays of it may lie in one buffer, nor in one that a later test needs.
    arguments = jax.device_put(
        (state, *random_tokens(case.shape)), jax.tree.map(lambda x: x.sharding, shapes), may_alias=False
    )
    with jax.default_matmul_precision("highest"):
        # Half the time: the machine code is as XLA's partitioner and simplifier left it, and the numbers are the same.
        return function.lower(*shapes).compile(compiler_options={"xla_backend_optimization_level": 0})(*arguments)


@pytest.mark.parametrize("case", one_in(2, covering()), ids=str)
def test_loss_and_every_gradient_are_those_of_one_device(case):
    found = on_8_devices(program.gradients, case, first_state(case))
    assert_equal_to_one_device(found, loss_and_gradients(case.shape), of=case.shape)


def test_any_two_choices_meet_in_a_case():
    fields = ("layout", "style", "remat", "accumulation", "tied")
    for pair in combinations(fields, 2):
        met, possible = (
            {tuple(getattr(case, name) for name in pair) for case in cases} for cases in (covering(), EVERY_CASE)
        )
        assert met == possible


def test_no_two_arrays_of_a_state_lie_in_one_buffer():
    """Else a step, which takes its state over, takes one of them twice: in float32 a cast to the dtype of products is
    no copy."""
    arrays = jax.tree.leaves(program.initial_state(LAYOUTS["zero1"][0], SHAPE))
    assert len({array.unsafe_buffer_pointer() for array in arrays}) == len(arrays)


@pytest.mark.parametrize(("norm", "share"), [(0.5, 1.0), (1.0, 1.0), (4.0, 0.25)])
def test_gradients_are_scaled_to_a_norm_of_one_where_theirs_is_larger(norm, share):
    assert clipped({"w": jnp.float32(3.0)}, jnp.float32(norm)) == {"w": 3.0 * share}
