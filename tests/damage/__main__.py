"""Reads damaged texts and counts what comes of them; run `python -m tests.damage --count 10000 --seed 0`.

Ends with status 1 where any crashed the reader, did not end, or was silently read as another program; those are printed
and, with `--keep FOLDER`, kept.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

from lab.hlo import read_text
from lab.meshes.axes import Axes
from tests.damage.judge import WRONG, Outcome, Seen, judged, seen
from tests.damage.mutations import DAMAGE, damaged
from tests.damage.xla_parser_process import XlaParser
from tests.hlo_corpus.corpus import OURS, theirs

TEXTS = {**OURS, **theirs("hlo/*/*", "cases/compiled/*/*.hlo", "cases/second/*.hlo", "cases/referee/*.hlo")}
MEMORY_EVERY, MOST_MEMORY = 25, 10
LARGE = 500_000
"""Characters; of the texts above only few are damaged, since they take seconds."""


def mesh_of(devices: int | None) -> Axes | None:
    """Two axes, where they are to be had."""
    if devices is None or devices < 2:
        return None
    inner = next((n for n in (4, 2, 3) if devices % n == 0 and devices > n), devices)
    return Axes(("x", "y"), (devices // inner, inner))


@cache
def whole(name: str, has_mesh: bool) -> tuple[Axes | None, Seen]:
    """The mesh of a text, and what is read of it before it is damaged."""
    axes = mesh_of(read_text(TEXTS[name]()).devices) if has_mesh else None
    return axes, seen(TEXTS[name](), axes)


def drawn(seed: int, number: int) -> tuple[str, list[str], bool, str]:
    """Name, kinds of damage, whether the mesh is given, and the damaged text."""
    random = Random(f"{seed} {number}")
    name = random.choice(sorted(TEXTS))
    text = TEXTS[name]()
    if len(text) > LARGE and random.random() > 0.1:
        return drawn(seed + 1_000_000, number)
    kinds = random.choices(sorted(DAMAGE), k=random.choice([1, 1, 1, 2, 3]))
    return name, kinds, random.random() < 0.5, damaged(text, kinds, random)


def memory_of(text: str, axes: Axes | None) -> float:
    """The most bytes at once, by the text's."""
    tracemalloc.start()
    judged(Seen((), frozenset(), True), text, axes, lambda _: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / max(len(text), 100_000)  # Below that tables and caches are all there is.


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description="Damage texts and read them.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="end after so long, however many are left")
    parser.add_argument("--keep", type=Path, help="a folder for the texts that were read wrongly")
    options = parser.parse_args()
    xla, outcomes, taken, memory = XlaParser(), Counter[Outcome](), Counter[str](), 0.0
    start, done = time.monotonic(), 0
    for number in range(options.count):
        if options.seconds and time.monotonic() - start > options.seconds:
            break
        done += 1
        name, kinds, has_mesh, text = drawn(options.seed, number)
        axes, before = whole(name, has_mesh)
        outcome, shown = judged(before, text, axes, xla.printed)
        outcomes[outcome] += 1
        if outcome is Outcome.SAME and text != TEXTS[name]():
            taken["XLA's parser takes it too" if xla.printed(text) else "XLA's parser refuses it"] += 1
        if outcome in WRONG:
            print(f"\n{outcome}: number {number}, {name}, {'+'.join(kinds)}, mesh {axes}\n{shown}", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                options.keep.joinpath(f"{number}_{hashlib.sha1(text.encode()).hexdigest()[:8]}.hlo").write_text(text)
        if number % MEMORY_EVERY == 0:
            memory = max(memory, memory_of(text, axes))
    xla.end()
    print(f"\n{done:,} damaged texts, seed {options.seed}")
    for outcome in Outcome:
        print(f"{outcomes[outcome]:7,}  {outcome}")
    for what, times in taken.items():
        print(f"{times:7,}  of those with the same totals: {what}")
    print(f"memory at most {memory:.1f} times the text")
    return int(any(outcomes[outcome] for outcome in WRONG) or memory > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
