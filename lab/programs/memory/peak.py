"""What theory puts on one device at the moment when it holds most."""

from __future__ import annotations

from lab.meshes.axes import Axes
from lab.programs.memory.device import Device
from lab.programs.memory.moments import moments
from lab.programs.memory.state import static_bytes
from lab.programs.memory.terms import MemoryTerm, Terms, fullest
from lab.programs.memory.xla_gpu import budget
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.strategy import Strategy


def peak_terms(
    strategy: Strategy, style: str, shape: DecoderShape, axes: Axes, memory_bytes: int | None = None
) -> Terms:
    """Bytes of one device at the fullest moment of a step, by term; their sum is the peak.

    Copies into other layouts are those that XLA's GPU compiler makes of whole stacks; what else it keeps beside these
    terms is left out, and so is what its schedule moves (G11). Of a step that has no room in a chip of `memory_bytes`,
    where that is given, it makes again what it would else keep: probabilities, and the zeros that gradients begin with
    (G10).
    Source: Ch. 19, `ch19.total`, with the activations of `lab.book.activations`.
    """
    static = {MemoryTerm.ARGUMENTS: static_bytes(strategy, shape, axes)}
    terms = static | fullest(moments(Device(strategy, style, shape, axes)))
    if memory_bytes is None or sum(terms.values()) <= budget(memory_bytes, static[MemoryTerm.ARGUMENTS]):
        return terms
    return static | fullest(moments(Device(strategy, style, shape, axes, is_cramped=True)))
