"""The second source's memory of training with several models at once (ml.21)."""

from collections.abc import Sequence

from lab.book.checks import not_negative


def models_state_bytes(
    trained: Sequence[int], frozen: Sequence[int], trained_bytes: int = 16, frozen_bytes: int = 2
) -> int:
    """16 bytes a parameter that is trained, 2 of one that is only run: all models together. Source: ml,
    `ml.21_rlhf_memory`."""
    not_negative(trained=trained, frozen=frozen, trained_bytes=trained_bytes, frozen_bytes=frozen_bytes)
    return trained_bytes * sum(trained) + frozen_bytes * sum(frozen)
