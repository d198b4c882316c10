"""What a step costs by theory, as far as levers of memory change it: products that are run again, wire bytes, and bytes
between device and host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from lab.core.ledger import Ledger, Transfer
from lab.harness.decoder.composed import ComposedShape, configuration
from lab.meshes.axes import AXIS_ORDER, PIPE, Axes
from lab.meshes.targets import Target, domains
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.flops import flops, idle_flops
from lab.programs.composed.products import Cause, Passes, of_layer, size
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.taken import sent_by_stages

AGAIN = (
    Cause.WEIGHTS_AGAIN,
    Cause.ATTENTION_AGAIN,
    Cause.STAGE_AGAIN,
    Cause.LAYERS_IN_VAIN,
    Cause.JOBS_IN_VAIN,
)
"""What a stage of a pipeline computes more than once, or in vain."""


@dataclass(frozen=True)
class Cost:
    """Of one device a step; in a pipeline of the busiest stage, its branches taken as the schedule says.

    Attributes:
      recomputed_flops: of products that the backward pass runs again; in a pipeline also of what is done in vain.
      host_bytes: that cross the link to the host, there and back.
      seconds: that all of it takes at the rates of the chip's data sheet, one after the other; in a pipeline with all
        products of the stage that takes longest, and with the time that the busiest one waits.
    """

    recomputed_flops: int = 0
    wire_bytes: Fraction = Fraction(0)
    host_bytes: int = 0
    seconds: float = 0.0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.recomputed_flops - other.recomputed_flops,
            self.wire_bytes - other.wire_bytes,
            self.host_bytes - other.host_bytes,
            self.seconds - other.seconds,
        )


def cost(parameters: Any, axes: Axes, predicted: Ledger, host_bytes: int, target: Target) -> Cost:
    """Args: target: that names a chip."""
    again = recomputed_flops(parameters, axes) if isinstance(parameters, DecoderShape) else 0
    rate = _flops_per_s(parameters, target)
    sent: Callable[[Ledger], tuple[Fraction, ...]] = _of_one_stage
    computed: tuple[Fraction, ...] = (Fraction(again),)
    idle = 0.0
    if isinstance(parameters, PipelineShape) and _has_stages(axes):
        of = _configuration(parameters, axes)
        sent = partial(sent_by_stages, of.strategy, parameters, axes)
        computed, idle = flops(of, parameters).totals, idle_flops(of, parameters)
    busy_s, wire_bytes = [float(n) / rate for n in computed], [Fraction(0)] * len(computed)
    for some, bytes_per_s in _by_rate(predicted, axes, target):
        stages = sent(some)
        wire_bytes = [so_far + n for so_far, n in zip(wire_bytes, stages, strict=True)]
        busy_s = [so_far + float(n) / bytes_per_s for so_far, n in zip(busy_s, stages, strict=True)]
    return Cost(again, max(wire_bytes), host_bytes, max(busy_s) + idle / rate + _host_s(host_bytes, target))


def recomputed_flops(shape: DecoderShape, axes: Axes) -> int:
    """Of one device a step, as `Cost` has it. Axes that no `Configuration` has share the work evenly."""
    of = _configuration(shape, axes)
    if _has_stages(axes):
        found = flops(of, shape)
        return int(sum(found.stages[found.busiest].get(cause, Fraction(0)) for cause in AGAIN))
    again = sum(stack.layers * _again(of_layer(of, stack)) for stack in shape.stacks.values())
    return int(shape.accumulation * again * of.devices / axes.size)


def _has_stages(axes: Axes) -> bool:
    return axes.shape.get(PIPE, 1) > 1


def _configuration(shape: DecoderShape, axes: Axes) -> Configuration:
    if isinstance(shape, ComposedShape):
        return configuration(shape, axes)
    known: dict[str, Any] = {name: degree for name, degree in axes.shape.items() if name in AXIS_ORDER}
    if isinstance(shape, PipelineShape):
        known |= {"schedule": shape.schedule, "sequence": False}
    return Configuration(**known, attention="ring")


def _again(layer: Passes) -> Fraction:
    """Tiles make their scores again in any case."""
    return size(layer.again) + layer.backward.get(Cause.ATTENTION_AGAIN, 0)


def _of_one_stage(some: Ledger) -> tuple[Fraction, ...]:
    return (some.totals().wire_bytes,)


def _flops_per_s(parameters: Any, target: Target) -> float:
    """Of one device; where the sheet has no rate of the dtype, that of bf16."""
    chip = target.hardware
    rate = chip.flops_per_s.get(getattr(parameters, "dtype", "bf16"), chip.flops_per_s["bf16"])
    return rate.value / chip.devices_per_chip


def _by_rate(predicted: Ledger, axes: Axes, target: Target) -> list[tuple[Ledger, float]]:
    """Transfers, and the bytes a second that they go at: over the slower link where their groups cross a host or a
    slice."""
    chip, domain = target.hardware, domains(target, axes)
    at: dict[float, list[Transfer]] = {}
    for transfer in predicted.transfers:
        of_groups = domain[axes.groups(transfer.axes or axes.names)]
        crosses = bool((of_groups.min(1) != of_groups.max(1)).any())
        rate = (chip.slow if crosses else chip.fast).value / chip.devices_per_chip
        at.setdefault(rate, []).append(transfer)
    return [(replace(predicted, transfers=tuple(some)), rate) for rate, some in at.items()]


def _host_s(host_bytes: int, target: Target) -> float:
    """Half goes each way, one after the other, at the rate of the network, whose adapter is reached like the host: no
    sheet has that of the host itself."""
    chip = target.hardware
    return host_bytes * chip.devices_per_chip / chip.slow.value
