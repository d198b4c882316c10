"""The moments of a step: a layer's scores, the head, both ends of the backward pass of the layers, what follows it, and
the update; a step is fullest at one of them."""

from __future__ import annotations

from lab.book.memory import model_state_bytes
from lab.programs.memory.device import Device
from lab.programs.memory.gradients import ends_waiting, gradients, head_later
from lab.programs.memory.layer_backward import SQUARE, layer_at_work
from lab.programs.memory.saved import saved
from lab.programs.memory.terms import MemoryTerm, Terms
from lab.programs.memory.xla_gpu import (
    finds_head_grad_at_once,
    is_peeled,
    scores_relayout,
    updates_embedding_swapped,
    weights_relayout,
)


def moments(device: Device) -> tuple[Terms, ...]:
    """Without the arguments, which are there at each."""
    kept = saved(device) | ends_waiting(device)
    return (
        saved(device) | going_forward(device),
        saved(device) | at_head(device),
        kept | before_layers_backward(device),
        kept | gradients(device) | layer_at_work(device),
        after_layers_backward(device),
        optimizer_update(device),
    )


def going_forward(device: Device) -> Terms:
    """A layer's attention: scores and probabilities, and what is made before the loop: the mask of a byte a score, and
    in float32 what hides a score."""
    if device.is_tiled:
        return {}
    scores, probabilities = (device.tensors[name] for name in SQUARE)
    return {
        MemoryTerm.SCORES_AND_PROBABILITIES: scores + probabilities,
        MemoryTerm.ATTENTION_MASK: scores // 4 + scores if device.shape.causal else 0,
        MemoryTerm.WEIGHTS_RELAYOUT: weights_relayout(device),
    }


def at_head(device: Device) -> Terms:
    """When the stream's gradient is made, of the head as it is used; where the head's is made before, what the layers'
    loop begins with waits, too."""
    if finds_head_grad_at_once(device):
        waiting: Terms = {
            MemoryTerm.HEAD_GRAD: device.in_products(device.ends[-1:]),
            MemoryTerm.WEIGHTS_RELAYOUT: weights_relayout(device),
        } | zeros_of_layers(device)
    else:
        waiting = ends_waiting(device)
    return waiting | {
        MemoryTerm.LOGITS: device.logits,
        MemoryTerm.HEAD_WEIGHTS_IN_USE: device.used(device.ends[-1:]),
    }


def zeros_of_layers(device: Device) -> Terms:
    """What their gradients begin with, where there is room (G10)."""
    return {} if device.is_cramped else gradients(device)


def before_layers_backward(device: Device) -> Terms:
    """Scores are copied; the layer that is peeled off the loop begins before."""
    copied = {MemoryTerm.SCORES_RELAYOUT: scores_relayout(device)} | zeros_of_layers(device)
    return copied | (layer_at_work(device) if is_peeled(device) else {})


def after_layers_backward(device: Device) -> Terms:
    """Gradients of the ends, as products leave them; what the layer that is peeled off the loop gives is scattered
    then, too."""
    ends = gradients(device) | {MemoryTerm.EMBEDDING_AND_HEAD_GRADS: device.in_products(device.ends)}
    if not is_peeled(device):
        return ends
    return ends | {MemoryTerm.LAYER_GRADS_UNSCATTERED: device.in_products(device.matrices)} | head_later(device)


def optimizer_update(device: Device) -> Terms:
    """Where weights in use are a copy: the whole of one stack, gathered, and new states in the layout of gathers, their
    split dim first."""
    strategy = device.strategy
    if strategy.state is None:
        return embedding_update(device) if updates_embedding_swapped(device) else {}
    parts = [w for w in (*device.matrices, *device.ends) if strategy.splits_further(w.dims)]
    moved = [w for w in parts if not strategy.splits_further(w.dims[-1:])]
    state = model_state_bytes(device.count(moved, strategy.master), weight_bytes=0, gradient_bytes=0)
    return {
        MemoryTerm.GATHERED_NEW_WEIGHTS: device.shape.bytes_per_element
        * max(device.count([w], strategy.weights) for w in parts),
        MemoryTerm.OPTIMIZER_STATE_RELAYOUT: int(state),
    }


def embedding_update(device: Device) -> Terms:
    """Read with its dims swapped, the embedding's state cannot be written in its place."""
    state = model_state_bytes(device.count(device.ends[:1], device.strategy.weights), weight_bytes=0, gradient_bytes=0)
    return gradients(device) | {
        MemoryTerm.EMBEDDING_AND_HEAD_GRADS: device.in_products(device.ends),
        MemoryTerm.OPTIMIZER_STATE_RELAYOUT: int(state),
    }
