"""What policies of `jax.checkpoint` ask to be moved to the host, as the traced program says, and what is moved."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.inspection import read_program
from lab.compile.offloads import asked
from lab.core.known import known
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from tests.lab.diagnosis.diagnosing import line

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
    assert tuple(asked(traced(jax.grad(jax.checkpoint(layer, policy=policy))).jaxpr)) == names


def test_a_function_that_is_not_differentiated_saves_nothing_and_asks_for_nothing():
    assert asked(traced(jax.checkpoint(layer, policy=named("inner"))).jaxpr) == {}


def test_a_policy_inside_a_loop_is_found_with_the_line_that_names_the_value():
    def loop(x: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda x, _: (jnp.sin(checkpoint_name(jnp.sin(x), "inner")), None), policy=named("inner"))
        return jax.lax.scan(body, x, length=3)[0].sum()

    assert asked(traced(jax.grad(loop)).jaxpr) == {"inner": line(loop, 1)}


@pytest.mark.compiles
@pytest.mark.parametrize("target", ["gpu:h100:1x8", "tpu:v5e:2x4"])
def test_a_peak_leaves_out_what_a_step_keeps_on_the_host(target):
    """Layers' inputs, 8 x 4 MiB a device, are more than all temporaries of the device: XLA's own peak counts them."""
    place = parse_target(target)
    if not plugins.installed(place.platform):
        pytest.skip(f"the {place.platform} plugin is not installed")
    mesh = make_mesh(place, Axes.parse("data=8"))

    def array(size: int, *spec: str) -> Any:
        sharding = NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct((size, *(128,) * (1 + (not spec))), jnp.bfloat16, sharding=sharding)

    def loss(w_LDD: Any, x_BD: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: (jnp.sin(checkpoint_name(x, "x") @ w), None), policy=named("x"))
        return jax.lax.scan(layer, x_BD, w_LDD)[0].sum()

    args = array(8), array(2**17, "data")
    found = read_program(jax.grad(loss), args, mesh, place, source="step", until_dumped=place.platform == "tpu")
    memory = known(found.ledger.memory)
    assert memory.host_temporaries >= 8 * 2**22 > memory.temporaries
    assert memory.stays < known(memory.peak) <= memory.stays + memory.temporaries + memory.on_chip + 2**16
