"""What XLA's GPU compiler adds to a step or orders otherwise; G2, G10 and G11 stand in the catalogue of compiler
behaviours."""

from __future__ import annotations

from lab.meshes.layouts import Layout
from lab.programs.memory.device import Device


def budget(memory_bytes: int, arguments: int) -> int:
    """G10: what a step may hold: its arguments, and 95 % of what they leave of 80 % of the chip."""
    return int(0.95 * 0.8 * memory_bytes + 0.05 * arguments)


def is_peeled(device: Device) -> bool:
    """G2: a layer is taken out of the backward loop, to gather ahead."""
    return device.is_gathered and device.style == "explicit"


def finds_head_grad_at_once(device: Device) -> bool:
    """G11: the head's gradient is made at once where nothing but a scatter over all devices follows it, and scattered
    last: declared ZeRO-3."""
    return (
        device.is_gathered
        and device.style == "declared"
        and not device.strategy.copies(device.ends[-1].dims)
        and not device.is_vocab_split
    )


def leaves_head_for_later(device: Device) -> bool:
    """G11: where the stream is split, or written out the vocabulary, what the head hands back is summed or scattered
    first; where weights are gathered in layers (G2), or gradients belong to parts of states, these are scattered. The
    head's gradient is made beside a transfer that follows."""
    is_reduced = device.style == "explicit" and (device.is_vocab_split or device.strategy.state is not None)
    return device.is_split_between_blocks or is_peeled(device) or is_reduced


def keeps_probabilities(device: Device) -> bool:
    """G10, G11: where a whole layer is computed again its attention comes first, since its MLP needs what that adds.
    The gradients of values are made at once where no transfer is to be hidden; of several sequences, unless the stream
    is gathered for them. Declared, probabilities are made once more, and so they are where a step has no room."""
    is_full_and_explicit = device.shape.remat == "full" and device.style == "explicit"
    is_gathered_for = device.is_split_between_blocks and not device.is_in_branch
    is_hiding = is_moved_in_layers(device) and (device.sequences == 1 or is_gathered_for)
    return is_full_and_explicit and is_hiding and not device.is_cramped


def keeps_mlp(device: Device) -> bool:
    """G11: gradients of the MLP's weights are made last of a layer's; not those that need no other type, and not in a
    branch where they hide transfers of activations, unless they are scattered themselves."""
    hides = device.is_in_branch and device.splits(device.strategy.inside, Layout())
    is_scattered = device.is_gathered or device.is_anchored
    return is_scattered or not (hides or has_gradients_as_found(device))


def has_gradients_as_found(device: Device) -> bool:
    """Those of layers, in 16 bits: ZeRO-1's."""
    return device.style == "explicit" and device.strategy.state is not None and not device.is_anchored


def has_zeros_at_head(device: Device) -> bool:
    """G11: in a branch, layers' gradients begin with zeros that are made before the head's where keys go round a ring
    or float32 weights meet a split stream; never of a loop off which a layer is peeled (G2)."""
    is_split = device.is_split_between_blocks and device.strategy.state is None
    return (device.is_ring or is_split) and not device.is_gathered


def is_moved_in_layers(device: Device) -> bool:
    """Something is, as they are gone through backwards: weights, their gradients, or parts of products."""
    return device.is_gathered or device.is_anchored or device.splits(device.strategy.inside, Layout())


def weights_relayout(device: Device) -> int:
    """G11: stacks of float32 masters are copied for both loops: for gathers, those whose split dim is not their first,
    so that it is; in a loop over micro-batches the embedding, too. For experts, whose products are batched, two, so
    that what these sum over comes last."""
    if device.is_gathered:
        ends = device.ends[:1] if device.shape.accumulation > 1 else []
        some = [weight for weight in (*device.matrices, *ends) if device.is_gathered_along(weight.dims[1:])]
    else:
        some = [w for w in device.matrices if device.shape.experts and w.scope.endswith(("gate", "up"))]
    return 4 * device.count(some, device.strategy.weights)


def scores_relayout(device: Device) -> int:
    """G11: the softmax of all layers is copied before the backward pass."""
    return device.shape.layers * device.tensors["softmax"] if device.remat == "none" else 0


def updates_embedding_swapped(device: Device) -> bool:
    """G11: typed, the gradient of an embedding whose rows are all here is added up with its dims swapped, and handed to
    the update so."""
    is_own = len(device.ends) == 2 and not (device.is_gathered or device.is_vocab_split)
    return device.style == "typed" and device.shape.accumulation == 1 and is_own
