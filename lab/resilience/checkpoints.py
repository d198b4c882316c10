"""Checkpoints of a training: saved sharded and in the background by Orbax, and restored under any sharding.

A checkpoint holds all that decides how a training goes on: state, random key, place in the data and step
(`ch26.consistency`). Orbax writes a step into a folder of another name and renames it when every process has written
its shards, so that what is not committed has no name of a step. What is committed and damaged later is found by digests
of the arrays themselves: TensorStore notices a file that is cut short, and returns other numbers for a bit that
flipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from lab.meshes.errors import UsageError, one_line
from lab.resilience.digest import changed, digests
from lab.resilience.reading import by_chunks, mover

STATE, PROGRESS = "state", "progress"


class Snapshot(NamedTuple):
    """What a training goes on from.

    Attributes:
      state: a tree of arrays, as a step takes it.
      key: a random key, typed and whole on each process, from which all later ones are made.
      position: sequences of the data that were read.
      step: steps that were made.
    """

    state: Any
    key: jax.Array
    position: int
    step: int


class DamagedCheckpoint(Exception):
    """A committed checkpoint whose arrays are not those that were saved."""


@contextmanager
def checkpoints(folder: Path, keep: int = 2) -> Iterator[ocp.CheckpointManager]:
    """The checkpoints in a folder, the newest `keep` of them; on leaving, the one that is being written is finished.

    What an earlier run left unfinished is removed. Of several processes each must be here, with one folder.
    """
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=True, cleanup_tmp_directories=True
    )
    with ocp.CheckpointManager(folder.absolute(), options=options) as manager:
        yield manager


CHUNK_BYTES = 4 << 20
"""Of one chunk in a store at most: whoever needs a part of a chunk reads all of it."""


def save(manager: ocp.CheckpointManager, snapshot: Snapshot, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Returns once the arrays are copied to the host, and writes them in the background.

    Waits for the save before this one. Each device's shard is cut into chunks of at most `chunk_bytes`.

    Raises:
      OSError or ValueError: what stopped the save before; its step is not committed, and this one is not begun.
    """
    arrays = named(snapshot.state)
    progress = {
        "step": snapshot.step,
        "position": snapshot.position,
        "key": {
            "impl": str(jax.random.key_impl(snapshot.key)),
            "data": np.asarray(jax.random.key_data(snapshot.key)).tolist(),
        },
        "digests": digests(arrays),
    }
    chunked = {name: ocp.SaveArgs(chunk_byte_size=chunk_bytes) for name in arrays}
    saved = {
        STATE: ocp.args.StandardSave(arrays, save_args=chunked),
        PROGRESS: ocp.args.JsonSave(progress | {"sha256": _sha256(progress)}),
    }
    manager.save(snapshot.step, args=ocp.args.Composite(**saved))


def committed(folder: Path) -> tuple[int, ...]:
    """Steps in the folder that were committed, the oldest first."""
    return (
        tuple(sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())) if folder.exists() else ()
    )


def restore(folder: Path, step: int, like: Any) -> Snapshot:
    """A committed step, on the mesh and in the layout of `like`, whatever it was saved on.

    Of each array every device reads an equal part, cut between chunks of the store, and gets from the others what it
    lacks: see `lab.resilience.reading.by_chunks`.

    Args:
      like: the state as `ShapeDtypeStruct`s with shardings.
    Raises:
      DamagedCheckpoint: a process cannot read it, or an array is not the one that was saved; on each process.
      UsageError: the state has other arrays, shapes or types.
    """
    wanted, read, unread = named(like), None, ""
    try:
        read = _read(folder.absolute() / str(step), wanted)
    except UsageError:
        raise
    except Exception as unreadable:  # Orbax raises bare exceptions for what TensorStore cannot read.
        unread = one_line(unreadable).partition(" See full TensorStore details")[0]
    # Each process says whether it could, before any of them waits for the others' digests.
    if not _everyone(read is not None) or read is None:
        raise DamagedCheckpoint(f"step {step} in {folder}: {unread or 'another process cannot read it'}")
    arrays, progress, is_whole = read
    others = changed(arrays, progress["digests"])
    if others or not is_whole:
        raise DamagedCheckpoint(f"step {step} in {folder}: not as it was saved: {', '.join(others) or PROGRESS}")
    leaves, tree = jax.tree.flatten_with_path(like)
    state = jax.tree.unflatten(tree, [arrays[_name(path)] for path, _ in leaves])
    key = jax.random.wrap_key_data(jnp.array(progress["key"]["data"], jnp.uint32), impl=progress["key"]["impl"])
    return Snapshot(state, key, progress["position"], progress["step"])


def _read(at: Path, wanted: dict[str, Any]) -> tuple[dict[str, jax.Array], dict[str, Any], bool]:
    """Arrays, progress, and whether that is the one which was saved."""
    # Without a manager, at whose barrier the others would wait for a process that cannot read.
    progress = ocp.JsonCheckpointHandler().restore(at / PROGRESS, args=ocp.args.JsonRestore())
    is_whole = progress.pop("sha256") == _sha256(progress)
    saved = ocp.StandardCheckpointHandler().metadata(at / STATE).tree
    _check_same(int(at.name), wanted, saved)
    parts = {name: _part(x, saved[name].storage.chunk_shape) for name, x in wanted.items()}
    arrays = ocp.StandardCheckpointHandler().restore(at / STATE, args=ocp.args.StandardRestore(parts))
    after = {name: x.sharding for name, x in wanted.items() if parts[name] is not x}
    cut = {name: arrays[name] for name in after}
    return arrays | (mover(cut, after)(cut) if cut else {}), progress, is_whole


def _part(wanted: Any, chunk: tuple[int, ...]) -> Any:
    """An array as it is to be read: as it is wanted, or in parts that cut fewer chunks."""
    if not isinstance(wanted.sharding, NamedSharding):
        return wanted
    sharding = by_chunks(wanted.shape, tuple(max(1, size) for size in chunk), wanted.sharding)
    if sharding.is_equivalent_to(wanted.sharding, len(wanted.shape)):
        return wanted
    return jax.ShapeDtypeStruct(wanted.shape, wanted.dtype, sharding=sharding)


def stored(folder: Path, step: int) -> Callable[[str], ts.TensorStore]:
    """The arrays of a committed step by their names in the checkpoint; one reads what it is indexed with."""
    base = f"file://{folder.absolute() / str(step) / STATE}/"
    # One cache for all, or each array would read the index of the store anew.
    context = ts.Context({"cache_pool": {"total_bytes_limit": 100_000_000}})
    return lambda name: ts.open(
        {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}, open=True, context=context
    ).result()


def restore_newest(folder: Path, like: Any) -> Snapshot | None:
    """The newest step that every process can restore; None where none is committed.

    Raises:
      DamagedCheckpoint: there are some, and none of them can be restored.
      UsageError: as `restore`.
    """
    damaged = None
    for step in reversed(committed(folder)):
        try:
            return restore(folder, step, like)
        except DamagedCheckpoint as found:
            damaged = found
    if damaged:
        raise damaged
    return None


def _sha256(progress: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(progress, sort_keys=True).encode()).hexdigest()


def _everyone(holds: bool) -> bool:
    """Whether it holds on each process."""
    return holds if jax.process_count() == 1 else bool(np.all(multihost_utils.process_allgather(np.array(holds))))


def _check_same(step: int, wanted: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    found, expected = ({name: (tuple(x.shape), str(x.dtype)) for name, x in of.items()} for of in (saved, wanted))
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise UsageError(
                f"step {step}, {name}: saved as {found.get(name)}, and the state to restore has {expected.get(name)}; "
                "restore with the sizes of the model that was saved"
            )


def named(state: Any) -> dict[str, Any]:
    """The arrays of a state by their names in a checkpoint."""
    return {_name(path): x for path, x in jax.tree.leaves_with_path(state)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=" ")
