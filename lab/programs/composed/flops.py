"""Floating-point operations of a configuration's training step on one device, exactly: what is more than 6 N a token,
by its cause (Ch. 24, 27)."""

from __future__ import annotations

from enum import StrEnum

from lab.attention.tiles import tile_size
from lab.programs.composed.configuration import Configuration
from lab.programs.models.shape import DecoderShape

TRAINED = 6
"""Of a parameter and token: a product forward, two backward (`ch24.compute_time`)."""
FORWARD, BACKWARD, BACKWARD_BY_TILES = 2, 4, 5
"""Products of queries with keys, and of what they weigh with values; by tiles scores are made again (Dao 2023)."""
ATTENTION_AGAIN = {"none": 0, "selective": 1, "dots": 2, "names": 2, "full": 2}
"""Products of attention that the backward pass runs again, by `remat`."""


class Cause(StrEnum):
    WEIGHTS = "6 a weight that is multiplied, and token"
    WEIGHTS_AGAIN = "products with weights recomputed"
    ATTENTION = "attention"
    ATTENTION_AGAIN = "attention recomputed"


def flops(configuration: Configuration, model: DecoderShape) -> dict[Cause, int] | None:
    """By cause; None of a step that has stages, experts, latents, a further prediction or sequences over ranks, whose
    work is not the same on all devices or is not derived here."""
    is_plain = not (model.experts or model.kv_rank or model.mtp)
    if configuration.pipe > 1 or configuration.context > 1 or not is_plain:
        return None
    tokens = model.batch * model.length // configuration.devices
    embed, L, width = model.embed, model.layers, model.heads * model.head_dim
    by_tiles = configuration.attention == "tiles"
    # What only the residual stream takes is not needed again.
    leaves = {"full": L * model.mlp * embed, "names": L * embed * (model.mlp + width)}
    again = model.layer_matrices - leaves[configuration.remat] if configuration.remat in leaves else 0
    one = 2 * tokens * L * model.length * width
    rows = one // model.length if by_tiles else 0
    attention_again = ATTENTION_AGAIN[configuration.remat]
    if by_tiles and attention_again:
        # Of one tile XLA makes the scores once more, for both.
        attention_again = 1 if tile_size(model.length) == model.length else 2
    return {
        Cause.WEIGHTS: TRAINED * tokens * (model.layer_matrices + embed * model.vocab),
        Cause.WEIGHTS_AGAIN: 2 * tokens * again,
        Cause.ATTENTION: one * (FORWARD + (BACKWARD_BY_TILES if by_tiles else BACKWARD)) + rows,
        Cause.ATTENTION_AGAIN: one * attention_again,
    }
