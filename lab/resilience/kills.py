"""A training that is killed again and again, and what its restarts find."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lab.core.known import known
from lab.core.units import count
from lab.meshes.errors import UsageError
from lab.resilience.checkpoints import committed
from lab.resilience.worker import CLOCK_S, Event, Work, kill, listen, never, start


@dataclass(frozen=True)
class Life:
    """One start of a training, until it was killed or had done its steps.

    Attributes:
      newest, committed: the newest committed step before it began, and after it; 0 where there was none.
      events: of its first process.
      began, killed: seconds of the machine's monotonic clock; what was done ends by itself.
      while_saving: a checkpoint was being written when it was killed.
      hung: it said nothing for longer than the clock allows.
    """

    newest: int
    committed: int
    events: tuple[Event, ...]
    began: float
    killed: float | None
    while_saving: bool
    hung: bool

    def of(self, what: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.what == what)

    @property
    def losses(self) -> dict[int, float]:
        return {event.step: event.said for event in self.of("step")}

    @property
    def lost_s(self) -> float | None:
        """Time whose work is lost by the kill: since the newest commit's snapshot, if that was taken in this life."""
        taken = {event.step: event.at for event in self.of("saving")}
        return self.killed - taken[self.committed] if self.killed is not None and self.committed in taken else None

    @property
    def is_at_newest(self) -> bool:
        """It began where the newest commit was; True where it did not live long enough to say."""
        return not self.of("damaged") and all(event.step == self.newest for event in self.of("restored"))


def lives(work: Work, seed: int, start_s: float, run_s: float) -> Iterator[Life]:
    """Starts the training and kills it, all its processes at once, at an instant drawn anew each time; without end.

    One in five is killed within `start_s` of its start, the others within `run_s` of the moment when they begin their
    first or second save; the second begins when the first is committed. A training that has done all steps begins anew,
    in another folder.
    """
    draw, number = random.Random(seed), 0
    here = replace(work, folder=work.folder / "0")
    while True:
        saves = draw.choice((0, 1, 1, 2, 2))
        life = _life(here, saves, draw.random() * (run_s if saves else start_s))
        yield life
        if life.of("done") or life.of("damaged"):
            number += 1
            here = replace(work, folder=work.folder / str(number))


def _life(work: Work, saves: int, wait_s: float) -> Life:
    """Killed `wait_s` after so many saves have begun."""
    newest, began = max(committed(work.folder), default=0), time.monotonic()
    started = start(work)
    try:
        heard, hung = list[Event](), False
        while not hung and sum(event.what == "saving" for event in heard) < saves and started[0].process.is_alive():
            more, hung = listen(started[0], lambda event: event.what == "saving")
            heard += more
        time.sleep(wait_s)
        done = not any(one.process.is_alive() for one in started)
    finally:
        kill(started)
    killed = time.monotonic()
    rest, _ = listen(started[0], never, clock_s=1)
    is_saving = any(work.folder.glob("*tmp*"))
    after = max(committed(work.folder), default=0)
    return Life(newest, after, (*heard, *rest), began, None if done else killed, is_saving, hung)


def uninterrupted(work: Work) -> Mapping[int, float]:
    """The loss of each step of the same training without a failure.

    Raises:
      UsageError: it hangs.
    """
    started = start(work)
    try:
        heard, hung = listen(started[0], never)
    finally:
        kill(started)
    if hung:
        raise UsageError(
            f"a training of {count(work.steps, 'step')} said nothing for {CLOCK_S:.0f} s, expected a step; it "
            "hangs, or the machine is busy: try it when that is idle"
        )
    return {event.step: event.said for event in heard if event.what == "step"}


def detected_s(work: Work, number: signal.Signals) -> float:
    """Seconds until the first process ends after the last one has got a signal in the middle of its steps: SIGKILL, as
    where a host dies and its kernel closes its sockets, or SIGSTOP, as where it hangs and keeps them.

    Raises:
      UsageError: it does not end.
    """
    started = start(work)
    try:
        listen(started[0], lambda event: event.what == "step")
        os.kill(known(started[-1].process.pid), number)
        at = time.monotonic()
        _, hung = listen(started[0], never)
        found = time.monotonic() - at
    finally:
        kill(started)
    if hung:
        raise UsageError(
            f"a process still waits {found:.0f} s after another got {number.name}, expected it to end after the "
            f"heartbeat of {work.heartbeat_s} s; try it when the machine is idle"
        )
    return found


def killed(work: Work, times: int, seed: int = 0, start_s: float = 1.0, run_s: float = 1.0) -> tuple[Life, ...]:
    """That many lives which ended by a kill, with those between them that ended by themselves."""
    found = list[Life]()
    for life in lives(work, seed, start_s, run_s):
        found.append(life)
        if sum(each.killed is not None for each in found) == times:
            break
    return tuple(found)
