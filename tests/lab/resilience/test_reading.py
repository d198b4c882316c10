"""How chunks of a store are divided among devices, and how what they read gets where it belongs."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.resilience.reading import by_chunks, mover, way


def sharding(text, *spec):
    axes = Axes.parse(text)
    return NamedSharding(make_mesh(parse_target(f"cpu:{axes.size}"), axes), PartitionSpec(*spec))


def parts(shape, chunk, after):
    """Into how many each dim is cut."""
    local = by_chunks(shape, chunk, after).shard_shape(shape)
    return tuple(size // each for size, each in zip(shape, local, strict=True))


@pytest.mark.parametrize(
    ("chunk", "after", "found"),
    [
        ((6, 48), sharding("a=8", None, "a"), (8, 1)),  # Columns cut each of the eight chunks into eight.
        ((48, 6), sharding("a=8", "a"), (1, 8)),
        ((24, 12), sharding("a=8", "a"), (2, 4)),  # Cut along both dims by parts of the one axis.
        ((16, 24), sharding("a=6", "a"), (3, 2)),
        ((6, 6), sharding("a=2,b=4", "b", "a"), (4, 2)),  # As asked: no chunk is cut.
        ((48, 48), sharding("a=8", "a"), (8, 1)),  # One chunk, which all must read.
        ((6, 48), sharding("a=8"), (8, 1)),  # Replicas, too, read an eighth each.
    ],
)
def test_chunks_are_read_once_where_they_can_be(chunk, after, found):
    assert parts((48, 48), chunk, after) == found


def test_of_layouts_that_read_as_little_the_one_nearest_to_what_is_asked_is_chosen():
    after = sharding("a=2,b=4", "b", "a")
    assert by_chunks((48, 48), (6, 6), after).is_equivalent_to(after, 2)
    assert by_chunks((48, 48), (24, 12), sharding("a=2,b=4", "a")).spec[0] == "a.0"


def test_axes_that_go_together_are_one():
    after = sharding("a=8", "a")
    before, there, mesh = way(by_chunks((48, 48), (48, 6), after), after, 2)
    assert (str(before), str(there), dict(mesh.shape)) == ("P(-, a.0)", "P(a.0, -)", {"a.0": 8})
    before, there, mesh = way(by_chunks((48, 48), (24, 12), after), after, 2)
    assert (str(before), str(there), dict(mesh.shape)) == ("P(a.0, a.1)", "P((a.0, a.1), -)", {"a.0": 2, "a.1": 4})


@pytest.mark.compiles
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int32"])
def test_what_is_moved_keeps_its_bits_whatever_mesh_is_set(dtype):
    after, size = sharding("a=2,b=4", "b", "a"), np.dtype(dtype).itemsize
    x = np.frombuffer(np.random.default_rng(0).bytes(48 * 48 * size), dtype).reshape(48, 48)
    read = {"x": jax.device_put(x, by_chunks(x.shape, (6, 48), after))}
    with jax.set_mesh(after.mesh):
        found = mover(read, {"x": after})(read)["x"]
    assert np.asarray(found).tobytes() == x.tobytes() and found.sharding == after
