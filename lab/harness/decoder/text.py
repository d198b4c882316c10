"""Text that every machine has, though not the same: the bytes of its own Python's standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from lab.meshes.errors import UsageError

BYTES = 256
"""Values of a byte, the whole vocabulary."""


def standard_library() -> np.ndarray:
    """All modules of the standard library that are single files, by name, one after the other: uint8.

    Raises:
      UsageError: this Python came without sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))
    if not files:
        raise UsageError(f"{folder} has no .py files; use a Python that includes the sources of its standard library")
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def batches(
    text: np.ndarray, steps: int, batch: int, length: int, seed: int = 0
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each step tokens and the tokens that follow them, int32 [batch, length], from random places."""
    starts = np.random.default_rng(seed).integers(0, text.size - length, (steps, batch, 1))
    windows = text[starts + np.arange(length + 1)].astype(np.int32)
    return [(window_BS[:, :-1], window_BS[:, 1:]) for window_BS in windows]


def guessing(text: np.ndarray) -> float:
    """Nats a token of whoever knows how often each byte occurs, and no more: a loss below has learned from what comes
    before."""
    shares = np.bincount(text, minlength=BYTES) / text.size
    return float(-sum(share * np.log(share) for share in shares if share))
