"""Chapter 26: what does it take to restore a checkpoint on another mesh?

The state is a decoder's as a `Configuration` has it, of random bits, which no compression makes smaller. Every device
reads an equal part of each array, cut between chunks, and gets from the others what it lacks. For comparison: what a
device reads for its shards alone, and with it the rest of each chunk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import NamedSharding, Sharding

from lab.compile.inspection import inspect
from lab.harness.claim import Claim, decided
from lab.harness.decoder.composed import ComposedShape, configuration
from lab.harness.question import Question, Row
from lab.meshes.axes import EXPERT, PIPE, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.composed import step as composed
from lab.redistribution import Array, Placement, least_bytes_together
from lab.resilience.checkpoints import Snapshot, checkpoints, named, restore, save, stored
from lab.resilience.reading import by_chunks, dims_of, mover, of_prime_axes
from lab.resilience.stages import merged, split

BYTES_READ = "/tensorstore/kvstore/file/bytes_read"
Box = tuple[tuple[int, int], ...]
"""Of each dim of an array the first index and the one behind the last."""


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
    chunk_bytes: int = 16_384
    embed: int = 384
    mlp: int = 768
    vocab: int = 384
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
      read: from the store for all devices, in one process, as TensorStore counts them.
      read_straight, shards: by one device for its own shards, and what these are.
      read_in_parts: by the device whose parts of the arrays have most chunks.
      sent, least: by a device to others then, as compiled, and the least that any way sends.
    """

    arrays: int
    equal: int
    state: int
    devices: int
    read: int
    read_straight: int
    shards: int
    read_in_parts: int
    sent: float
    least: int
    blocked_s: float
    saved_s: float
    restored_s: float

    @property
    def part(self) -> float:
        """Of the state, that a device reads where each byte is read once."""
        return self.state / self.devices


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
        with counted() as read:
            begun = time.perf_counter()
            found = restore(folder, 0, merged(like)).state
            restored_s = time.perf_counter() - begun
        by_stages = split(found, like)
        values = {name: np.asarray(x) for name, x in named(saved).items()}
        equal = sum(
            bits(x) == bits(values[name]) and bits(y) == bits(values[name])
            for (name, x), y in zip(named(found).items(), jax.tree.leaves(by_stages), strict=True)
        )
        arrays = stored(folder, 0)
        after = {name: x.sharding for name, x in named(found).items()}
        parts = {name: by_chunks(values[name].shape, chunk_of(arrays(name)), x) for name, x in after.items()}
        mesh = next(iter(parts.values())).mesh
        changes = [
            (placement(parts[name], x.ndim), placement(of_prime_axes(after[name]), x.ndim), Array.of(x))
            for name, x in values.items()
        ]
        lying = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=parts[name]) for name, x in values.items()}
        return Restored(
            arrays=len(values),
            equal=equal,
            state=sum(x.nbytes for x in values.values()),
            devices=mesh.size,
            read=read[0],
            read_straight=_read(folder, after, values),
            shards=sum(x.addressable_shards[0].data.nbytes for x in named(found).values()),
            read_in_parts=_read(folder, parts, values),
            sent=float(inspect(mover(lying, after), lying, mesh=mesh).totals().wire_bytes),
            least=least_bytes_together(changes, Axes.of(mesh.shape)),
            blocked_s=blocked - start,
            saved_s=written - start,
            restored_s=restored_s,
        )


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def chunk_of(array: ts.TensorStore) -> tuple[int, ...]:
    """Shape of a chunk; an array without dims has none."""
    return tuple(size or 1 for size in array.chunk_layout.read_chunk.shape or ())


def placement(sharding: NamedSharding, dims: int) -> Placement:
    return Placement(dims_of(sharding, dims))


def _read(folder: Path, shardings: dict[str, NamedSharding], values: dict[str, Any]) -> int:
    """Bytes that are read for the shards of all arrays by the device that needs most chunks."""
    arrays = stored(folder, 0)
    chunks = {name: chunk_of(arrays(name)) for name in shardings}
    where = {name: boxes(values[name].shape, sharding) for name, sharding in shardings.items()}

    def of_chunks(device: jax.Device) -> int:
        return sum(chunked(where[name][device], chunks[name]) * values[name].itemsize for name in shardings)

    device = max(next(iter(where.values())), key=of_chunks)
    with counted() as found:
        arrays = stored(folder, 0)
        for name, each in where.items():
            box = tuple(slice(*one) for one in each[device])
            if bits(arrays(name)[box].read().result()) != bits(values[name][box]):
                raise AssertionError(f"{name}: read other bits than were saved")
    return found[0]


def boxes(shape: Sequence[int], sharding: Sharding) -> dict[jax.Device, Box]:
    """Which part of an array each device has."""
    where = sharding.devices_indices_map(tuple(shape))
    return {
        device: tuple(each.indices(size)[:2] for each, size in zip(index, shape, strict=True))
        for device, index in where.items()
    }


def chunked(box: Box, chunk: Sequence[int]) -> int:
    """Elements of the chunks that have a part of the box."""
    return prod((-(-last // size) - first // size) * size for (first, last), size in zip(box, chunk, strict=True))


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
        Row("read from the store, all devices", found.read, "B", predicted=found.state),
        Row("of it by the device that reads most", found.read_in_parts, "B", predicted=found.part),
        Row("sent to other devices then, by one", found.sent, "B", predicted=found.least),
        Row("read for the shards of one device alone", found.read_straight, "B", predicted=found.shards),
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
            f"a device reads {found.read_in_parts:,} B of the {found.part:,.0f} B that are its share and sends "
            f"{found.sent:,.0f} B, the least {found.least:,} B",
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
