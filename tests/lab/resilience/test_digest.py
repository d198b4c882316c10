"""Digests see a bit, and no sharding."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.resilience.digest import changed, digests

pytestmark = pytest.mark.compiles


ONE = NamedSharding(make_mesh(parse_target("cpu:1"), Axes.parse("a=1")), PartitionSpec())


def one(x):
    return digests({"x": jax.device_put(x, ONE)})["x"]


def test_a_digest_is_the_same_under_every_sharding():
    mesh = make_mesh(parse_target("cpu:8"), Axes.parse("a=2,b=4"))
    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    specs = [(), ("a", "b"), ("b", "a"), (("a", "b"), None), (None, "a")]
    found = {digests({"x": jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))})["x"] for spec in specs}
    turned = jax.sharding.Mesh(mesh.devices[::-1, ::-1], mesh.axis_names)
    found |= {digests({"x": jax.device_put(x, NamedSharding(turned, PartitionSpec(*spec)))})["x"] for spec in specs[:3]}
    assert found == {one(x)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_one_bit_of_any_type_is_seen(dtype):
    x = np.zeros((4, 8), dtype)
    other = x.copy()
    other.view(np.uint8).reshape(-1)[13] ^= 1
    assert one(x) != one(other)


def test_elements_that_change_places_are_seen_and_so_are_signs():
    x = np.arange(1, 9, dtype=np.float32)
    assert len({one(x), one(x[::-1]), one(-x), one(x.reshape(2, 4).T.reshape(-1))}) == 4


def test_negative_zero_is_another_number():
    assert one(np.float32([0.0])) != one(np.float32([-0.0]))


def test_a_copy_on_one_device_that_differs_is_seen():
    mesh = make_mesh(parse_target("cpu:8"), Axes.parse("a=2,b=4"))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    copies = [jax.device_put(x[2 * (number % 4) :][:2], device) for number, device in enumerate(mesh.devices.flat)]
    sharding = NamedSharding(mesh, PartitionSpec("b"))
    expected = {"x": one(x)}
    assert changed({"x": jax.make_array_from_single_device_arrays(x.shape, sharding, copies)}, expected) == ()
    copies[5] = copies[5].at[0, 0].add(1)
    assert changed({"x": jax.make_array_from_single_device_arrays(x.shape, sharding, copies)}, expected) == ("x",)
