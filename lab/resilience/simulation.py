"""Trainings that fail, event by event: the referee of the closed forms of `lab.book.goodput`, with which it shares no
code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Setting:
    """How a training saves and fails, in seconds.

    Attributes:
      interval_s: of work, after which a neighbour gets a copy.
      per_store: intervals after which the store gets one as well.
      near_save_s, store_save_s: that a copy blocks.
      write_s: after which a copy in the store counts.
      near_mtbf_s, store_mtbf_s: between failures that need the one or the other.
      detect_s: of every failure.
      near_restart_s, store_restart_s: after it is detected.
    """

    interval_s: float
    per_store: int = 1
    near_save_s: float = 0.0
    store_save_s: float = 0.0
    write_s: float = 0.0
    near_mtbf_s: float = np.inf
    store_mtbf_s: float = np.inf
    detect_s: float = 0.0
    near_restart_s: float = 0.0
    store_restart_s: float = 0.0


@dataclass(frozen=True)
class Elapsed:
    """Seconds of every run, [runs] each: useful, blocked by saves that were not in vain, lost, and of failures until
    they were detected and until work began again."""

    useful: np.ndarray
    saving: np.ndarray
    lost: np.ndarray
    detecting: np.ndarray
    restarting: np.ndarray

    @property
    def total(self) -> np.ndarray:
        whole: np.ndarray = self.useful + self.saving + self.lost + self.detecting + self.restarting
        return whole


WORKING, NEAR, STORE = range(3)


def simulated(setting: Setting, periods: int, runs: int, seed: int) -> Elapsed:
    """Runs until that many copies are in the store or on their way; when they begin, one is on its way there.

    Every run has a clock, the next failure of either kind, and the interval that it is in; in each round of the loop
    every run goes on to the end of what it does, or to its next failure.
    """
    random = np.random.default_rng(seed)
    every, last = setting.per_store, periods * setting.per_store
    clock, doing = np.zeros(runs), np.full(runs, WORKING)
    fails = {NEAR: _later(clock, setting.near_mtbf_s, random), STORE: _later(clock, setting.store_mtbf_s, random)}
    at, stored, sent = (np.full(runs, n) for n in (0, -every, 0))
    counts_at = clock + setting.write_s
    spent = {what: np.zeros(runs) for what in ("working", "detecting", "restarting")}
    while (alive := np.flatnonzero(at < last)).size:
        is_last_of_period = (at[alive] + 1) % every == 0
        work = setting.interval_s + setting.near_save_s + np.where(is_last_of_period, setting.store_save_s, 0)
        restart = np.where(doing[alive] == NEAR, setting.near_restart_s, setting.store_restart_s)
        ends = clock[alive] + np.where(doing[alive] == WORKING, work, setting.detect_s + restart)
        first = np.minimum(fails[NEAR][alive], fails[STORE][alive])
        took = np.minimum(ends, first) - clock[alive]
        is_working = doing[alive] == WORKING
        spent["working"][alive] += np.where(is_working, took, 0)
        spent["detecting"][alive] += np.where(is_working, 0, np.minimum(took, setting.detect_s))
        spent["restarting"][alive] += np.where(is_working, 0, np.maximum(0, took - setting.detect_s))
        clock[alive] += took

        done = ends <= first
        through = alive[done & is_working]
        at[through] += 1
        saved = through[at[through] % every == 0]
        # What was on its way counts before the next one is sent.
        stored[saved], sent[saved], counts_at[saved] = sent[saved], at[saved], clock[saved] + setting.write_s
        doing[alive[done]] = WORKING

        failed = alive[~done]
        needs_store = fails[STORE][failed] <= fails[NEAR][failed]
        for kind, mtbf_s, those in (
            (NEAR, setting.near_mtbf_s, failed[~needs_store]),
            (STORE, setting.store_mtbf_s, failed[needs_store]),
        ):
            fails[kind][those] = _later(clock[those], mtbf_s, random)
        # Who restarts from the store already goes on to do so.
        doing[failed] = np.where(needs_store | (doing[failed] == STORE), STORE, NEAR)
        back = failed[needs_store]
        counts = counts_at[back] <= clock[back]
        at[back] = np.where(counts, sent[back], stored[back])
        sent[back] = at[back]
        counts_at[back] = np.where(counts, counts_at[back], -np.inf)
    useful = np.full(runs, last * setting.interval_s)
    saving = np.full(runs, last * setting.near_save_s + periods * setting.store_save_s)
    return Elapsed(useful, saving, spent["working"] - useful - saving, spent["detecting"], spent["restarting"])


def _later(clock: np.ndarray, mtbf_s: float, random: np.random.Generator) -> np.ndarray:
    """When each fails next."""
    return np.full(clock.shape, np.inf) if np.isinf(mtbf_s) else clock + random.exponential(mtbf_s, clock.shape)
