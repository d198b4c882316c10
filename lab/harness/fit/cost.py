"""What a step costs by theory, as far as levers of memory change it: products that are run again, wire bytes, and bytes
between device and host."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lab.core.ledger import Ledger, Totals, Transfer
from lab.harness.decoder.composed import ComposedShape, configuration
from lab.meshes.axes import AXIS_ORDER, Axes
from lab.meshes.targets import Target, domains
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.products import Cause, Passes, of_layer, size
from lab.programs.models.shape import DecoderShape


@dataclass(frozen=True)
class Cost:
    """Of one device a step.

    Attributes:
      recomputed_flops: of products that the backward pass runs again; of a pipeline, of the mean stage.
      host_bytes: that cross the link to the host, there and back.
      seconds: that all of it takes at the rates of the chip's data sheet, one after the other.
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
    flops = recomputed_flops(parameters, axes) if isinstance(parameters, DecoderShape) else 0
    return Cost(
        flops,
        predicted.totals().wire_bytes,
        host_bytes,
        flops / _flops_per_s(parameters, target) + _wire_s(predicted, axes, target) + _host_s(host_bytes, target),
    )


def recomputed_flops(shape: DecoderShape, axes: Axes) -> int:
    """Of one device a step. Axes that no `Configuration` has share the work evenly."""
    known: dict[str, Any] = {name: degree for name, degree in axes.shape.items() if name in AXIS_ORDER}
    of = configuration(shape, axes) if isinstance(shape, ComposedShape) else Configuration(**known, attention="ring")
    again = sum(stack.layers * _again(of_layer(of, stack)) for stack in shape.stacks.values())
    return int(shape.accumulation * again * of.devices / (of.pipe * axes.size))


def _again(layer: Passes) -> Fraction:
    """Tiles make their scores again in any case."""
    return size(layer.again) + layer.backward.get(Cause.ATTENTION_AGAIN, 0)


def _flops_per_s(parameters: Any, target: Target) -> float:
    """Of one device; where the sheet has no rate of the dtype, that of bf16."""
    chip = target.hardware
    rate = chip.flops_per_s.get(getattr(parameters, "dtype", "bf16"), chip.flops_per_s["bf16"])
    return rate.value / chip.devices_per_chip


def _wire_s(predicted: Ledger, axes: Axes, target: Target) -> float:
    """Each transfer over the slower link where its group crosses a host or a slice."""
    chip, domain = target.hardware, domains(target, axes)
    along: dict[tuple[str, ...], list[Transfer]] = {}
    for transfer in predicted.transfers:
        along.setdefault(transfer.axes or axes.names, []).append(transfer)

    def bytes_per_s(names: tuple[str, ...]) -> float:
        of_groups = domain[axes.groups(names)]
        crosses = bool((of_groups.min(1) != of_groups.max(1)).any())
        return (chip.slow if crosses else chip.fast).value / chip.devices_per_chip

    return sum(float(Totals.of(some).wire_bytes) / bytes_per_s(names) for names, some in along.items())


def _host_s(host_bytes: int, target: Target) -> float:
    """Half goes each way, one after the other, at the rate of the network, whose adapter is reached like the host: no
    sheet has that of the host itself."""
    chip = target.hardware
    return host_bytes * chip.devices_per_chip / chip.slow.value
