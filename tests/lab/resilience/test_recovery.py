"""What a device lacks after a loss, against sets of elements."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.resilience.recovery import elements, recovered, sources


def sharding(text, *spec):
    axes = Axes.parse(text)
    return NamedSharding(make_mesh(parse_target(f"cpu:{axes.size}"), axes), PartitionSpec(*spec))


NUMBERS = np.arange(48 * 48, dtype=np.int32).reshape(48, 48)
CASES = [
    (sharding("a=8", "a"), sharding("a=2,b=4", "a", "b"), ()),
    (sharding("a=8", "a"), sharding("a=6", None, "a"), (6, 7)),
    (sharding("a=8", "a"), sharding("a=4", "a"), (4, 5, 6, 7)),
    (sharding("a=2,b=4", None, "b"), sharding("a=4", "a"), (4, 5, 6, 7)),
    (sharding("a=2,b=4", "a", "b"), sharding("a=3,b=2", "b", "a"), (0, 7)),
]


@pytest.mark.parametrize(("before", "after", "lost"), CASES)
def test_a_device_keeps_what_it_has_and_takes_from_the_store_what_no_survivor_has(before, after, lost):
    x = jax.device_put(NUMBERS, before)
    gone = {device for device in jax.devices() if device.id in lost}
    held = {
        shard.device: set(np.asarray(shard.data).flat) for shard in x.addressable_shards if shard.device not in gone
    }
    alive = set().union(*held.values())
    needed = {
        shard.device: set(np.asarray(shard.data).flat) for shard in jax.device_put(NUMBERS, after).addressable_shards
    }
    for device, found in sources(NUMBERS.shape, before, after, gone).items():
        has = held.get(device, set())
        assert sum(map(elements, found.kept)) == len(needed[device] & has)
        assert sum(elements(box) for _, box in found.from_peers) == len((needed[device] & alive) - has)
        assert sum(map(elements, found.from_store)) == len(needed[device] - alive)


@pytest.mark.parametrize(("before", "after", "lost"), CASES)
def test_the_array_is_whole_again_with_the_store_for_what_is_lost(before, after, lost):
    gone = {device for device in jax.devices() if device.id in lost}
    read = []

    def store(index):
        read.append(NUMBERS[index].size)
        return NUMBERS[index]

    found, _ = recovered(jax.device_put(NUMBERS, before), after, store, gone)
    assert (np.asarray(found) == NUMBERS).all() and found.sharding == after
    wanted = sources(NUMBERS.shape, before, after, gone).values()
    assert sum(read) == sum(elements(box) for each in wanted for box in each.from_store)
