"""How long text to ledger takes beside XLA's own parser alone, and how much memory; run `python -m
tests.benchmarks.bench_reader`.

Processor seconds, so that other work on the machine counts less; both sides take turns. The first turn finds every
cache empty.
"""

import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from lab.hlo import read_text
from lab.meshes.axes import Axes
from tests.hlo_corpus.corpus import CORPUS
from tests.hlo_corpus.xla_parser import parsed_by_xla

PROGRAMS = {"hlo_llama31_8b_bf16_1x8.hlo": "fsdp=8", "hlo_mixtral_8x7b_bf16_2x8.hlo": "data=2,expert=8"}
TURNS = 9


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def peak_bytes(function: Callable[[], object]) -> int:
    """Most that Python held at once, beyond what it held before."""
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def main() -> None:
    print(
        f"{'program':34} {'file MB':>7} {'ledger s':>8} {'XLA s':>6} {'ratio':>6} {'first turn':>10} "
        f"{'memory / file':>13}"
    )
    for name, mesh in PROGRAMS.items():
        text, axes = (CORPUS / "xla_benchmarks" / name).read_text(), Axes.parse(mesh)
        reading, parsing = partial(read_text, text, axes=axes), partial(parsed_by_xla, text)
        turns = [(seconds(reading), seconds(parsing)) for _ in range(TURNS)]
        ours, theirs = map(min, zip(*turns, strict=True))
        memory = peak_bytes(reading) / len(text)
        first = turns[0][0] / turns[0][1]
        print(
            f"{name:34} {len(text) / 1e6:7.2f} {ours:8.3f} {theirs:6.3f} {ours / theirs:6.2f} {first:10.2f} "
            f"{memory:13.1f}"
        )


if __name__ == "__main__":
    main()
