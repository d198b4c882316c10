"""What the reader makes of a damaged text: a program that is silently another one is what must not happen."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lab import diagnosis
from lab.core.codec import to_text
from lab.core.ledger import Ledger, axes_label
from lab.diagnosis.program import Program
from lab.hlo.read import read
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.report.diagnosis import diagnosis_text

PATIENCE_S = 20


class Outcome(StrEnum):
    """From `CRASHED` to `SILENT` what must not happen."""

    CRASHED = "crashed"
    HUNG = "hung"
    SILENT = "silently another program"
    REFUSED = "refused in a line"
    INCOMPLETE = "incomplete, with a note"
    NOTED = "complete, with a note"
    SAME = "complete, the same totals"
    OTHER = "complete, another program that XLA's parser reads the same"


WRONG = (Outcome.CRASHED, Outcome.HUNG, Outcome.SILENT)


@dataclass(frozen=True)
class Seen:
    """A ledger as it is compared: totals by kind and axes, FLOPs, notes."""

    totals: tuple[Any, ...]
    notes: frozenset[str]
    is_complete: bool

    @classmethod
    def of(cls, ledger: Ledger) -> Seen:
        totals = ledger.totals_by(lambda t: f"{t.kind} {axes_label(t)} {t.group_size}")
        return cls((ledger.flops, *sorted(totals.items())), frozenset(ledger.notes), ledger.is_complete)


def seen(text: str, axes: Axes | None) -> Seen:
    """All that `lab inspect` does with a text."""
    reading = read(text, source="text", axes=axes)
    found = diagnosis.of(Program(reading.ledger, reading, axes))
    shown = diagnosis_text(found) + to_text(found)
    assert "\x1b" not in shown
    return Seen.of(reading.ledger)


def judged(
    whole: Seen, text: str, axes: Axes | None, printed_by_xla: Callable[[str], str | None]
) -> tuple[Outcome, str]:
    """The outcome, and what shows it."""
    try:
        with time_limit(PATIENCE_S):
            now = seen(text, axes)
    except UsageError as refusal:
        return (Outcome.CRASHED if "\n" in str(refusal) else Outcome.REFUSED), str(refusal)
    except TimeoutError:
        return Outcome.HUNG, traceback.format_exc()
    except Exception:
        return Outcome.CRASHED, traceback.format_exc()
    if not now.is_complete:
        return (Outcome.INCOMPLETE, "") if now.notes else (Outcome.SILENT, "incomplete without a note")
    if now.notes - whole.notes:
        return Outcome.NOTED, "; ".join(now.notes - whole.notes)
    if now.totals == whole.totals:
        return Outcome.SAME, ""
    difference = f"{whole.totals}\n-> {now.totals}"
    printed = printed_by_xla(text)
    if printed is None:
        return Outcome.SILENT, f"XLA refuses it: {difference}"
    try:
        again = seen(printed, axes)
    except UsageError as refusal:
        return Outcome.SILENT, f"{difference}, but as XLA prints it: {refusal}"
    is_same = again.totals == now.totals and again.is_complete
    return (Outcome.OTHER, difference) if is_same else (Outcome.SILENT, f"{difference}\nas XLA prints it {again}")


class time_limit:
    """Ends what runs longer with TimeoutError, in the main thread of a process."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.alarm(self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _ring(*_: object) -> None:
        raise TimeoutError
