"""The degrees of a training step's mesh, and what else decides what the step sends and holds (Ch. 24, 25, 27)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_

from lab.meshes.axes import AXIS_ORDER, CONTEXT, DATA, EXPERT, FSDP, TENSOR, Axes
from lab.meshes.errors import UsageError, no_such
from lab.programs.strategies.context_parallel import GATHERED_KEYS, RING, TILES, ULYSSES, ZIGZAG_RING
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import sharded
from lab.programs.strategies.zero3 import ZERO3

ZERO_STAGES = (0, 1, 2)
"""Over `data`; the third has an axis of its own, `fsdp`."""
OVER_CONTEXT = {"zigzag": ZIGZAG_RING, "ring": RING, "gathered": GATHERED_KEYS, "ulysses": ULYSSES}


def replicas(axes: Axes) -> tuple[str, ...]:
    """Of a mesh, the axes of several ranks along which all but experts are replicated."""
    return tuple(name for name in axes.names if name in (DATA, EXPERT) and axes[name] > 1)


@dataclass(frozen=True)
class Configuration:
    """How one training step is spread over devices.

    Attributes:
      data, fsdp, pipe, context, tensor, expert: degrees, one axis of the mesh each; an axis of size 1 is left out. The
        batch is split over `expert` as well: of all but experts its ranks are data-parallel replicas, so that experts
        over 64 of 128 replicas, as Megatron-LM carves them out, are data=2, expert=64.
      order: of the axes, as `mesh.devices` has them: the last connects neighbours.
      zero: 1: master weights and moments are sharded over `data`, and of all but experts over `expert`; 2: gradients
        too.
      attention: how queries meet keys along `context`, a name of `OVER_CONTEXT`; without that axis "tiles" makes scores
        tile by tile, and any other name all at once.
      sequence: between blocks tokens are sharded along `tensor` (Korthikanti et al. 2022).
      micro_batches: of one step, on each device.
      schedule, chunks, stage_layers: of a pipeline, as `PipelineShape`.
      remat, dtype: as `DecoderShape`.
    Raises:
      UsageError: a number below the least, an order that is not of these axes, or a name that is not known.
    """

    data: int = 1
    fsdp: int = 1
    pipe: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    order: tuple[str, ...] = AXIS_ORDER
    zero: int = 0
    attention: str = "zigzag"
    sequence: bool = True
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    stage_layers: str = ""
    remat: str = "full"
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        for name in (*AXIS_ORDER, "micro_batches", "chunks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: expected 1 or more")
        if sorted(self.order) != sorted(AXIS_ORDER):
            raise UsageError(f"order={','.join(self.order)}: expected each of {', '.join(AXIS_ORDER)} once")
        if self.zero not in ZERO_STAGES:
            raise UsageError(f"zero={self.zero}: expected 0, 1 or 2; ZeRO-3 is the axis fsdp")
        if self.zero and not self.replicas:
            raise UsageError(
                f"zero={self.zero} with data=1 and expert=1: there is nothing to shard over; set data, or zero=0"
            )
        if self.pipe == 1 and (self.chunks > 1 or self.stage_layers):
            found = f"stage_layers={self.stage_layers}" if self.stage_layers else f"chunks={self.chunks}"
            raise UsageError(f"{found} with pipe=1: there are no stages; set pipe, or leave it out")
        known = OVER_CONTEXT if self.context > 1 else (*OVER_CONTEXT, "tiles")
        if self.attention not in known:
            raise no_such("attention over ranks", self.attention, known)

    @property
    def devices(self) -> int:
        return prod(getattr(self, name) for name in AXIS_ORDER)

    @property
    def axes(self) -> Axes:
        """Those of more than one device, in their order; one device has `data` alone."""
        return Axes.of({name: getattr(self, name) for name in self.order if getattr(self, name) > 1} or {DATA: 1})

    @property
    def replicas(self) -> tuple[str, ...]:
        """Over which ZeRO-1 and 2 shard all but experts."""
        return replicas(self.axes)

    @property
    def strategy(self) -> Strategy:
        """Of the whole step, or of each stage of a pipeline."""
        along = {
            DATA: DATA_PARALLEL,
            FSDP: ZERO3,
            CONTEXT: OVER_CONTEXT.get(self.attention, NOTHING),
            TENSOR: SEQUENCE_PARALLEL if self.sequence else TENSOR_PARALLEL,
            EXPERT: EXPERT_PARALLEL,
        }
        if self.zero:
            along[self.replicas[0]] |= sharded(self.zero, self.replicas)
        tiles = TILES if self.attention == "tiles" else NOTHING
        return reduce(or_, (along[name] for name in self.order if name in along and getattr(self, name) > 1), tiles)


NOTHING = Strategy(terms=())
