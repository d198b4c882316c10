"""What policies of `jax.checkpoint` ask to be moved to the host, as the traced program says."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from lab.compile.offloads import asked

POLICIES = jax.checkpoint_policies


def layer(x: jax.Array) -> jax.Array:
    return jnp.sin(checkpoint_name(jnp.sin(x), "inner")).sum()


def named(*names: str) -> Any:
    return POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=["kept"],
        names_which_can_be_offloaded=list(names),
        offload_src="device",
        offload_dst="pinned_host",
    )


def traced(function: Callable) -> Any:
    return jax.jit(function).trace(jax.ShapeDtypeStruct((8, 8), jnp.float32)).jaxpr


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        (named("inner", "outer"), ("inner", "outer")),
        (POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"), ("offload_dot_with_no_batch_dims",)),
        (POLICIES.save_only_these_names("inner"), ()),
        (None, ()),
    ],
    ids=["names", "products", "saved", "no policy"],
)
def test_a_differentiated_function_offloads_what_its_policy_names(policy, names):
    assert asked(traced(jax.grad(jax.checkpoint(layer, policy=policy))).jaxpr) == names


def test_a_function_that_is_not_differentiated_saves_nothing_and_asks_for_nothing():
    assert asked(traced(jax.checkpoint(layer, policy=named("inner"))).jaxpr) == ()


def test_a_policy_inside_a_loop_is_found():
    def loop(x: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, _: (jnp.sin(checkpoint_name(jnp.sin(x), "inner")), None), policy=named("inner"))
        return jax.lax.scan(body, x, length=3)[0].sum()

    assert asked(traced(jax.grad(loop)).jaxpr) == ("inner",)
