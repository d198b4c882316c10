"""What reading and diagnosing add to the compile time of a decoder's step; run `python -m
tests.benchmarks.bench_diagnosis`.

Seconds of wall clock, the least of several turns: a compile uses several cores, what is added one.
"""

import time
from collections.abc import Callable
from typing import Any

from lab import diagnosis
from lab.compile import inspection
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from tests.lab.programs.strategies.layouts import LAYOUTS

PLACES = ("cpu:8", "gpu:h100:1x8", "tpu:v5e:2x4")
CHOSEN = (("data", "declared"), ("zero3", "declared"), ("zero3", "explicit"), ("fsdp x sequence", "declared"))
TURNS = 3


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def measured(target: str, layout: str, style: str) -> tuple[float, float, float]:
    """Seconds to compile, to read, and to diagnose."""
    (strategy, axes), place = LAYOUTS[layout], parse_target(target)
    mesh = make_mesh(place, Axes.parse(axes))
    step, args = program.step(strategy, style, DecoderShape(), mesh)
    lowered = step.lower(*args)
    compiling, compiled = timed(lowered.compile)
    reading, _ = min(
        (timed(lambda: inspection.read_program(compiled, args, mesh, place, source=layout)) for _ in range(TURNS)),
        key=lambda pair: pair[0],
    )
    # Rules keep what they have found: each turn reads anew.
    diagnosing = (
        min(
            timed(lambda: diagnosis.of(inspection.read_program(compiled, args, mesh, place, source=layout)))[0]
            for _ in range(TURNS)
        )
        - reading
    )
    return compiling, reading, diagnosing


def main() -> None:
    prepare([parse_target(place) for place in PLACES])
    print(f"{'target':13} {'layout':16} {'style':9} {'compile s':>9} {'read s':>7} {'diagnose s':>10} {'added':>6}")
    for target in PLACES:
        if target.startswith("cpu") or plugins.installed(target.partition(":")[0]):
            for layout, style in CHOSEN:
                compiling, reading, diagnosing = measured(target, layout, style)
                print(
                    f"{target:13} {layout:16} {style:9} {compiling:9.2f} {reading:7.3f} {diagnosing:10.3f} "
                    f"{(reading + diagnosing) / compiling:6.1%}"
                )


if __name__ == "__main__":
    main()
