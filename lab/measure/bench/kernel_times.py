"""How long kernels take on one device: chains of calls in one compiled program, each call after the one before, with
the compiled text, which says what ran.

Programs are run one after the other without waiting, on the result of the one before: what a few runs more take is
the device's alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from math import prod
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from lab.core.clock import timed
from lab.core.known import known
from lab.hlo.kernels import Step, steps
from lab.meshes.errors import one_line

A_RUN_S, MOST_CALLS, FEWEST_CALLS = 8e-4, 96, 2
"""A program makes so many calls that launching it takes no longer than running it."""
SAMPLE_S, SAMPLES, MOST_RUNS = 0.03, 3, 60
"""Of each program: so long at a time, so often, in so many runs at most."""
HEATING_S = 0.5
"""Products draw so much power that a card lowers its clock: on an H200 those in bfloat16 take 5 to 18 % longer from the
second half-second on, and those of a training run last."""
BASE = 1 << 27
"""Numbers that are drawn once; arrays are their beginning, larger ones are ones."""


@dataclass(frozen=True)
class Array:
    """What a program is given: normal numbers, for integers any that lie below `below`; in the memory of the device, or
    of the host."""

    shape: tuple[int, ...]
    dtype: str
    below: int = 0
    on_host: bool = False


@dataclass(frozen=True)
class Program:
    """One call to time.

    Attributes:
      call: of arrays like `args`; gives one or more arrays.
      call_s: about as long as it takes.
      carries: of the first so many arguments a call's results take the place, for the next call; of none the next call
        is given the same.
      heats: it is run for a while before it is timed.
      alone: the program is this call alone, so that its results are in the layout that it is asked for.
      options: of the compiler.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Array, ...]
    call_s: float = 1e-4
    carries: int = 0
    heats: bool = False
    alone: bool = False
    options: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def changed(self) -> int:
        """Arguments that a program takes over."""
        return 0 if self.alone else self.carries or 1

    @property
    def calls(self) -> int:
        return 1 if self.alone else round(min(max(A_RUN_S / self.call_s, FEWEST_CALLS), MOST_CALLS))


@dataclass(frozen=True)
class Observation:
    """One run of a program.

    Attributes:
      steps: of its text.
      text: as compiled.
      why_not: it has no time.
    """

    name: str
    calls: int
    seconds: float
    steps: tuple[Step, ...]
    text: str = ""
    why_not: str = ""


def observed(programs: Iterable[Program], device: jax.Device) -> Iterator[Observation]:
    """All are compiled first, at the same time, then timed one after the other."""
    programs = tuple(programs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        drawn = [pool.submit(_base, *kind) for kind in {(arg.dtype, arg.below) for one in programs for arg in one.args}]
        waiting = [(program, pool.submit(_compiled, program, device)) for program in programs]
    del drawn
    return (_observed(program, compiled, device) for program, compiled in waiting)


def _observed(program: Program, compiled: Future[jax.stages.Compiled], device: jax.Device) -> Observation:
    try:
        ready = compiled.result()
        text = known(ready.as_text())
        seconds = _seconds(program, ready, device)
    except Exception as failure:  # One program that cannot be run must not end the others.
        return Observation(program.name, program.calls, 0.0, (), why_not=one_line(failure))
    return Observation(program.name, program.calls, seconds, steps(text), text)


def lowered(program: Program, device: jax.Device) -> jax.stages.Lowered:
    given = [
        jax.ShapeDtypeStruct(arg.shape, jnp.dtype(arg.dtype), sharding=_sharding(arg, device)) for arg in program.args
    ]
    if program.alone:
        return jax.jit(program.call).lower(*given)
    return jax.jit(_chain(program), donate_argnums=range(program.changed)).lower(*given)


def _sharding(array: Array, device: jax.Device) -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host" if array.on_host else None)


def _compiled(program: Program, device: jax.Device) -> jax.stages.Compiled:
    return lowered(program, device).compile(compiler_options=dict(program.options) or None)


def _chain(program: Program) -> Callable[..., tuple[jax.Array, ...]]:
    def chain(*args: jax.Array) -> tuple[jax.Array, ...]:
        changed, others = args[: program.changed], args[program.changed :]
        for _ in range(program.calls):
            results = jax.lax.optimization_barrier(jax.tree.leaves(program.call(*changed, *others)))
            changed = tuple(results) if program.carries else (_after(changed[0], results[0]),)
        return changed

    return chain


def _after(first: jax.Array, result: jax.Array) -> jax.Array:
    """The array in its place, one element written anew when the result is there. With a number that no compiler can
    know; not with its own, since what is read is not written in place."""
    told = jax.lax.slice(result, [0] * result.ndim, [1] * result.ndim).reshape(()).astype(jnp.float32)
    number = jnp.where(told == 12345.678, 0, 1).astype(first.dtype)
    at = [0] * first.ndim
    return jax.lax.optimization_barrier(jax.lax.dynamic_update_slice(first, number.reshape([1] * first.ndim), at))


def _seconds(program: Program, compiled: jax.stages.Compiled, device: jax.Device) -> float:
    args = tuple(jax.device_put(_numbers(arg), _sharding(arg, device)) for arg in program.args)

    def run(times: int) -> None:
        nonlocal args
        results: Any = None
        for _ in range(times):
            results = compiled(*args)
            args = args if program.alone else (*results, *args[program.changed :])
        jax.block_until_ready(results)

    def taken(times: int) -> float:
        return timed(lambda: run(times))[1]

    run(2)
    one_s = taken(1)
    if program.heats:
        run(round(HEATING_S / one_s))
    times = round(min(max(SAMPLE_S / one_s, 4), MOST_RUNS))
    return median((taken(times) - taken(1)) / (times - 1) for _ in range(SAMPLES))


def _numbers(array: Array) -> np.ndarray | jax.Array:
    count = prod(array.shape)
    if count > (BASE >> 3 if array.below else BASE):
        return jnp.zeros(array.shape, array.dtype) if array.below else jnp.ones(array.shape, array.dtype)
    return _base(array.dtype, array.below)[:count].reshape(array.shape)


@cache
def _base(dtype: str, below: int) -> np.ndarray:
    """Random, since zeros draw less power."""
    draw = np.random.default_rng(0)
    if below:
        return draw.integers(0, below, BASE >> 3, dtype=dtype)
    if dtype == "int8":
        return draw.integers(-127, 127, BASE, dtype=dtype)
    normal = draw.standard_normal(BASE, dtype=np.float32)
    if dtype == "bfloat16":
        return normal.view(np.uint16)[1::2].copy().view(ml_dtypes.bfloat16)
    return normal.astype(getattr(ml_dtypes, dtype, dtype))
