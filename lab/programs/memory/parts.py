"""Which terms of a predicted peak are off, where XLA plans another: buffers of its fullest moment, by the part
of the step that makes them, beside the terms of that part.

What loops carry, and zeros that gradients begin with, are in no scope of their own: they are one part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto

from lab.hlo.buffers import LiveBuffer
from lab.hlo.names import scope
from lab.programs.memory.terms import MemoryTerm, Terms

TOLERANCE = 0.05
"""Of XLA's peak: terms are said to be off beyond it."""
LEAST_PEAK = 10**8
"""Bytes: in less, what no term counts is much."""
SHARE = 0.01
"""Of XLA's peak, in a part: less is not named."""


class Part(StrEnum):
    """Of a step, as far as names tell."""

    CARRIED = auto()
    LAYER = auto()
    ENDS = auto()


LABELS: dict[str, str] = {
    Part.CARRIED: "what loops carry: activations, gradients, sums, weights cut out or copied",
    Part.LAYER: "one layer's attention and MLP",
    Part.ENDS: "embedding, head and loss",
}
OF_LAYER = (
    MemoryTerm.SCORES_AND_PROBABILITIES,
    MemoryTerm.ATTENTION_MASK,
    MemoryTerm.LAYER_GRADS_UNSCATTERED,
    MemoryTerm.LAYER_ACTIVATIONS,
    MemoryTerm.LAYER_WEIGHTS_IN_USE,
    MemoryTerm.NEXT_LAYER_WEIGHTS,
    MemoryTerm.SCORES_AND_GRADS,
    MemoryTerm.SCORES_RELAYOUT,
    MemoryTerm.SAVED_PROBABILITIES,
    MemoryTerm.GATHERED_RESIDUALS_AND_GRADS,
    MemoryTerm.TILE_SCORES_AND_GRADS,
    MemoryTerm.QUERIES_AND_OUTPUTS_RELAYOUT,
    MemoryTerm.QUERY_GRADS_F32,
    MemoryTerm.KEYS_AND_VALUES,
    MemoryTerm.KEY_AND_VALUE_GRADS_F32,
    MemoryTerm.RESIDUALS_AND_MLP_ACTIVATIONS,
    MemoryTerm.LAYER_HALF,
)
OF_ENDS = (
    MemoryTerm.LOGITS,
    MemoryTerm.TARGETS_MASK,
    MemoryTerm.HEAD_WEIGHTS_IN_USE,
    MemoryTerm.LOGITS_GRAD,
    MemoryTerm.HEAD_INPUT,
    MemoryTerm.HEAD_GRAD,
    MemoryTerm.EMBEDDING_GRAD_ZEROS,
    MemoryTerm.EMBEDDING_GRAD,
    MemoryTerm.EMBEDDING_AND_HEAD_GRADS,
)
PART_OF = dict.fromkeys(OF_LAYER, Part.LAYER) | dict.fromkeys(OF_ENDS, Part.ENDS)
SCOPES = {Part.LAYER: ("attention", "mlp"), Part.ENDS: ("embedding", "norm", "head", "loss")}


@dataclass(frozen=True)
class PartOff:
    """A part in which XLA holds more or less than its terms say.

    Attributes:
      predicted, measured: bytes at the fullest moment.
      terms: ids of the terms that it has.
      largest: the scopes, or the arguments that are copied, whose buffers are largest in it, with the bytes of these.
    """

    part: Part
    predicted: int
    measured: int
    terms: tuple[MemoryTerm, ...]
    largest: tuple[tuple[str, int], ...]


def is_off(held: Terms, peak: int, padding: int = 0) -> bool:
    return peak >= LEAST_PEAK and abs(sum(held.values()) + padding - peak) > TOLERANCE * peak


def parts_off(held: Terms, at_peak: Iterable[LiveBuffer], peak: int) -> tuple[PartOff, ...]:
    """Those that differ by more than `SHARE` of the peak, the most first; arguments are no part.

    Args:
      held: predicted bytes by term.
      at_peak: the temporaries of XLA's fullest moment.
    """
    buffers: dict[Part, dict[str, int]] = {part: {} for part in Part}
    for buffer in at_peak:
        of_part, name = buffers[part_of(buffer.op_name)], _origin(buffer.op_name)
        of_part[name] = of_part.get(name, 0) + buffer.size
    found = []
    for part, sizes in buffers.items():
        terms = {t: size for t, size in held.items() if size and _part_of_term(t) == part}
        largest = tuple(sorted(sizes.items(), key=lambda each: -each[1])[:3])
        found.append(PartOff(part, sum(terms.values()), sum(sizes.values()), tuple(terms), largest))
    off = (each for each in found if abs(each.measured - each.predicted) > SHARE * peak)
    return tuple(sorted(off, key=lambda each: -abs(each.measured - each.predicted)))


def part_of(op_name: str) -> Part:
    """By the scopes of what makes a buffer; new weights that are gathered are no layer at work."""
    scopes = scope(op_name).split("/")
    if scopes[0] == "renew":
        return Part.CARRIED
    if any(name in scopes for name in SCOPES[Part.LAYER]):
        return Part.LAYER
    return Part.ENDS if any(name in scopes for name in SCOPES[Part.ENDS]) else Part.CARRIED


def _origin(op_name: str) -> str:
    """A scope; or, of a copy of an argument, its name: `state.master['layers']['gate'].value`."""
    return scope(op_name) if "/" in op_name else op_name


def _part_of_term(term: MemoryTerm) -> Part | None:
    return None if term == MemoryTerm.ARGUMENTS else PART_OF.get(term, Part.CARRIED)
