"""Trainings that are killed at random instants go on from the newest committed step, to the bit."""

import os
import resource
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.resilience.checkpoints import Snapshot, committed
from lab.resilience.kills import killed, uninterrupted
from lab.resilience.worker import Work, kill, listen, start
from tests.long_tests import long

pytestmark = pytest.mark.compiles


class Arrays:
    """What a training has, without a model: a save takes all its time."""

    def __init__(self, mesh):
        self.sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self.like = {"w": jax.ShapeDtypeStruct((256, 256), np.float32, sharding=self.sharding)}

    def start(self):
        zeros = np.zeros((256, 256), np.float32)
        w = jax.make_array_from_callback(zeros.shape, self.sharding, lambda index: zeros[index])
        return Snapshot({"w": w}, jax.random.key(0), 0, 0)

    def steps(self, snapshot):
        w = snapshot.state["w"]
        for step in count(snapshot.step + 1):
            drawn = np.random.default_rng(step).normal(size=w.shape).astype(np.float32)
            parts = [(np.float32(0.5) * np.asarray(s.data) + drawn[s.index], s.device) for s in w.addressable_shards]
            blocks = [jax.device_put(*part) for part in parts]
            w = jax.make_array_from_single_device_arrays(w.shape, self.sharding, blocks)
            yield (
                Snapshot({"w": w}, snapshot.key, step, step),
                float(sum(part.sum(dtype=np.float64) for part, _ in parts)),
            )


def check(found, expected, times):
    assert sum(life.killed is not None for life in found) == times
    assert [life for life in found if life.hung] == []
    assert [life for life in found if life.of("damaged")] == []
    assert [life for life in found if not life.is_at_newest] == []
    wrong = [(step, loss) for life in found for step, loss in life.losses.items() if loss != expected[step]]
    assert wrong == []
    assert any(life.while_saving and life.killed for life in found)
    assert any(life.newest for life in found)


def work_in(folder, **chosen):
    return Work(folder / "killed", cache=folder / "cache", **chosen)


def losses_without_a_failure(work):
    return uninterrupted(replace(work, folder=work.folder.with_name("whole"), every=1000))


def test_50_kills_of_two_processes_that_save_all_the_time_load_nothing_torn(tmp_path):
    work = work_in(tmp_path, processes=2, steps=60, every=1, make=Arrays)
    check(killed(work, 50, start_s=0.2, run_s=0.15), losses_without_a_failure(work), 50)


@long
def test_200_kills_of_two_processes_load_nothing_torn(tmp_path):
    work = work_in(tmp_path, processes=2)
    check(killed(work, 200), losses_without_a_failure(work), 200)


@long
def test_50_kills_of_four_processes_load_nothing_torn(tmp_path):
    work = work_in(tmp_path, processes=4, axes="fsdp=2,tensor=2")
    check(killed(work, 50), losses_without_a_failure(work), 50)


def full():
    """A file may have 16 KiB, as where a disk is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY))


def as_nobody():
    """Permissions hold back everyone but root."""
    if os.getuid() == 0:
        os.setuid(65534)


@pytest.fixture
def folder():
    with TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


def heard(work, prepare=None):
    started = start(work, prepare)
    try:
        # Not until it ends: where Orbax could not make a folder, one of its threads waits on.
        events, hung = listen(started[0], lambda event: event.what == "done")
    finally:
        kill(started)
    assert not hung
    return events


def of(what, events):
    return [event.step for event in events if event.what == what]


@pytest.mark.parametrize("prepare", [full, as_nobody])
def test_a_training_goes_on_where_it_cannot_save_and_restarts_at_the_newest_step_that_it_could(folder, prepare):
    work = Work(folder, steps=2, every=1, make=Arrays)
    assert of("unsaved", heard(work)) == []
    assert committed(folder) == (1, 2)
    if prepare is as_nobody:
        folder.chmod(0o555)
    events = heard(replace(work, steps=5), prepare)
    assert (of("restored", events), of("step", events), of("done", events)) == ([2], [3, 4, 5], [-1])
    assert of("unsaved", events) != []
    assert committed(folder)[-1] == 2
    folder.chmod(0o755)
    events = heard(replace(work, steps=4))
    assert (of("restored", events), of("unsaved", events), committed(folder)) == ([2], [], (3, 4))


def test_two_processes_pass_over_a_step_of_which_one_cannot_read_its_shard(tmp_path):
    work = Work(tmp_path, axes="a=2", processes=2, steps=2, every=1, make=Arrays)
    heard(work)
    assert committed(tmp_path) == (1, 2)
    cut = max((tmp_path / "2" / "state" / "ocdbt.process_1").rglob("*"), key=lambda path: path.stat().st_size)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    assert of("restored", heard(replace(work, steps=3))) == [1]


def test_a_training_that_has_done_its_steps_does_no_more_when_it_is_started_again(tmp_path):
    work = work_in(tmp_path, processes=2, steps=3, every=1, make=Arrays)
    assert list(uninterrupted(work)) == [1, 2, 3]
    assert uninterrupted(work) == {}
