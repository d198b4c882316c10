"""What layers keep for the backward pass: activations by policy of recomputation, and weights as they were used."""

from __future__ import annotations

from lab.book.activations import LLAMA_SAVED
from lab.meshes.axes import PIPE, Axes
from lab.programs.memory.device import Device
from lab.programs.memory.terms import MemoryTerm, Terms
from lab.programs.models.shape import OFFLOAD, DecoderShape
from lab.programs.strategies.strategy import Strategy

SAVED = {
    "full": LLAMA_SAVED["full_remat"],
    "names": LLAMA_SAVED["names_saved"],
    "dots": LLAMA_SAVED["dots_saved"],
    "selective": LLAMA_SAVED["attention_recomputed"],
    OFFLOAD: (),
    "none": LLAMA_SAVED["no_remat"],
}
"""What each of the decoder's policies keeps of a layer."""


def saved_layer_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """What one layer keeps for its backward pass on one device."""
    return saved_in_layer(Device(strategy, "explicit", shape, axes))


def saved(device: Device) -> Terms:
    """By all layers."""
    return {
        MemoryTerm.SAVED_ACTIVATIONS: sum(map(_saved_in_stack, device.stacks)),
        MemoryTerm.SAVED_WEIGHTS: sum(map(saved_weights, device.stacks)),
    }


def _saved_in_stack(device: Device) -> int:
    """Of inputs that wait on the host one is here, on its way."""
    on_its_way = device.total(SAVED["full"]) if device.remat == OFFLOAD else 0
    return device.shape.layers * saved_in_layer(device) + on_its_way


def saved_in_layer(device: Device) -> int:
    return device.total(SAVED[device.remat]) + (choices(device) if device.shape.experts else 0)


def offloaded_bytes(strategy: Strategy, shape: DecoderShape, axes: Axes) -> int:
    """That cross the link between a device and its host in a step, there and back: the inputs of layers, of a pipeline
    those of a mean stage."""
    stacks = [stack for stack in Device(strategy, "explicit", shape, axes).stacks if stack.remat == OFFLOAD]
    every = sum(stack.shape.layers * stack.total(SAVED["full"]) for stack in stacks)
    return 2 * shape.accumulation * every // axes.shape.get(PIPE, 1)


def choices(device: Device) -> int:
    """What a router chose, in 4 bytes each: kept under every policy, lest the backward pass choose otherwise."""
    shape, tokens = device.shape, device.tokens(device.strategy.inside)
    by_experts = tokens // shape.length * shape.experts * shape.slots
    return 4 * (by_experts if shape.router == "expert_choice" else tokens * shape.top_k)


def saved_weights(device: Device) -> int:
    """Without recomputation the backward pass uses the copies of the forward pass; a weight that is constrained to a
    layout is one, too."""
    kept = device.used(device.matrices) if device.style == "explicit" else device.in_products(device.matrices)
    return 0 if device.is_recomputed else device.shape.layers * kept
