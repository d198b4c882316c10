"""The layer that is gone through backwards, at the points where it may be fullest."""

from __future__ import annotations

from lab.programs.memory.device import Device
from lab.programs.memory.gradients import is_scattered_in_layers
from lab.programs.memory.saved import saved_in_layer
from lab.programs.memory.terms import MemoryTerm, Terms, fullest
from lab.programs.memory.xla_gpu import (
    has_gradients_as_found,
    is_peeled,
    keeps_mlp,
    keeps_probabilities,
    weights_relayout,
)

SQUARE = ("softmax", "probabilities")
ATTENTION = ("attention_norm_in", "attention_normed", "attention_in", "q", "k", "v")


def layer_at_work(device: Device) -> Terms:
    """Of the stack whose layers are fullest."""
    return fullest([_layer_at_work(stack) for stack in device.stacks])


def _layer_at_work(device: Device) -> Terms:
    gathers_ahead = is_peeled(device) and device.is_recomputed
    return fullest(points(device)) | {
        MemoryTerm.NEXT_LAYER_WEIGHTS: device.used(device.matrices) if gathers_ahead else 0,
        MemoryTerm.WEIGHTS_RELAYOUT: weights_relayout(device) if device.is_recomputed else 0,
        MemoryTerm.LAYER_GRADS_UNSCATTERED: (
            device.in_products(device.matrices) if is_scattered_in_layers(device) else 0
        ),
    }


def points(device: Device) -> list[Terms]:
    if device.is_tiled:
        return [in_tiles(device)]
    if device.is_split_between_blocks:
        return [in_gathers(device), in_attention(device)]
    return [*([in_mlp(device)] if device.is_recomputed else []), in_attention(device)]


def in_mlp(device: Device) -> Terms:
    """When its MLP's gradients are made: what attention will need, the MLP's tensors and the gradients of two, and
    streams with theirs."""
    streams = device.total(("attention_in", "mlp_in")) + 3 * device.stream + 2 * device.tensors["input"]
    waiting = device.total(("q", "k", "v", "softmax", "attended"))
    inner = {MemoryTerm.LAYER_ACTIVATIONS: waiting + 4 * device.tensors["hidden"] + streams}
    return inner | _weights_but(device, "down")


def in_attention(device: Device) -> Terms:
    """When its attention's are, where scores are largest: what it keeps, the gradients of scores, and the MLP's tensors
    until its weights' are made."""
    if device.is_recomputed:
        mlp = 4 * device.tensors["hidden"] if keeps_mlp(device) else 0
        inner = {MemoryTerm.LAYER_ACTIVATIONS: device.total(ATTENTION) + mlp}
        return _scores_and_gradients(device) | inner | _weights_but(device, "down", "up", "gate")
    # Of stacks that are kept, a layer that is peeled off the loop has slices of its own.
    slices = {MemoryTerm.LAYER_ACTIVATIONS: saved_in_layer(device) if is_peeled(device) else 0}
    return fullest(
        [slices, _scores_and_gradients(device) if device.remat == "selective" else _slices_of_scores(device)]
    )


def _slices_of_scores(device: Device) -> Terms:
    """Where they are kept; in a branch their gradients stand beside them, in the layouts of both products."""
    scores, probabilities = (device.tensors[name] for name in SQUARE)
    if not device.is_in_branch:
        return {MemoryTerm.LAYER_ACTIVATIONS: scores + probabilities}
    mask = scores // 4 if device.shape.causal else 0
    return {MemoryTerm.SCORES_AND_GRADS: 3 * scores + probabilities, MemoryTerm.ATTENTION_MASK: mask}


def _scores_and_gradients(device: Device) -> Terms:
    """Of a layer whose attention is computed again. Through a softmax goes back what needs its scores, their gradients
    and those of the probabilities; these themselves wait until the gradients of values are made of them."""
    scores, probabilities = (device.tensors[name] for name in SQUARE)
    return {
        MemoryTerm.SCORES_AND_GRADS: 2 * scores + probabilities,
        MemoryTerm.SAVED_PROBABILITIES: probabilities if keeps_probabilities(device) else 0,
    }


def in_gathers(device: Device) -> Terms:
    """When gradients of queries, keys and values are, of a stream that is split between blocks: both blocks' inputs,
    unless they are kept, and gradients of what both gave are gathered; queries, keys and values each have a gradient of
    the whole, and their sum."""
    inner = device.total(("q", "k", "v", "attended")) + 4 * device.tensors["hidden"] + 4 * device.tensors["input"]
    return {
        MemoryTerm.GATHERED_RESIDUALS_AND_GRADS: (8 if device.is_recomputed else 6) * device.stream,
        MemoryTerm.LAYER_ACTIVATIONS: inner if device.is_recomputed else 0,
    } | _weights_but(device, "down")


def in_tiles(device: Device) -> Terms:
    """When attention's are, tile by tile. Scores and their gradients are float32 and, for products, rounded. Queries,
    and what comes back to them, stand in the layouts of products: of a tile, and of a block."""
    q, keys, float32 = device.tensors["q"], device.keys_met, 4 // device.shape.bytes_per_element
    around = device.is_ring
    return {
        MemoryTerm.TILE_SCORES_AND_GRADS: (2 * device.tensors["softmax"] + 3 * device.tensors["probabilities"])
        // device.strategy.pieces,
        MemoryTerm.QUERIES_AND_OUTPUTS_RELAYOUT: (7 if around else 6) * q,
        MemoryTerm.QUERY_GRADS_F32: (2 if around else 1) * q * float32,
        MemoryTerm.KEYS_AND_VALUES: 4 * keys,
        MemoryTerm.KEY_AND_VALUE_GRADS_F32: (6 if around else 2) * keys * float32,
        MemoryTerm.RESIDUALS_AND_MLP_ACTIVATIONS: 4 * device.stream
        + (4 if around and not has_gradients_as_found(device) else 1) * device.tensors["hidden"],
    } | _weights_but(device, "down")


def _weights_but(device: Device, *done: str) -> Terms:
    """Weights that are made for this layer again, without those whose products are done."""
    used = device.used(w for w in device.matrices if not w.scope.endswith(done)) if device.is_recomputed else 0
    return {MemoryTerm.LAYER_WEIGHTS_IN_USE: used}
