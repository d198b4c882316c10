"""A decoder over bytes, small enough to be trained under every layout."""

from __future__ import annotations

from dataclasses import dataclass

from lab.harness.decoder import text
from lab.meshes.errors import UsageError
from lab.programs.models.shape import DecoderShape


@dataclass(frozen=True)
class TrainingShape(DecoderShape):
    """A decoder over bytes, its batch, and how often it is trained on one.

    Attributes:
      steps: that each layout is trained for.
      layout: the only one to train; by default all.
    Raises:
      UsageError: as `DecoderShape`; fewer than two steps, a vocabulary without room for every byte, or experts that
        choose their tokens.
    """

    steps: int = 200
    layout: str = ""

    def __post_init__(self) -> None:
        if self.experts and self.router == "expert_choice":
            reason = (
                "sequences that start with the same bytes have equal gates up to rounding, so that several slots tie "
                "at once and no single loss curve is correct"
            )
            raise UsageError(f"router=expert_choice in a training: {reason}; use softmax or sigmoid_bias")
        super().__post_init__()
        if self.steps < 2:
            raise UsageError(f"steps={self.steps}: expected 2 or more")
        if self.vocab < text.BYTES:
            raise UsageError(f"vocab={self.vocab}: expected {text.BYTES} or more, one for each byte")


SMALL = TrainingShape().shrunk(vocab=text.BYTES, embed=64, head_dim=8, mlp=176)
"""Two layers and 32 tokens: a step takes a CPU milliseconds."""
