"""Chapter 26: what does it take to restore a checkpoint on another mesh?

The state is a decoder's as a `Configuration` has it, of random bits, which no compression makes smaller. Two ways are
measured: every device reads what its shards need, and with it the rest of each chunk; or every device reads an equal
part of each array, cut between chunks, and gets from the others what it lacks.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding

from lab.harness.claim import Claim, decided
from lab.harness.decoder.composed import ComposedShape, configuration
from lab.harness.question import Question, Row
from lab.meshes.axes import EXPERT, PIPE, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.composed import step as composed
from lab.redistribution import Array, Placement, least_bytes_together
from lab.resilience.checkpoints import Snapshot, checkpoints, named, restore, save, stored
from lab.resilience.recovery import boxes, by_chunks, chunked, elements, recovered
from lab.resilience.stages import merged, split

BYTES_READ = "/tensorstore/kvstore/file/bytes_read"


@dataclass(frozen=True)
class Restores:
    """Which mesh saves, and which restores: the axes of a `Configuration` each, of at most 8 devices.

    Attributes:
      chunk_bytes: of one chunk of a saved shard at most.
      embed, mlp, vocab, layers: of the decoder; with `expert` in a mesh it has 12 experts.
      moments: the state has the optimizer's, too.
    """

    save: str = "fsdp=8"
    load: str = "fsdp=2,tensor=4"
    chunk_bytes: int = 4096
    embed: int = 96
    mlp: int = 192
    vocab: int = 192
    layers: int = 4
    moments: bool = True
    target: str = "cpu:8"

    def state(self, mesh: str) -> Any:
        """Shapes with shardings, as a training on this mesh has it."""
        axes = Axes.parse(mesh)
        has = {name for each in (self.save, self.load) for name in Axes.parse(each).names}
        shape = ComposedShape().shrunk(
            layers=self.layers, embed=self.embed, mlp=self.mlp, vocab=self.vocab, batch=96, length=24
        )
        shape = shape.choosing(experts=12 if EXPERT in has else 0, accumulation=4 if PIPE in axes.names else 1)
        placed = make_mesh(parse_target(f"cpu:{axes.size}"), axes)
        state = composed.step(configuration(shape, axes), "explicit", shape, placed)[1][0]
        return state if self.moments else state.master


@dataclass(frozen=True)
class Restored:
    """Bytes, of the busiest device where it says so, and seconds.

    Attributes:
      read_at_once: from the store by Orbax for all devices in one process, as TensorStore counts them.
      read_straight, shards: by one device for its own shards, and what these are.
      read_in_parts, chunks, part: by one device for its part of each array, the chunks that have a piece of it, and
        what it is itself.
      received, least: from other devices then, and the least of any way.
    """

    arrays: int
    equal: int
    state: int
    read_at_once: int
    read_straight: int
    shards: int
    read_in_parts: int
    chunks: int
    part: int
    received: int
    least: int
    blocked_s: float
    saved_s: float
    restored_s: float


def random_state(like: Any) -> Any:
    """Arrays of random bits."""
    draw = np.random.default_rng(0)

    def drawn(x: Any) -> jax.Array:
        size = prod(x.shape) * x.dtype.itemsize
        return jax.device_put(np.frombuffer(draw.bytes(size), x.dtype).reshape(x.shape), x.sharding)

    return jax.tree.map(drawn, like)


@lru_cache(maxsize=8)
def measured(assumed: Restores) -> Restored:
    """Saves and restores, both ways."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = random_state(merged(assumed.state(assumed.save)))
        start = time.perf_counter()
        with checkpoints(folder) as manager:
            save(manager, Snapshot(saved, jax.random.key(0), 0, 0), assumed.chunk_bytes)
            blocked = time.perf_counter()
        written = time.perf_counter()
        like = assumed.state(assumed.load)
        with counted() as at_once:
            begun = time.perf_counter()
            found = restore(folder, 0, merged(like)).state
            restored_s = time.perf_counter() - begun
        by_stages = split(found, like)
        values = {name: np.asarray(x) for name, x in named(saved).items()}
        equal = sum(
            bits(x) == bits(values[name]) and bits(y) == bits(values[name])
            for (name, x), y in zip(named(found).items(), jax.tree.leaves(by_stages), strict=True)
        )
        straight, _, shards = _read(folder, {name: x.sharding for name, x in named(found).items()}, values)
        arrays = stored(folder, 0)
        mesh = next(iter(named(found).values())).sharding.mesh
        parts = {name: in_parts(x.shape, arrays(name), mesh) for name, x in named(found).items()}
        in_part, chunks, part = _read(folder, parts, values)
        received = sum((_moved(values[name], parts[name], x.sharding) for name, x in named(found).items()), Counter())
        changes = [(placement(parts[name]), placement(x.sharding), Array.of(x)) for name, x in named(found).items()]
        return Restored(
            arrays=len(values),
            equal=equal,
            state=sum(x.nbytes for x in values.values()),
            read_at_once=at_once[0],
            read_straight=straight,
            shards=shards,
            read_in_parts=in_part,
            chunks=chunks,
            part=part,
            received=max(received.values(), default=0),
            least=least_bytes_together(changes, Axes.parse(assumed.load)),
            blocked_s=blocked - start,
            saved_s=written - start,
            restored_s=restored_s,
        )


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def in_parts(shape: tuple[int, ...], array: ts.TensorStore, mesh: Mesh) -> NamedSharding:
    return by_chunks(shape, chunk_of(array), mesh)


def chunk_of(array: ts.TensorStore) -> tuple[int, ...]:
    """Shape of a chunk; an array without dims has none."""
    return tuple(size or 1 for size in array.chunk_layout.read_chunk.shape or ())


def placement(sharding: NamedSharding) -> Placement:
    return Placement.of(*sharding.spec)


def _read(folder: Path, shardings: dict[str, NamedSharding], values: dict[str, Any]) -> tuple[int, int, int]:
    """Reads the first device's shards of all arrays: bytes that were read, those of the chunks with a piece
    of them, and those of the shards."""
    device = next(iter(shardings.values())).mesh.devices.flat[0]
    whole = needed = 0
    with counted() as found:
        arrays = stored(folder, 0)
        for name, sharding in shardings.items():
            box = boxes(values[name].shape, sharding)[device]
            block = arrays(name)[tuple(slice(*each) for each in box)].read().result()
            whole += chunked(box, chunk_of(arrays(name))) * values[name].itemsize
            needed += elements(box) * values[name].itemsize
            if bits(block) != bits(values[name][tuple(slice(*each) for each in box)]):
                raise AssertionError(f"{name}: read other bits than were saved")
    return found[0], whole, needed


def _moved(value: np.ndarray, before: NamedSharding, after: NamedSharding) -> Counter[jax.Device]:
    """Bytes that each device received while the array changed its layout."""
    moved, received = recovered(jax.device_put(value, before), after, read=value.__getitem__)
    if bits(moved) != bits(value):
        raise AssertionError("the array that moved is another")
    return Counter(received)


@contextmanager
def counted() -> Iterator[list[int]]:
    """What TensorStore reads from files within: the first of the list, afterwards."""
    before, found = _bytes_read(), [0]
    yield found
    found[0] = _bytes_read() - before


def _bytes_read() -> int:
    return sum(each["values"][0]["value"] for each in ts.experimental_collect_matching_metrics(BYTES_READ))


def answer(assumed: Restores) -> tuple[Row, ...]:
    found = measured(assumed)
    return (
        Row("arrays equal to the bit", found.equal, predicted=found.arrays),
        Row("read from the store for all devices at once", found.read_at_once, "B", predicted=found.state),
        Row("read for the shards of one device", found.read_straight, "B", predicted=found.shards),
        Row("read for one device's equal part, cut between chunks", found.read_in_parts, "B", predicted=found.part),
        Row("chunks with a piece of that part", found.chunks, "B", predicted=found.part),
        Row("received from other devices then, busiest device", found.received, "B", predicted=found.least),
        Row("save blocks for", found.blocked_s, "s"),
        Row("save is committed after", found.saved_s, "s"),
        Row("restore takes", found.restored_s, "s"),
    )


def claims(assumed: Restores) -> tuple[Claim, ...]:
    found = measured(assumed)
    return (
        decided(
            "ch26.reshard",
            found.equal == found.arrays,
            f"{found.equal} of {found.arrays} arrays saved on {assumed.save} are equal to the bit on {assumed.load}; "
            f"one device reads {found.read_in_parts:,} B for a part of {found.part:,} B and receives "
            f"{found.received:,} B, the least {found.least:,} B",
            statement="merging and splitting shards gives the same arrays",
        ),
    )


EXPERIMENT = Question(
    name="ch26_restore",
    chapter=26,
    question="What does it take to restore a checkpoint on another mesh?",
    parameters=Restores(),
    answer=answer,
    claims=claims,
)
