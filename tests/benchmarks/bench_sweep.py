"""How long each formula takes for a million points at once; run `python -m tests.benchmarks.bench_sweep`, slowest
first.

Every number of a formula's first worked example becomes an array. Processor seconds, so that other work on the machine
counts less.
"""

import time

import numpy as np

from lab.book.register import Formula, Worked, load

POINTS = 1_000_000


def arrays(number: Worked) -> dict:
    numbers = {name: value for name, value in number.arguments.items() if type(value) in (int, float)}
    return {**number.arguments, **{name: np.full(POINTS, value) for name, value in numbers.items()}}


def seconds(formula: Formula) -> float:
    arguments = arrays(formula.worked[0])
    start = time.process_time()
    formula.call(**arguments)
    return time.process_time() - start


def main() -> None:
    formulas = {
        f.function: f
        for part in load()
        for f in part.formulas
        if f.sweeps and f.worked and type(f.worked[0].gives) in (int, float)
    }
    times = sorted(((seconds(formula), function) for function, formula in formulas.items()), reverse=True)
    for taken, function in times:
        print(f"{taken * 1e3:8.1f} ms  {function}")
    print(f"{len(times)} functions, {POINTS:,} points each: {sum(taken for taken, _ in times):.2f} s in all")


if __name__ == "__main__":
    main()
