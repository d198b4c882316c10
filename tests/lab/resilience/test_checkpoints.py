"""What is saved comes back to the bit, on whatever mesh, and what is damaged does not come back."""

import gc
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.resilience.checkpoints import (
    DamagedCheckpoint,
    Snapshot,
    checkpoints,
    committed,
    restore,
    restore_newest,
    save,
)
from lab.resilience.training import SMALL, ResumableTraining
from tests.long_tests import long

pytestmark = pytest.mark.compiles


def mesh(text):
    axes = Axes.parse(text)
    return make_mesh(parse_target(f"cpu:{axes.size}"), axes)


FSDP, TENSOR = (
    NamedSharding(mesh("fsdp=8"), PartitionSpec("fsdp")),
    NamedSharding(mesh("tensor=4"), PartitionSpec(None, "tensor")),
)


def arrays(draw=0, sharding=FSDP):
    bits = np.random.default_rng(draw).integers(0, 2**32, (64, 256), dtype=np.uint32)
    return {
        "w": jax.device_put(bits.view(np.float32), sharding),
        "half": jax.device_put(bits.astype(np.uint16).view("bfloat16"), sharding),
    }


def like(sharding, state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)


def bits(x):
    return np.asarray(x).tobytes()


def saved(folder, steps=(1, 2)):
    with checkpoints(folder) as manager:
        for step in steps:
            save(manager, Snapshot(arrays(step), jax.random.key(step), 10 * step, step))
    return folder


def largest_file(folder):
    return max(
        (path for path in Path(folder, "state").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )


def test_the_two_newest_steps_are_kept_and_the_newest_is_restored(tmp_path):
    assert committed(saved(tmp_path, (1, 2, 3))) == (2, 3)
    found = restore_newest(tmp_path, like(FSDP, arrays()))
    assert (found.step, found.position, bits(jax.random.key_data(found.key))) == (
        3,
        30,
        bits(jax.random.key_data(jax.random.key(3))),
    )
    assert jax.tree.map(bits, found.state) == jax.tree.map(bits, arrays(3))


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    assert restore_newest(tmp_path / "none", like(FSDP, arrays())) is None


def test_on_another_mesh_each_array_is_equal_to_the_bit_and_sharded_as_asked(tmp_path):
    found = restore(saved(tmp_path), 2, like(TENSOR, arrays()))
    assert jax.tree.map(bits, found.state) == jax.tree.map(bits, arrays(2))
    assert {x.sharding for x in found.state.values()} == {TENSOR}


@pytest.fixture
def unread():
    """Orbax leaves reads that it did not come to behind, and Python says so when it collects them: here."""
    yield
    gc.collect()


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "damage",
    [flipped, lambda path: path.write_bytes(path.read_bytes()[:20_000]), lambda path: path.unlink()],
    ids=["bit flipped", "cut", "gone"],
)
def test_a_damaged_step_is_not_restored_and_the_one_before_it_is(tmp_path, damage):
    damage(largest_file(saved(tmp_path) / "2"))
    with pytest.raises(DamagedCheckpoint, match="^step 2 in "):
        restore(tmp_path, 2, like(FSDP, arrays()))
    assert restore_newest(tmp_path, like(FSDP, arrays())).step == 1


def test_changed_progress_is_found(tmp_path):
    path = saved(tmp_path) / "2" / "progress" / "metadata"
    path.write_text(path.read_text().replace('"position": 20', '"position": 21'))
    with pytest.raises(DamagedCheckpoint, match="not as it was saved: progress"):
        restore(tmp_path, 2, like(FSDP, arrays()))


def test_where_all_steps_are_damaged_nothing_is_restored(tmp_path):
    flipped(largest_file(saved(tmp_path, (1,)) / "1"))
    with pytest.raises(DamagedCheckpoint):
        restore_newest(tmp_path, like(FSDP, arrays()))


def test_a_state_of_other_sizes_is_refused_by_name(tmp_path):
    other = like(FSDP, arrays()) | {"w": jax.ShapeDtypeStruct((32, 256), np.float32, sharding=FSDP)}
    with pytest.raises(
        UsageError, match=r"step 2, w: saved as \(\(64, 256\), 'float32'\), and the state to restore has \(\(32,"
    ):
        restore(saved(tmp_path), 2, other)


def losses(training, snapshot, steps):
    return [loss for _, loss in islice(training.steps(snapshot), steps)]


@pytest.mark.parametrize("axes", ["fsdp=2,tensor=2", pytest.param("pipe=2,expert=2", marks=long)])
def test_losses_after_resuming_are_those_without_a_stop_to_the_bit(tmp_path, axes):
    shape = SMALL.choosing(experts=4, accumulation=2) if "expert" in axes else SMALL
    training = ResumableTraining(shape, mesh(axes))
    whole = []
    with checkpoints(tmp_path) as manager:
        for after, loss in islice(training.steps(training.start()), 6):
            whole.append(loss)
            if after.step <= 3:
                save(manager, after)
    resumed = restore_newest(tmp_path, training.like)
    assert (resumed.step, resumed.position) == (3, 3 * shape.batch)
    assert losses(training, resumed, 3) == whole[3:]
    # Without the random key, the place in the data or the moments of the optimizer they are others.
    resumed = restore_newest(tmp_path, training.like)
    assert losses(training, resumed._replace(key=jax.random.key(0)), 1) != whole[3:4]
    resumed = restore_newest(tmp_path, training.like)
    assert losses(training, resumed._replace(position=0), 1) != whole[3:4]
