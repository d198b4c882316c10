"""Each check finds the fault that is injected, and nothing without one."""

import time
from itertools import count

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.resilience.checkpoints import Snapshot
from lab.resilience.silent import is_spike, odd_copies, replay, seconds_of_all, stragglers
from lab.resilience.training import SMALL, ResumableTraining
from lab.resilience.worker import Work, kill, listen, start

pytestmark = pytest.mark.compiles


def mesh(text):
    axes = Axes.parse(text)
    return make_mesh(parse_target(f"cpu:{axes.size}"), axes)


def flipped(x, device):
    """One bit of one device's shard."""
    blocks = []
    for shard in x.addressable_shards:
        block = np.array(shard.data)
        if shard.device.id == device:
            block.reshape(-1).view(np.uint32)[3] ^= 1 << 20
        blocks.append(jax.device_put(block, shard.device))
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, blocks)


@pytest.mark.parametrize(("text", "odd"), [("data=4,tensor=2", {5}), ("data=2,tensor=4", {1, 5})])
def test_a_flipped_bit_is_found_on_its_device(text, odd):
    sharding = NamedSharding(mesh(text), PartitionSpec(None, "tensor"))
    w, v = (
        jax.device_put(np.random.default_rng(seed).normal(size=(8, 16)).astype(np.float32), sharding) for seed in (0, 1)
    )
    assert odd_copies({"w": w, "v": v}) == ()
    found = odd_copies({"w": flipped(w, 5), "v": v})
    # Of two copies nobody knows which is right.
    assert {copy.device for copy in found} == odd
    assert {(copy.array, copy.of) for copy in found} == {("w", 4 if len(odd) == 1 else 2)}


def test_what_is_split_has_no_copies():
    w = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh("data=8"), PartitionSpec("data")))
    assert odd_copies({"w": flipped(w, 3)}) == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 31.0])
def test_a_loss_that_is_no_number_and_a_norm_that_jumps_are_found(value):
    assert is_spike(value, [2.0, 3.0, 4.0], factor=10)
    assert not is_spike(29.0, [2.0, 3.0, 4.0], factor=10)
    assert not is_spike(5.0, [], factor=10)


def test_replaying_a_step_finds_one_that_computed_otherwise():
    training = ResumableTraining(SMALL, mesh("fsdp=2"))
    snapshot, _ = next(training.steps(training.start()))
    assert replay(training.steps, snapshot) == ()
    faulty = count()

    def steps(before):
        for after, loss in training.steps(before):
            # A device that gets it wrong once.
            yield (
                (
                    after
                    if next(faulty)
                    else after._replace(state=jax.tree.map(lambda x: flipped(x, 1) if x.ndim == 2 else x, after.state))
                ),
                loss,
            )

    assert "master embedding value" in replay(steps, snapshot)


def test_the_process_that_takes_longer_than_the_others_is_named():
    assert stragglers([1.0, 1.1, 0.9, 2.0]) == (3,)
    assert stragglers([1.0, 1.1, 0.9, 1.2]) == ()
    assert stragglers([1.0, 2.0]) == (1,)
    assert stragglers([1.0]) == ()


class Faulty:
    """Of two processes the last one sleeps, and has a bit flipped; a loss is what the checks say of that."""

    def __init__(self, mesh):
        self.like = {}
        ones = np.ones((2, 8), np.float32)
        self.w = jax.make_array_from_callback(
            ones.shape, NamedSharding(mesh, PartitionSpec()), lambda index: ones[index]
        )

    def start(self):
        return Snapshot({}, jax.random.key(0), 0, 0)

    def steps(self, snapshot):
        good, bad = self.w, flipped(self.w, next(d.id for d in self.w.sharding.device_set if d.process_index == 1))
        for step, w in enumerate((good, bad), 1):
            began = time.perf_counter()
            time.sleep(0.2 if jax.process_index() == 1 else 0.01)
            slow = stragglers(seconds_of_all(time.perf_counter() - began))
            yield Snapshot({}, snapshot.key, step, step), (slow, [(odd.array, odd.of) for odd in odd_copies({"w": w})])


def test_two_processes_find_the_slow_one_and_that_their_copies_differ(tmp_path):
    started = start(Work(tmp_path, processes=2, steps=2, every=100, make=Faulty))
    try:
        events, hung = listen(started[0], lambda event: event.what == "done")
    finally:
        kill(started)
    assert not hung
    assert [event.said for event in events if event.what == "step"] == [((1,), []), ((1,), [("w", 2), ("w", 2)])]
