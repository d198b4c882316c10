"""Strategies and their pairs on one number of devices: what a device holds, what it sends, and which strategy shards
what another replicates (Ch. 14 to 20, 24)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

from lab.meshes.axes import CONTEXT, DATA, EXPERT, FSDP, PIPE, TENSOR
from lab.meshes.errors import UsageError
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.step import predict, sized
from lab.programs.memory.device import Device
from lab.programs.memory.gradients import gradient_of
from lab.programs.memory.saved import saved_in_layer
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.memory import Stage
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.taken import sent_by_stages
from lab.programs.strategies.terms import weights

STYLE = "explicit"
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "DP": (DATA, {}),
    "ZeRO-1": (DATA, {"zero": 1}),
    "ZeRO-2": (DATA, {"zero": 2}),
    "ZeRO-3": (FSDP, {}),
    "PP": (PIPE, {}),
    "CP": (CONTEXT, {}),
    "EP": (EXPERT, {}),
    "TP": (TENSOR, {"sequence": False}),
    "TP+SP": (TENSOR, {}),
}
"""By name: the axis, and what else a configuration chooses; from the outermost axis to the innermost."""
MOVES = {
    ("DP", "ZeRO-1"): "optimizer state",
    ("ZeRO-1", "ZeRO-2"): "gradients",
    ("ZeRO-2", "ZeRO-3"): "weights",
    ("DP", "PP"): "layers",
    ("DP", "CP"): "sequences",
    ("DP", "EP"): "experts",
    ("DP", "TP"): "matrices",
    ("TP", "TP+SP"): "activations between blocks",
}
"""What the second strategy shards and the first does not, or does otherwise."""


@dataclass(frozen=True)
class Point:
    """One strategy, or two of them, on a number of devices: bytes of one device.

    Attributes:
      parts: names of `PARTS`, the outermost first.
      state: master weights, moments and weights in use, and the batch, as a step begins.
      gradients: of all weights, in the dtype of those that they belong to, after a backward pass.
      activations: kept for the backward pass of one micro-batch; of a pipeline also the inputs of stages in flight.
      sent: wire bytes a step; of a pipeline those of the busiest stage, its branches taken as the schedule says.
    """

    parts: tuple[str, ...]
    configuration: Configuration
    state: int
    gradients: int
    activations: int
    sent: float

    @property
    def name(self) -> str:
        """`ZeRO-3 4 x TP+SP 2`."""
        return " x ".join(f"{part} {getattr(self.configuration, PARTS[part][0])}" for part in self.parts)

    @property
    def held(self) -> int:
        return self.state + self.gradients + self.activations


@dataclass(frozen=True)
class Lattice:
    """Attributes: refused: strategies that these sizes do not allow, and why."""

    points: tuple[Point, ...]
    refused: Mapping[str, str]

    @property
    def moves(self) -> tuple[tuple[Point, Point, str], ...]:
        """From a strategy alone to the one that shards more, and what that is; "" from each part of a pair to the pair,
        their join."""
        alone = {point.parts[0]: point for point in self.points if len(point.parts) == 1}
        named = [(alone[a], alone[b], what) for (a, b), what in MOVES.items() if a in alone and b in alone]
        pairs = [point for point in self.points if len(point.parts) == 2]
        return (*named, *((alone[part], pair, "") for pair in pairs for part in pair.parts if part in alone))

    @property
    def frontier(self) -> tuple[Point, ...]:
        """Those that no other beats in memory and in bytes sent at once, from the least memory on."""
        return tuple(
            point
            for point in sorted(self.points, key=lambda point: point.held)
            if not any(_beats(other, point) for other in self.points)
        )


def _beats(one: Point, other: Point) -> bool:
    return one.held <= other.held and one.sent <= other.sent and (one.held, one.sent) != (other.held, other.sent)


def lattice(model: DecoderShape, devices: int) -> Lattice:
    """Every strategy over all devices, and every pair of two axes, as even as the devices allow.

    Args:
      model: `batch` is that of the whole step; a pipeline takes it one sequence a replica at a time, all else at once.
    Raises:
      UsageError: fewer than two devices, or none of the strategies can be on so many.
    """
    if devices < 2:
        raise UsageError(f"devices={devices}: expected 2 or more, to spread a step over")
    inner = max(n for n in range(1, devices) if devices % n == 0 and n * n <= devices)
    shapes: dict[tuple[str, ...], tuple[int, ...]] = {(name,): (devices,) for name in PARTS}
    pairs = [pair for pair in combinations(PARTS, 2) if PARTS[pair[0]][0] != PARTS[pair[1]][0] and "TP" not in pair]
    shapes |= {pair: (devices // inner, inner) for pair in pairs if inner > 1 and not _both_over_data(pair)}
    points, refused = [], {}
    for parts, degrees in shapes.items():
        try:
            points.append(point(parts, degrees, model))
        except UsageError as reason:
            refused[" x ".join(f"{part} {degree}" for part, degree in zip(parts, degrees, strict=True))] = str(reason)
    if not points:
        raise UsageError(f"devices={devices}: {next(iter(refused.values()))}")
    return Lattice(tuple(points), refused)


def _both_over_data(parts: tuple[str, ...]) -> bool:
    return all(PARTS[part][0] in (DATA, FSDP) for part in parts)


def point(parts: tuple[str, ...], degrees: tuple[int, ...], model: DecoderShape) -> Point:
    """Raises UsageError where a dim does not split over its axis."""
    chosen = configuration(parts, degrees, model)
    shape, axes, strategy = sized(chosen, model), chosen.axes, chosen.strategy
    predicted = predict(chosen, model)
    sent = predicted.totals().wire_bytes
    share = at_once = Device(strategy, STYLE, shape, axes)
    in_flight = 0
    if isinstance(shape, PipelineShape):
        stage = Stage.of(strategy, shape, axes)
        share, at_once, in_flight = stage.share, stage.chunk, stage.table.inputs * stage.message
        sent = max(sent_by_stages(strategy, shape, axes, predicted))
    return Point(
        parts,
        chosen,
        static_bytes(strategy, share.shape, axes),
        gradient_of(weights(share.shape), share),
        at_once.shape.layers * saved_in_layer(at_once) + in_flight,
        float(sent),
    )


def configuration(parts: tuple[str, ...], degrees: tuple[int, ...], model: DecoderShape) -> Configuration:
    chosen: dict[str, Any] = {"remat": model.remat, "dtype": model.dtype}
    for part, degree in zip(parts, degrees, strict=True):
        axis, more = PARTS[part]
        chosen |= {axis: degree} | more
    if PIPE not in chosen:
        return Configuration(**chosen)
    replicas = prod(chosen.get(axis, 1) for axis in (DATA, FSDP, EXPERT))
    micro_batches = max(1, model.batch // replicas)
    return Configuration(**chosen, micro_batches=micro_batches, schedule="eager_1f1b" if CONTEXT in chosen else "1f1b")
