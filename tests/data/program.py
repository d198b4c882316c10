"""A program whose compiled text is kept, and what it has to send, worked out by hand from its shapes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
from jax.sharding import Mesh

from lab.meshes.axes import Axes

TARGETS = {"cpu": "cpu:8", "gpu": "gpu:h100:1x8", "tpu": "tpu:v5e:2x4"}
BF16, F32, C64 = 2, 4, 8


@dataclass(frozen=True)
class Sends:
    """Equal sites of one program. `axes` joined by `+`, `?` where the groups lie on none; `payload_bytes` of one
    execution as `lab.core.ledger` counts them; `executions` None where the text cannot tell."""

    kind: str
    axes: str
    payload_bytes: int
    executions: int | None = 1
    dtype: str = "f32"
    sites: int = 1

    def __rmul__(self, sites: int) -> "Sends":
        return replace(self, sites=sites * self.sites)

    def times(self, executions: int | None) -> "Sends":
        return replace(self, executions=executions)


def gather(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("all_gather", axes, payload_bytes, dtype=dtype)


def reduce(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("all_reduce", axes, payload_bytes, dtype=dtype)


def scatter(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("reduce_scatter", axes, payload_bytes, dtype=dtype)


def exchange(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("all_to_all", axes, payload_bytes, dtype=dtype)


def permute(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("collective_permute", axes, payload_bytes, dtype=dtype)


def across_slices(axes: str, payload_bytes: int, dtype: str = "f32") -> Sends:
    return Sends("send_recv", axes, payload_bytes, dtype=dtype)


@dataclass(frozen=True)
class Program:
    """`case` of the reported ones, or the form of text that it is kept for; `mesh` of the ledger."""

    name: str
    case: str
    target: str
    axes: Axes
    build: Callable[[Mesh], jax.stages.Compiled]
    sends: Sequence[Sends]


PROGRAMS: dict[str, Program] = {}


def kept(case: str, axes: str, *, name: str = "", targets: dict[str, str] = TARGETS, **sends: Sequence[Sends]):
    """Keeps the text of a function of a mesh for each platform in `sends`, which says what the text has to send."""

    def keep(build):
        for platform, rows in sends.items():
            key = f"{name or build.__name__}.{platform}"
            assert key not in PROGRAMS, key
            PROGRAMS[key] = Program(key, case, targets[platform], Axes.parse(axes), build, rows)
        return build

    return keep
