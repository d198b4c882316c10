"""Gradients while the layers are gone through backwards, and what those of embedding and head wait as."""

from __future__ import annotations

from collections.abc import Iterable

from lab.meshes.layouts import Layout
from lab.programs.memory.device import Device
from lab.programs.memory.terms import MemoryTerm, Terms
from lab.programs.memory.xla_gpu import finds_head_grad_at_once, leaves_head_for_later
from lab.programs.strategies.terms import Weight, weights

FLOAT32_BYTES = 4


def gradients(device: Device) -> Terms:
    """Of all layers: those of float32 weights, and sums over micro-batches, are float32."""
    return {
        MemoryTerm.LAYERS_GRADS: gradient_of([*device.matrices, *device.mtp_matrices], device),
        MemoryTerm.ACCUMULATED_GRADS: added(device) if device.shape.accumulation > 1 else 0,
    }


def gradient_of(some: Iterable[Weight], device: Device) -> int:
    """In the dtype of the weights that it belongs to."""
    is_float32 = device.strategy.state is None or device.is_anchored
    return (FLOAT32_BYTES if is_float32 else device.shape.bytes_per_element) * device.count(some, held(device))


def added(device: Device) -> int:
    """Sums over micro-batches; declared, the embedding's are scattered last: else tokens and cotangents would be
    gathered instead (X2)."""
    late = device.ends[:1] if device.style == "declared" else []
    others = [weight for weight in weights(device.shape) if weight not in late]
    return FLOAT32_BYTES * (device.count(late, device.strategy.weights) + device.count(others, held(device)))


def held(device: Device) -> Layout:
    """Of a gradient once its layer is done; declared, those of ZeRO-1 are scattered as they come, too (X7)."""
    strategy = device.strategy
    return strategy.master if device.is_anchored or device.style == "declared" else strategy.weights


def is_scattered_in_layers(device: Device) -> bool:
    """Gradients are, to parts that weights have not, from a whole that waits: ZeRO-2, and declared ZeRO-1 where
    micro-batches are added up."""
    return device.is_anchored or (
        device.style == "declared" and device.strategy.state is not None and device.shape.accumulation > 1
    )


def ends_waiting(device: Device) -> Terms:
    """Of head and embedding, through the backward pass of the layers: what the head's gradient is made of, or the
    gradient where that is smaller; and the zeros that the embedding's begins with, which wait for nothing (G10)."""
    zeros = {MemoryTerm.EMBEDDING_GRAD_ZEROS: 0 if device.is_cramped else device.in_products(device.ends[:1])}
    early, later = device.in_products(device.ends[-1:]), head_later(device)
    if finds_head_grad_at_once(device):
        return {MemoryTerm.HEAD_GRAD: early} | zeros
    if leaves_head_for_later(device):
        return later
    if early < sum(later.values()):
        return {MemoryTerm.HEAD_GRAD: early}
    return later if device.strategy.state else later | zeros


def head_later(device: Device) -> Terms:
    """What the gradient of the head is made of."""
    return {MemoryTerm.LOGITS_GRAD: device.logits, MemoryTerm.HEAD_INPUT: device.shape.predictions * device.stream}
