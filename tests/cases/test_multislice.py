"""Case c35: two TPU slices, and what crosses the network between them.

The text numbers partitions within one slice and spells what leaves it as send and recv.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Ledger, axes_label
from tests.cases.compiling import ahead_of_time_tpu, array, compiled, mesh_on

pytestmark = [pytest.mark.compiles, ahead_of_time_tpu]
TWO_SLICES = "tpu:v5e:2x4*2"


def gradient_step(w, x_BD):
    gradient = jax.grad(lambda w: jnp.sum((jnp.tanh(x_BD @ w["in"]) @ w["out"]) ** 2))(w)
    return jax.tree.map(jnp.subtract, w, gradient)


def step_on(mesh: Mesh) -> jax.stages.Compiled:
    weights = {"in": array(mesh, (512, 1024), None, "model"), "out": array(mesh, (1024, 512), "model")}
    return compiled(
        mesh, gradient_step, weights, array(mesh, (256, 512), "data"), out={"in": P(None, "model"), "out": P("model")}
    )


@cache
def slices_on_data() -> Mesh:
    return mesh_on(TWO_SLICES, data=2, model=8)


def by_link(ledger: Ledger) -> list[tuple]:
    return sorted((t.link, str(t.kind), axes_label(t), t.payload_bytes) for t in ledger.transfers)


def test_with_slices_on_data_two_gradients_of_262144_bytes_cross_the_network():
    """c35: and activations of as many bytes are reduced over `model`, inside a slice."""
    ledger = lab.inspect(step_on(slices_on_data()), mesh=slices_on_data(), target=TWO_SLICES)
    gradients = 2 * [("dcn", "send_recv", "data", 262_144)]
    assert by_link(ledger) == [*gradients, ("ici", "all_reduce", "model", 262_144)]
    assert ledger.devices == 16


def test_with_model_across_slices_65536_bytes_of_activations_cross_the_network():
    """c35: between a reduce-scatter and an all-gather inside each slice; gradients stay inside."""
    halves = np.moveaxis(slices_on_data().devices.reshape(2, 2, 4), 0, 1)
    program = step_on(Mesh(halves.reshape(2, 8), ("data", "model")))
    ledger = lab.inspect(program, mesh=Mesh(halves, ("data", "model_high", "model_low")), target=TWO_SLICES)
    assert by_link(ledger) == [
        ("dcn", "send_recv", "model_high", 65_536),
        ("ici", "all_gather", "model_low", 262_144),
        ("ici", "all_reduce", "data", 524_288),
        ("ici", "reduce_scatter", "model_low", 262_144),
    ]


def test_half_an_axis_inside_a_slice_and_half_between_slices_is_no_axis_of_the_mesh():
    """c35: as above, on the program's own mesh."""
    halves = np.moveaxis(slices_on_data().devices.reshape(2, 2, 4), 0, 1)
    mesh = Mesh(halves.reshape(2, 8), ("data", "model"))
    ledger = lab.inspect(step_on(mesh), mesh=mesh, target=TWO_SLICES)
    assert {str(t.kind): t.axes for t in ledger.transfers} == {
        "send_recv": None,
        "all_gather": None,
        "reduce_scatter": None,
        "all_reduce": ("data",),
    }


def test_devices_as_they_come_on_an_8x2_mesh_gather_two_gradients_of_1048576_bytes():
    """c35: each reduced in its slice, over the network by quarters, and gathered again."""
    devices = np.array(sorted(slices_on_data().devices.flat, key=lambda device: device.id))
    program = step_on(Mesh(devices.reshape(8, 2), ("data", "model")))
    ledger = lab.inspect(
        program, mesh=Mesh(devices.reshape(2, 4, 2), ("data_high", "data_low", "model")), target=TWO_SLICES
    )
    assert by_link(ledger) == [
        *2 * [("dcn", "send_recv", "data_high", 262_144)],
        *2 * [("ici", "all_gather", "data_low", 1_048_576)],
        ("ici", "all_reduce", "model", 65_536),
        *2 * [("ici", "reduce_scatter", "data_low", 1_048_576)],
    ]
