"""Part VIII: what an investigation computes: categories of log lines, stalls, periods, costs (Ch. 33)."""

import re
from collections.abc import Sequence

import numpy as np

from lab.book.checks import finite, not_negative, positive, share

CATEGORIES = {
    "OOM": r"\b(out of memory|oom)\b",
    "HARDWARE": r"\b(ecc|xid|fallen off the bus)\b",
    "NETWORK": r"\b(nccl|gloo|rdma|infiniband|connection (reset|refused)|etimedout|econnreset)\b",
    "NUMERICAL": r"(?<![\w-])[+-]?(nan|inf)\b",
    "TIMEOUT": r"\b(timed out|timeout|deadline exceeded)\b",
    "DEVICE": r"\b(device mismatch|expected all tensors to be on the same device|invalid device)\b",
}
"""Words that tell the category of a failure, the surest first. Source: Ch. 33, `ch33.patterns` with word boundaries."""


def category(line: str) -> str | None:
    """The first of `CATEGORIES` whose words are in a log line; None for none. Source: Ch. 33, `ch33.patterns`."""
    return next((name for name, words in CATEGORIES.items() if re.search(words, line, re.IGNORECASE)), None)


def confidence(matches: float) -> float:
    """min(0.5 + 0.1 n, 0.95) for n lines of a category. A rule of thumb. Source: Ch. 33, `ch33.patterns`."""
    not_negative(matches=matches)
    return np.minimum(0.5 + 0.1 * matches, 0.95)


def improvement(losses: Sequence[float], window: int = 100) -> float:
    """(older - recent) / older, the means of the last two windows of losses; negative where the loss grows.

    A run stalls below 0.1 %, and diverges below 0: ask for the second first. Source: Ch. 33, `ch33.stall_rule` as
    corrected (6-8:D-113).

    Raises:
      ValueError: fewer losses than two windows.
    """
    finite(losses=losses)
    positive(window=window)
    if len(losses) < 2 * window:
        raise ValueError(f"losses={len(losses)}: expected two windows of {window}, that is {2 * window} or more")
    older, recent = np.mean(losses[-2 * window : -window]), np.mean(losses[-window:])
    return float((older - recent) / older)


def interval_variation(times_s: Sequence[float]) -> float:
    """(std / mean)^2 of the intervals between failures: 0 for a period, 1 for chance, whatever the unit of time.

    Source: Ch. 33, `ch33.stall_rule` as corrected (6-8:D-113).
    """
    intervals = np.diff(times_s)
    positive(interval_s=intervals)
    return float(np.var(intervals) / np.mean(intervals) ** 2)


def extra_h(hours: float, lost_share: float) -> float:
    """h s / (1 - s): hours more until the same work is done, where a share s of the rate was lost for h hours. Source:
    Ch. 33, `ch33.postmortem`."""
    positive(hours=hours)
    share(lost_share=lost_share)
    positive(kept_share=1 - np.asarray(lost_share))
    return hours * lost_share / (1 - lost_share)
